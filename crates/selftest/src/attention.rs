//! Attention: rotation, keys and values into blocks, and what is read from there.

use crate::compare::{Limit, Output, grain};
use crate::judge::{Case, Judge};
use crate::rig::{Rig, within};
use crate::sequence::{Cut, Session, Texts};
use paceline_device::abi::TokenRow;
use paceline_device::{Attention, Backend, DeviceError, ElementTypes, HeadNorms, KeyValueStore, KvShape};
use paceline_types::DType;

/// Other sums and exponentials.
const TOLERANCE: f64 = 2e-5;

pub(crate) fn judge<B: Backend>(judge: &mut Judge<'_, B>) {
    for (frequencies, factor) in [(8, 1.0), (32, 1.0), (64, 1.3), (5, 0.7)] {
        let case = format!("{frequencies} frequencies times {factor}");
        judge.compare("rope_angles", &case, &Angles { frequencies, factor });
    }
    for kv in [DType::BF16, DType::F32] {
        if judge.store_kv_as(kv) {
            layers(judge, kv);
        }
    }
}

/// Every shape with keys and values stored in a type.
fn layers<B: Backend>(judge: &mut Judge<'_, B>, kv: DType) {
    let operation = format!("store_kv, attention {}", kv.name().to_lowercase());
    for shape in SHAPES {
        let limit = limit(judge.elements(), shape.heads * shape.head_dim);
        let brief = shape.is_large() && !judge.is_whole();
        // Across 512 positions where that does not take long.
        let long = if brief { 50 } else { 530 };
        let layer = |lengths: &[usize], block_size, cut| Layer {
            shape,
            limit,
            texts: Texts {
                lengths: lengths.to_vec(),
                drafts: 5,
                block_size,
                cut,
            },
        };
        for block_size in [8, 16, 32] {
            let last = if block_size == 16 { long } else { 50 };
            let mixed = layer(&[70, 33, last, 1], block_size, Cut::Mixed(block_size as u64));
            let case = format!("{}, blocks of {block_size}", shape.name());
            judge.compare(&operation, &case, &mixed);
        }
        let cuts = [
            (Cut::Alone(usize::MAX), 16),
            (Cut::Alone(1), 16),
            (Cut::Mixed(1), 32),
            (Cut::Mixed(2), 16),
            (Cut::Mixed(3), 8),
            (Cut::Alone(64), 16),
            (Cut::Alone(7), 8),
        ];
        let variants = cuts.into_iter().take(if brief { 3 } else { cuts.len() });
        let variants = variants.map(|(cut, block_size)| {
            let name = format!("{}, blocks of {block_size}", cut.name());
            (name, RightOnly(layer(&[20, long], block_size, cut)))
        });
        judge.law(&operation, &shape.name(), variants);
        if shape.heads == 2 {
            // So many keys that a device may take them in parts beside many others, too.
            let cuts = [Cut::Alone(usize::MAX), Cut::Alone(7), Cut::Mixed(1)];
            let variants = cuts.map(|cut| (cut.name(), RightOnly(layer(&[20, 2700], 16, cut))));
            judge.law(&operation, "a long text", variants);
        }
    }
}

/// What attention may be off by, for rows of `columns` elements. Keys and values that are stored in 16 bits are rounded to
/// them, and queries and weights may be: some thousandths of a row, which is less than one key of a thousand makes.
pub(crate) fn limit(elements: ElementTypes, columns: usize) -> Limit {
    match elements.kv {
        DType::F32 => within(TOLERANCE, elements.activations),
        _ => Limit::Rows {
            columns,
            tolerance: 2.0 * grain(DType::BF16),
        },
    }
}

#[derive(Clone, Copy)]
struct Shape {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    /// Pairs that are rotated; 0 for a layer without positions.
    rotated: usize,
    norms: bool,
    gate: bool,
}

impl Shape {
    const fn new(heads: usize, kv_heads: usize, head_dim: usize, rotated: usize) -> Self {
        Self {
            heads,
            kv_heads,
            head_dim,
            rotated,
            norms: false,
            gate: false,
        }
    }

    const fn normed(self) -> Self {
        Self { norms: true, ..self }
    }

    const fn gated(self) -> Self {
        Self { gate: true, ..self }
    }

    /// Takes a CPU long.
    fn is_large(self) -> bool {
        self.heads * self.head_dim > 512
    }

