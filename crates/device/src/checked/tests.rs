//! Every check fires, and none does where the contract is kept.

use super::Checked;
use crate::{
    Activation, Backend, CausalConv, DeltaRule, Epilogue, FreePlaces, GateOrder, GatedNorm, HeadMap, Mixture,
    MoeRouting, Pending, Product, Recorder, ResidualNorm, RouteScores, RowOrder, Rows, SampledProduct,
    SampledText, Sampling, StateShape, StateSpace, StepLimits, StepTables, WeightData, WeightPart,
};
use paceline_types::DType;

type Device = Checked<Recorder>;
type Tensor = <Device as Backend>::Tensor;

const PLAIN: Activation = Activation::ReluSquared;

fn device() -> (Device, Rows<Device>) {
    let device = Checked::new(Recorder::new());
    let rows = Rows::new(&device, 8).expect("nothing is allocated");
    (device, rows)
}

fn tensor(device: &Device, rows: &Rows<Device>) -> <Device as Backend>::Tensor {
    device.tensor(rows, 4).expect("nothing is allocated")
}

const PART: WeightPart<'_> = WeightPart {
    name: "w",
    dtype: DType::F32,
    stored_rows: 4,
    columns: 4,
    data: WeightData::Stored(&[]),
    order: RowOrder::Stored,
};

fn weight(device: &Device) -> <Device as Backend>::Weight {
    device.weight(&[PART], None).expect("nothing is allocated")
}

fn gated_weight(device: &Device) -> <Device as Backend>::Weight {
    device.gated_weight(&[PART], None).expect("nothing is allocated")
}

fn tables(device: &Device) -> StepTables<Device> {
    let limits = StepLimits {
        tokens: 8,
        requests: 8,
        samples: 8,
        blocks_per_request: 1,
        block_size: 16,
    };
    StepTables::new(device, limits).expect("nothing is allocated")
}

/// A tensor that has contents in the program that is being collected.
fn filled(device: &Device, rows: &Rows<Device>) -> <Device as Backend>::Tensor {
    let mut out = tensor(device, rows);
    let frequencies = device.buffer(2).expect("nothing is allocated");
    device.rope_angles(&tables(device), &frequencies, 1.0, &mut out);
    out
}

#[test]
fn programs_that_keep_the_contract_are_let_through() {
    let (device, rows) = device();
    let matrix = weight(&device);
    device.begin_capture();
    let x = filled(&device, &rows);
    let mut y = tensor(&device, &rows);
    device.linear(&x, &matrix, Epilogue::NONE, &mut y);
    let mut again = device.reshape(&x, &rows, 4);
    device.activate(&y, PLAIN, &mut again);
    device.copy(&again, &mut y);
    // Side by side, and read as one.
    let joined = tensor(&device, &rows);
    device.copy(&device.columns(&y, 0..1), &mut device.columns(&joined, 0..1));
    device.copy(&device.columns(&y, 1..4), &mut device.columns(&joined, 1..4));
    device.copy(&joined, &mut y);
    let program = device.end_capture();
    device.seal();
    device.launch(&program);
}

#[test]
#[should_panic(expected = "contract: a buffer is allocated after the start")]
fn memory_after_the_start() {
    let (device, _) = device();
    device.seal();
    let _ = device.buffer::<f32>(1);
}

#[test]
#[should_panic(expected = "contract: a program is captured after the start")]
fn a_capture_after_the_start() {
    let (device, _) = device();
    device.seal();
    device.begin_capture();
}

#[test]
#[should_panic(expected = "contract: rope_angles is enqueued outside a program after the start")]
fn an_operation_outside_programs_after_the_start() {
    let (device, rows) = device();
    let mut out = tensor(&device, &rows);
    let frequencies = device.buffer(2).expect("nothing is allocated");
    let tables = tables(&device);
    device.seal();
    device.rope_angles(&tables, &frequencies, 1.0, &mut out);
}

#[test]
#[should_panic(expected = "was captured elsewhere")]
fn the_program_of_another_device() {
    let (device, _) = device();
    let (other, _) = self::device();
    other.buffer::<f32>(1).expect("nothing is allocated");
    other.begin_capture();
    let program = other.end_capture();
    device.launch(&program);
}

#[test]
#[should_panic(
    expected = "contract: copy reads columns 0..4 of x, in which no operation of this program left anything"
)]
fn scratch_that_nobody_wrote() {
    let (device, rows) = device();
    device.begin_capture();
    let x = tensor(&device, &rows);
    device.copy(&x, &mut tensor(&device, &rows));
}

