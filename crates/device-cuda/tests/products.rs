//! Products on a GPU, where there is one: that the kernels for Hopper and those for other GPUs give the same bits, and that
//! inputs that are rounded once are the inputs of every product that reads them.

use half::{bf16, f16};
use paceline_device::abi::TokenRow;
use paceline_device::{
    Activation, Backend, DeviceError, Epilogue, Experts, GateOrder, GatedNorm, MoeRouting, Pending, Product,
    ResidualNorm, RouteScores, Router, RowOrder, StepLimits, StepTables, WeightData, WeightPart,
};
use paceline_device_cuda::{Cuda, CudaOptions, CudaTensor, CudaWeight, Found, probe};
use paceline_types::DType;

/// Some numbers around zero, the same for the same seed.
fn numbers(seed: u32, count: usize, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next() * scale).collect()
}

/// The GPU, with and without the kernels that only Hopper has. `None`, and says so, where there is none.
fn gpus() -> Option<[Cuda; 2]> {
    if !matches!(probe(), Found::Driver { gpus, .. } if !gpus.is_empty()) {
        eprintln!("skipped: there is no GPU");
        return None;
    }
    let open = |wgmma| {
        let options = CudaOptions {
            wgmma,
            ..CudaOptions::default()
        };
        Cuda::open(options).expect("the GPU can be opened")
    };
    Some([open(true), open(false)])
}

fn weight(cuda: &Cuda, dtype: DType, shape: (usize, usize), seed: u32) -> CudaWeight {
    packed(dtype, shape, seed, |part| cuda.weight(&[part], None))
}