    fn name(self) -> String {
        let Self {
            heads,
            kv_heads,
            head_dim,
            rotated,
            norms,
            gate,
        } = self;
        let mut name = format!("{heads}/{kv_heads} heads of {head_dim}, {rotated} pairs rotated");
        for (is, what) in [(norms, ", normed"), (gate, ", gated")] {
            name.push_str(if is { what } else { "" });
        }
        name
    }
}

/// The reference models', those of Qwen3.5-4B and Nemotron-H, and groups of every size.
const SHAPES: [Shape; 11] = [
    Shape::new(4, 2, 16, 8),
    Shape::new(4, 2, 32, 4).normed().gated(),
    Shape::new(4, 2, 32, 16).normed(),
    Shape::new(16, 4, 256, 32).normed().gated(),
    Shape::new(32, 8, 128, 0),
    Shape::new(2, 2, 64, 32),
    Shape::new(3, 1, 96, 48),
    Shape::new(5, 1, 64, 32),
    Shape::new(6, 1, 128, 64).normed(),
    Shape::new(7, 1, 128, 64),
    Shape::new(8, 1, 256, 128),
];

/// Rotation, store and attention of some texts.
struct Layer {
    shape: Shape,
    texts: Texts,
    limit: Limit,
}

impl Case for Layer {
    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<Vec<Output>, DeviceError> {
        let Shape {
            heads,
            kv_heads,
            head_dim,
            rotated,
            norms,
            gate,
        } = self.shape;
        let (device, eps) = (rig.device, 1e-6);
        let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
        let session = Session::new(rig, &self.texts, (2 * queries + 2 * keys, 2.0))?;
        let [q, k, v, gates] = session.columns([queries, keys, keys, queries]);
        let tables = &session.tables;
        let cache = device.kv_cache(KvShape {
            blocks: self.texts.blocks(),
            block_size: self.texts.block_size,
            heads: kv_heads,
            head_dim,
        })?;
        let weights = [
            rig.buffer("q norm", head_dim, 1.5)?,
            rig.buffer("k norm", head_dim, 1.5)?,
        ];
        let frequencies = device.buffer_from(&falling(rotated.max(1)))?;
        let angles = device.tensor(&tables.tokens, 2 * rotated.max(1))?;
        let out = device.tensor(&tables.tokens, queries)?;
        let program = rig.program(|device| {
            session.fill(device);
            device.rope_angles(tables, &frequencies, 1.0, &mut angles.clone());
            device.store_kv(KeyValueStore {
                q: &mut q.clone(),
                k: &k,
                v: &v,
                norms: norms.then_some(HeadNorms {
                    q: &weights[0],
                    k: &weights[1],
                    eps,
                }),
                angles: (rotated > 0).then_some(&angles),
                cache: &cache,
                step: tables,
            });
            device.attention(Attention {
                q: &q,
                gate: gate.then_some(&gates),
                cache: &cache,
                scale: 1.0 / (head_dim as f32).sqrt(),
                out: &mut out.clone(),
                step: tables,
            });
        });
        session.run(&program, &out, self.limit)
    }
}

/// A case without what it made of wrong drafts.
pub(crate) struct RightOnly<C>(pub(crate) C);

impl<C: Case> Case for RightOnly<C> {
    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<Vec<Output>, DeviceError> {
        let mut outputs = self.0.run(rig)?;
        outputs.truncate(1);
        Ok(outputs)
    }
}

/// Frequencies as models have them.
fn falling(count: usize) -> Vec<f32> {
    (0..count)
        .map(|index| 10_000_f32.powf(-(index as f32) / count as f32))
        .collect()
}

/// Cosines and sines of positions near and far.
struct Angles {
    frequencies: usize,
    factor: f32,
}

impl Case for Angles {
    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<Vec<Output>, DeviceError> {
        let step = rig.token_tables(128)?;
        let frequencies = rig.device.buffer_from(&falling(self.frequencies))?;
        let out = rig.device.tensor(&step.tokens, 2 * self.frequencies)?;
        let program =
            rig.program(|device| device.rope_angles(&step, &frequencies, self.factor, &mut out.clone()));
        let mut random = rig.random("positions");
        let rows: Vec<TokenRow> = (0..100)
            .map(|row| TokenRow {
                position: match row {
                    0..20 => row,
                    20..60 => random.below(4096) as i32,
                    _ => random.below(262_144) as i32,
                },
                ..TokenRow::default()
            })
            .collect();
        rig.device.write(&step.token_rows, &rows);
        rig.device.write(&step.tokens.live, &[rows.len() as i32]);
        program.launch();
        Ok(vec![rig.output(
            "out",
            &out,
            within(2e-6, rig.elements.activations),
        )?])
    }
}