#[test]
#[should_panic(
    expected = "contract: copy reads columns 0..4 of x, in which no operation of this program left anything"
)]
fn scratch_of_the_program_before() {
    let (device, rows) = device();
    device.begin_capture();
    let x = filled(&device, &rows);
    let mut y = tensor(&device, &rows);
    device.copy(&x, &mut y);
    device.end_capture();
    device.begin_capture();
    device.copy(&x, &mut y);
}

#[test]
#[should_panic(expected = "contract: copy reads columns 3..4 of x")]
fn columns_that_nobody_wrote() {
    let (device, rows) = device();
    device.begin_capture();
    let (x, y) = (filled(&device, &rows), tensor(&device, &rows));
    device.copy(&device.columns(&x, 0..3), &mut device.columns(&y, 0..3));
    device.copy(&y, &mut tensor(&device, &rows));
}

#[test]
#[should_panic(expected = "contract: copy reads columns 0..4 of x")]
fn the_rows_of_another_space() {
    let (device, rows) = device();
    let others = Rows::new(&device, 8).expect("nothing is allocated");
    device.begin_capture();
    let x = filled(&device, &rows);
    let mut seen_otherwise = x.clone();
    seen_otherwise.place.rows = others.live.name;
    device.copy(&seen_otherwise, &mut tensor(&device, &others));
}

#[test]
#[should_panic(expected = "contract: copy reads x, whose memory another tensor was written to")]
fn memory_that_was_handed_out_again() {
    let (device, rows) = device();
    device.begin_capture();
    let (x, y) = (filled(&device, &rows), filled(&device, &rows));
    let mut again = device.reshape(&x, &rows, 4);
    device.copy(&y, &mut again);
    device.copy(&x, &mut tensor(&device, &rows));
}

#[test]
#[should_panic(expected = "contract: gather for 8 rows, with index of 7")]
fn a_buffer_that_is_too_short() {
    let (device, rows) = device();
    device.begin_capture();
    let x = filled(&device, &rows);
    let index = device.buffer(7).expect("nothing is allocated");
    device.gather(&x, &index, &mut tensor(&device, &rows));
}

#[test]
#[should_panic(expected = "contract: 9 rows of 4 columns in memory for (8, 4)")]
fn a_tensor_that_is_larger_than_its_memory() {
    let (device, rows) = device();
    let x = tensor(&device, &rows);
    device.reshape(&x, &rows.with_bucket(9), 4);
}

#[test]
fn places_are_free_again_when_their_record_was_read() {
    let (device, _) = device();
    let ring = device.ring(1, 4).expect("nothing is allocated");
    let place = FreePlaces::new(1).take().expect("there is one");
    for _ in 0..3 {
        device.post(&ring, &place, &[1, 2, 3, 4]);
        let record = device.arrival(&ring, &place).wait();
        assert!(record.is_ok());
    }
}

#[test]
#[should_panic(expected = "contract: place 0 of a ring is written while a step in flight has it")]
fn a_place_that_a_step_in_flight_has() {
    let (device, _) = device();
    let ring = device.ring(1, 4).expect("nothing is allocated");
    let place = FreePlaces::new(1).take().expect("there is one");
    device.post(&ring, &place, &[1]);
    let _in_flight = device.arrival(&ring, &place);
    device.post(&ring, &place, &[2]);
}

#[test]
#[should_panic(expected = "contract: 5 words are posted to a place of 4")]
fn a_plan_that_is_longer_than_its_place() {
    let (device, _) = device();
    let ring = device.ring(1, 4).expect("nothing is allocated");
    let place = FreePlaces::new(1).take().expect("there is one");
    device.post(&ring, &place, &[0; 5]);
}

/// What wide operations of a program leave behind.
struct Wide {
    device: Device,
    rows: Rows<Device>,
    x: Tensor,
    tables: StepTables<Device>,
}

impl Wide {
    fn new() -> Self {
        let (device, rows) = device();
        let tables = tables(&device);
        device.begin_capture();
        Self {
            x: filled(&device, &rows),
            device,
            rows,
            tables,
        }
    }

    fn tensor(&self) -> Tensor {
        tensor(&self.device, &self.rows)
    }

    fn numbers(&self) -> <Device as Backend>::Buffer<f32> {
        self.device.buffer(8).expect("nothing is allocated")
    }

    fn read(&self, tensor: &Tensor) {
        self.device.copy(tensor, &mut self.tensor());
    }