fn packed(
    dtype: DType,
    (outputs, inputs): (usize, usize),
    seed: u32,
    pack: impl FnOnce(WeightPart<'_>) -> Result<CudaWeight, DeviceError>,
) -> CudaWeight {
    let values = numbers(seed, outputs * inputs, (3.0 / inputs as f32).sqrt());
    let data: Vec<u8> = match dtype {
        DType::F16 => values
            .iter()
            .flat_map(|x| f16::from_f32(*x).to_le_bytes())
            .collect(),
        DType::BF16 => values
            .iter()
            .flat_map(|x| bf16::from_f32(*x).to_le_bytes())
            .collect(),
        _ => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
    };
    let part = WeightPart {
        name: "w",
        dtype,
        stored_rows: outputs,
        columns: inputs,
        data: WeightData::Stored(&data),
        order: RowOrder::Stored,
    };
    pack(part).expect("the weight can be packed")
}

/// Rows of random tokens: `rows` of a bucket as large.
struct Rows(StepTables<Cuda>);

impl Rows {
    fn new(cuda: &Cuda, rows: usize) -> Self {
        let limits = StepLimits {
            tokens: rows,
            requests: 1,
            samples: 1,
            blocks_per_request: 1,
            block_size: 16,
        };
        let step = StepTables::new(cuda, limits).expect("there is memory");
        let tokens: Vec<TokenRow> = (0..rows)
            .map(|row| TokenRow {
                id: row as i32,
                position: row as i32,
                request: 0,
            })
            .collect();
        cuda.write(&step.token_rows, &tokens);
        cuda.write(&step.tokens.live, &[rows as i32]);
        Self(step)
    }

    fn tensor(&self, cuda: &Cuda, columns: usize) -> CudaTensor {
        cuda.tensor(&self.0.tokens, columns).expect("there is memory")
    }

    /// A tensor with random numbers.
    fn random(&self, cuda: &Cuda, columns: usize, seed: u32) -> CudaTensor {
        let table = weight(cuda, DType::F32, (self.0.limits.tokens, columns), seed);
        let mut x = self.tensor(cuda, columns);
        cuda.embed(&self.0, &table, (columns as f32).sqrt(), &mut x);
        x
    }
}

fn bits(cuda: &Cuda, tensor: &CudaTensor) -> Vec<u32> {
    let values = cuda.read_tensor(tensor).wait().expect("the stream runs");
    assert!(values.iter().all(|x| x.is_finite()), "a result is not finite");
    values.into_iter().map(f32::to_bits).collect()
}

#[test]
fn kernels_of_all_gpus_give_the_same_bits() {
    let Some(gpus) = gpus() else { return };
    for dtype in [DType::BF16, DType::F16] {
        for shape in [(128, 64), (97, 45), (2560, 1024), (640, 2560)] {
            for rows in [1, 8, 13, 32, 64, 100, 256, 700] {
                let results = gpus.each_ref().map(|cuda| {
                    let w = weight(cuda, dtype, shape, 1);
                    let space = Rows::new(cuda, rows);
                    let x = space.random(cuda, shape.1, 2);
                    let mut out = space.tensor(cuda, shape.0);
                    cuda.linear(&x, &w, Epilogue::NONE, &mut out);
                    bits(cuda, &out)
                });
                assert!(
                    results[0] == results[1],
                    "{dtype} {shape:?}, {rows} rows: bits differ between wgmma and mma.sync"
                );
            }
        }
    }
}

#[test]
fn experts_on_all_gpus_give_the_same_bits() {
    let Some(gpus) = gpus() else { return };
    let (hidden, width, count, chosen) = (256, 192, 16_u32, 3);
    for rows in [1, 7, 64, 600] {
        let results = gpus.each_ref().map(|cuda| {
            let matrices = |shape, seed: u32| -> Vec<CudaWeight> {
                (0..count)
                    .map(|expert| weight(cuda, DType::BF16, shape, seed + expert))
                    .collect()
            };
            let experts = cuda
                .experts(matrices((2 * width, hidden), 100), matrices((hidden, width), 200))
                .expect("the experts fit each other");
            let space = Rows::new(cuda, rows);
            let logits = space.random(cuda, count as usize, 3);
            let mut routing = MoeRouting {
                ids: cuda.buffer(rows * chosen).expect("there is memory"),
                weights: space.tensor(cuda, chosen),
                chosen,
            };
            cuda.route(Router {
                logits: &logits,
                scores: RouteScores::Softmax { renormalise: true },
                shared: false,
                out: &mut routing,
            });
            let x = space.random(cuda, hidden, 4);
            let mut out = space.tensor(cuda, hidden);
            cuda.run_experts(Experts {
                x: &x,
                routing: &routing,
                experts: &experts,
                activation: Activation::SiluGated { gate_scale: 1.0 },
                out: &mut out,
            });
            bits(cuda, &out)
        });
        assert!(results[0] == results[1], "{rows} rows: bits differ");
    }
}

/// Two layers in which the end of each product leaves the inputs of the next one; with `apart`, something else runs in
/// between, so that each product rounds its own.
fn layers(cuda: &Cuda, rows: usize, apart: bool) -> [Vec<u32>; 4] {
    let (hidden, width) = (128, 192);
    let weights = [
        ((hidden, hidden), 10),
        ((2 * width, hidden), 11),
        ((hidden, width), 12),
        ((64, hidden), 13),
    ];
    let w = weights.map(|(shape, seed)| {
        packed(DType::BF16, shape, seed, |part| match seed {
            11 => cuda.gated_weight(&[part], None),
            _ => cuda.weight(&[part], None),
        })
    });
    let ones = cuda.buffer_from(&vec![1.0; hidden]).expect("there is memory");
    let space = Rows::new(cuda, rows);
    let x = space.random(cuda, hidden, 5);
    let mut residual = space.random(cuda, hidden, 6);
    let [mut delta, mut normal, mut gated, mut idle] = [0; 4].map(|_| space.tensor(cuda, hidden));
    let (mut up, mut active) = (space.tensor(cuda, 2 * width), space.tensor(cuda, width));
    let mut ends = [0; 3].map(|_| space.tensor(cuda, 64));
    let between = |idle: &mut CudaTensor| {
        if apart {
            cuda.copy(&x, idle);
        }
    };
    cuda.rms_norm(&x, &ones, 1e-6, &mut normal);
    between(&mut idle);
    cuda.linear(&normal, &w[3], Epilogue::NONE, &mut ends[0]);
    cuda.add(&mut residual, &normal, 1.0, None);
    cuda.gated_norm(GatedNorm {
        x: &normal,
        gate: &x,
        weight: Some(&ones),
        group: hidden,
        order: GateOrder::NormThenGate,
        eps: 1e-6,
        out: &mut gated,
    });
    between(&mut idle);
    for (first, end) in [(0, 1), (2, 2)] {
        let product = Product {
            x: if first == 0 { &gated } else { &active },
            w: &w[first],
            epilogue: Epilogue::NONE,
            out: &mut delta,
        };
        let norm = ResidualNorm {
            residual: &mut residual,
            scale: 1.0,
            weight: &ones,
            eps: 1e-6,
            out: &mut normal,
        };
        cuda.linear_add_norm(product, norm);
        between(&mut idle);
        cuda.linear(&normal, &w[3], Epilogue::NONE, &mut ends[end]);
        between(&mut idle);
        let product = Product {
            x: &normal,
            w: &w[1],
            epilogue: Epilogue::NONE,
            out: &mut up,
        };
        cuda.linear_activate(product, Activation::SiluGated { gate_scale: 1.0 }, &mut active);
        between(&mut idle);
    }
    [&residual, &ends[0], &ends[1], &ends[2]].map(|tensor| bits(cuda, tensor))
}

#[test]
fn inputs_that_are_rounded_once_are_those_of_every_product() {
    let Some(gpus) = gpus() else { return };
    for rows in [1, 5, 16, 64, 200, 700] {
        let expected = layers(&gpus[0], rows, true);
        for cuda in &gpus {
            assert!(
                layers(cuda, rows, false) == expected,
                "{rows} rows: bits differ from products that round their own inputs"
            );
        }
    }
}

/// Results of one product, and of one with a gated activation whose results only the next product reads: in a program,
/// they are left rounded alone.
fn wide_layers(cuda: &Cuda, dtype: DType, rows: usize) -> [Vec<u32>; 3] {
    let (hidden, outputs, width) = (320, 12_400, 9152);
    let w = [(outputs, hidden), (2 * width, hidden), (64, width)].map(|shape| {
        packed(dtype, shape, 30, |part| {
            if shape.0 == 2 * width {
                cuda.gated_weight(&[part], None)
            } else {
                cuda.weight(&[part], None)
            }
        })
    });
    let space = Rows::new(cuda, rows);
    let x = [31, 32].map(|seed| space.random(cuda, hidden, seed));
    let (mut up, mut active) = (space.tensor(cuda, 2 * width), space.tensor(cuda, width));
    let (mut out, mut ends) = (
        space.tensor(cuda, outputs),
        [0; 2].map(|_| space.tensor(cuda, 64)),
    );
    let mut run = || {
        cuda.linear(&x[0], &w[0], Epilogue::NONE, &mut out);
        for (x, end) in x.iter().zip(&mut ends) {
            let product = Product {
                x,
                w: &w[1],
                epilogue: Epilogue::NONE,
                out: &mut up,
            };
            cuda.linear_activate(product, Activation::SiluGated { gate_scale: 0.5 }, &mut active);
            cuda.linear(&active, &w[2], Epilogue::NONE, end);
        }
    };
    run();
    cuda.begin_capture();
    run();
    let program = cuda.end_capture();
    for end in &mut ends {
        cuda.copy(&space.random(cuda, 64, 33), end);
    }
    cuda.copy(&space.tensor(cuda, outputs), &mut out);
    cuda.launch(&program);
    [&out, &ends[0], &ends[1]].map(|tensor| bits(cuda, tensor))
}

#[test]
fn tiles_that_are_cut_and_tiles_that_are_not_give_the_same_bits_for_any_number_of_rows() {
    let Some(gpus) = gpus() else { return };
    for dtype in [DType::BF16, DType::F16] {
        let expected = wide_layers(&gpus[1], dtype, 1000);
        for rows in [1, 8, 40, 100, 200, 256, 500, 1000] {
            for cuda in &gpus {
                for (expected, found) in expected.iter().zip(wide_layers(cuda, dtype, rows)) {
                    let columns = expected.len() / 1000;
                    assert!(
                        found[..] == expected[..rows * columns],
                        "{dtype}, {rows} rows of {columns}: bits differ"
                    );
                }
            }
        }
    }
}

#[test]
fn a_value_that_a_weight_cannot_hold_is_named_with_its_part_and_row() {
    let Some([cuda, _]) = gpus() else { return };
    let mut values = numbers(20, 200 * 40, 1.0);
    let refused = |values: &[f32], store_as| {
        let part = |name, order| WeightPart {
            name,
            dtype: DType::F32,
            stored_rows: 200,
            columns: 40,
            data: WeightData::Stored(bytemuck::cast_slice(values)),
            order,
        };
        // Row 150 is not part of the first matrix.
        let parts = [
            part("first", RowOrder::Picked((0..150).rev().collect())),
            part("second", RowOrder::Stored),
        ];
        cuda.weight(&parts, store_as).err().map(|error| error.to_string())
    };
    assert_eq!(refused(&values, None), None);
    values[150 * 40 + 39] = 1e6;
    assert_eq!(refused(&values, Some(DType::BF16)), None);
    assert_eq!(
        refused(&values, Some(DType::F16)).as_deref(),
        Some("weight second: row 150 holds 1e6, too large for F16")
    );
    values[150 * 40 + 39] = f32::NAN;
    for store_as in [None, Some(DType::BF16), Some(DType::F16)] {
        assert_eq!(
            refused(&values, store_as).as_deref(),
            Some("weight second: row 150 holds a value that is not finite")
        );
    }
    values[3 * 40] = f32::NEG_INFINITY;
    assert_eq!(
        refused(&values, None).as_deref(),
        Some("weight first: row 3 holds a value that is not finite")
    );
}