    /// The activation and the scratch.
    fn linear_activate(&self, w: &<Device as Backend>::Weight, activation: Activation) -> [Tensor; 2] {
        let (mut scratch, mut out) = (self.tensor(), self.tensor());
        let product: Product<'_, Device> = Product {
            x: &self.x,
            w,
            epilogue: Epilogue::NONE,
            out: &mut scratch,
        };
        self.device.linear_activate(product, activation, &mut out);
        [out, scratch]
    }

    /// The norm, the residual and the scratch.
    fn linear_add_norm(&self) -> [Tensor; 3] {
        let (mut scratch, mut out) = (self.tensor(), self.tensor());
        let mut residual = filled(&self.device, &self.rows);
        let (w, weight) = (weight(&self.device), self.numbers());
        let product: Product<'_, Device> = Product {
            x: &self.x,
            w: &w,
            epilogue: Epilogue::NONE,
            out: &mut scratch,
        };
        let norm: ResidualNorm<'_, Device> = ResidualNorm {
            residual: &mut residual,
            scale: 1.0,
            weight: &weight,
            eps: 0.0,
            out: &mut out,
        };
        self.device.linear_add_norm(product, norm);
        [out, residual, scratch]
    }

    /// The norm, the residual, and the logits, weights and sum of a mixture.
    fn mix_experts(&self) -> [Tensor; 5] {
        let (mut logits, weights) = (self.tensor(), self.tensor());
        let (mut sum, mut out) = (self.tensor(), self.tensor());
        let mut residual = filled(&self.device, &self.rows);
        let (w, weight) = (weight(&self.device), self.numbers());
        let experts = self
            .device
            .experts(vec![gated_weight(&self.device)], vec![self::weight(&self.device)]);
        let mut routing = MoeRouting {
            ids: self.device.buffer(64).unwrap(),
            weights: weights.clone(),
            chosen: 4,
        };
        let mixture: Mixture<'_, Device> = Mixture {
            router: Product {
                x: &self.x,
                w: &w,
                epilogue: Epilogue::NONE,
                out: &mut logits,
            },
            scores: RouteScores::Softmax { renormalise: true },
            shared: false,
            routing: &mut routing,
            experts: &experts.unwrap(),
            activation: Activation::SiluGated { gate_scale: 1.0 },
            out: &mut sum,
        };
        let norm: ResidualNorm<'_, Device> = ResidualNorm {
            residual: &mut residual,
            scale: 1.0,
            weight: &weight,
            eps: 0.0,
            out: &mut out,
        };
        self.device.mix_experts(mixture, norm);
        [out, residual, logits, weights, sum]
    }

    /// The norm, and what convolution, recurrence and the product in front wrote. The recurrence reads `read` of the
    /// convolution.
    fn mix(&self, mix: Mix, read: impl Fn(&Tensor) -> Tensor) -> Vec<Tensor> {
        let (device, step, numbers) = (&self.device, &self.tables, self.numbers());
        let mut projected = self.tensor();
        let x = if mix == Mix::LinearDelta {
            projected.clone()
        } else {
            self.x.clone()
        };
        let (mut mixed, mut values, mut out) = (self.tensor(), self.tensor(), self.tensor());
        let (mixed_part, values_part) = (read(&mixed), values.clone());
        let cache = device.state_cache(STATES).expect("nothing is allocated");
        let conv: CausalConv<'_, Device> = CausalConv {
            x: &x,
            weight: &numbers,
            bias: None,
            cache: &cache,
            out: &mut mixed,
            step,
        };
        let norm: GatedNorm<'_, Device> = GatedNorm {
            x: &values_part,
            gate: &x,
            weight: None,
            group: 4,
            order: GateOrder::NormThenGate,
            eps: 0.0,
            out: &mut out,
        };
        if mix == Mix::Space {
            let recurrence: StateSpace<'_, Device> = StateSpace {
                x: &mixed_part,
                b: &mixed_part,
                c: &mixed_part,
                dt: &x,
                decay: &numbers,
                skip: &numbers,
                dt_bias: &numbers,
                dt_limits: (0.0, 1.0),
                cache: &cache,
                out: &mut values,
                step,
            };
            device.mix_state_space(conv, recurrence, norm);
        } else {
            let rule: DeltaRule<'_, Device> = DeltaRule {
                q: &mixed_part,
                k: &mixed_part,
                v: &mixed_part,
                a: &x,
                b: &x,
                decay: &numbers,
                dt_bias: &numbers,
                head_map: HeadMap::Grouped,
                cache: &cache,
                out: &mut values,
                step,
            };
            let w = weight(device);
            let product: Product<'_, Device> = Product {
                x: &self.x,
                w: &w,
                epilogue: Epilogue::NONE,
                out: &mut projected,
            };
            match mix {
                Mix::LinearDelta => device.linear_mix_delta(product, conv, rule, norm),
                _ => device.mix_delta(conv, rule, norm),
            }
        }
        vec![out, mixed, values, projected]
    }

    /// The states and the logits.
    fn sample_states(&self) -> [Tensor; 2] {
        let (mut states, mut logits) = (self.tensor(), self.tensor());
        let w = weight(&self.device);
        let product: SampledProduct<'_, Device> = SampledProduct {
            states: &mut states,
            w: &w,
            epilogue: Epilogue::NONE,
            logits: &mut logits,
        };
        let sampling = Sampling {
            step: &self.tables,
            options: None,
            text: SampledText::Step,
            tokens: &self.device.buffer(8).expect("nothing is allocated"),
            logprobs: &self.device.buffer(8).expect("nothing is allocated"),
        };
        self.device.sample_states(&self.x, product, sampling);
        [states, logits]
    }
}

/// The state of a layer that mixes tokens.
const STATES: StateShape = StateShape {
    slots: 1,
    conv_channels: 4,
    conv_width: 4,
    heads: 1,
    groups: 1,
    rows: 4,
    columns: 4,
    drafts: 0,
    snapshots: 0,
};

/// What mixes tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mix {
    Delta,
    /// Behind the product whose outputs it reads.
    LinearDelta,
    Space,
}

/// The recorder has a body of its own for each: one that writes down its name.
#[test]
fn wide_operations_are_those_of_the_device_inside() {
    let wide = Wide::new();
    let gated = Activation::SiluGated { gate_scale: 1.0 };
    wide.read(&wide.linear_activate(&gated_weight(&wide.device), gated)[0]);
    wide.read(&wide.linear_activate(&weight(&wide.device), PLAIN)[0]);
    let [out, residual, _] = wide.linear_add_norm();
    wide.read(&out);
    wide.read(&residual);
    wide.read(&wide.mix_experts()[0]);
    for mix in [Mix::Delta, Mix::LinearDelta, Mix::Space] {
        wide.read(&wide.mix(mix, Tensor::clone)[0]);
    }
    wide.sample_states();
    let program = wide.device.inner().end_capture();
    let mut names: Vec<&str> = program.iter().filter_map(|line| line.strip_suffix(':')).collect();
    names.dedup();
    assert_eq!(
        names,
        [
            "linear_activate",
            "linear_add_norm",
            "mix_experts",
            "mix_delta",
            "linear_mix_delta",
            "mix_delta",
            "mix_state_space",
            "sample_states"
        ]
    );
    let gated = program.iter().filter(|line| line.contains(" gated w")).count();
    assert_eq!(gated, 1, "one weight was made by gated_weight");
}

/// An operation, and what it used as scratch.
type Case = (&'static str, fn(&Wide) -> Vec<Tensor>);

#[test]
fn scratch_of_wide_operations_holds_nothing() {
    let operations: [Case; 7] = [
        ("linear_activate", |wide| {
            wide.linear_activate(&weight(&wide.device), PLAIN)[1..].to_vec()
        }),
        ("linear_add_norm", |wide| wide.linear_add_norm()[2..].to_vec()),
        ("mix_experts", |wide| wide.mix_experts()[2..].to_vec()),
        ("mix_delta", |wide| {
            wide.mix(Mix::Delta, Tensor::clone)[1..3].to_vec()
        }),
        ("linear_mix_delta", |wide| {
            wide.mix(Mix::LinearDelta, Tensor::clone)[1..].to_vec()
        }),
        ("mix_state_space", |wide| {
            wide.mix(Mix::Space, Tensor::clone)[1..3].to_vec()
        }),
        ("sample_states", |wide| wide.sample_states().to_vec()),
    ];
    for (name, operation) in operations {
        let wide = Wide::new();
        for (index, scratch) in operation(&wide).iter().enumerate() {
            let read = std::panic::AssertUnwindSafe(|| wide.read(scratch));
            let panic = std::panic::catch_unwind(read).expect_err(name);
            let message = panic.downcast::<String>().expect("a message");
            assert!(
                message.contains("in which no operation of this program left anything"),
                "{name}, scratch {index}: {message}"
            );
        }
    }
}

#[test]
#[should_panic(expected = "contract: mix_delta takes q from elsewhere than its scratch")]
fn a_recurrence_over_something_else_than_its_convolution() {
    let wide = Wide::new();
    wide.mix(Mix::Delta, |_| wide.x.clone());
}

#[test]
#[should_panic(expected = "contract: linear has a weight that was made for linear_activate")]
fn a_product_with_rows_in_another_order() {
    let wide = Wide::new();
    let w = gated_weight(&wide.device);
    wide.device
        .linear(&wide.x, &w, Epilogue::NONE, &mut wide.tensor());
}

#[test]
#[should_panic(expected = "has a weight that was made for another operation")]
fn a_gated_activation_without_its_weight() {
    let wide = Wide::new();
    let gated = Activation::SiluGated { gate_scale: 1.0 };
    wide.linear_activate(&weight(&wide.device), gated);
}

#[test]
#[should_panic(expected = "contract: copy writes over x, which it reads")]
fn an_output_over_an_input() {
    let wide = Wide::new();
    wide.device.copy(&wide.x, &mut wide.x.clone());
}
