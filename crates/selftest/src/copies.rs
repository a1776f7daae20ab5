//! Operations that only move numbers: to the last bit, but for weights that a device holds in another type.

use crate::compare::{Limit, Output, grain};
use crate::judge::{Case, Judge};
use crate::rig::Rig;
use crate::rows::{Input, Operands, Out, RowOperation, judge_rows};
use paceline_device::abi::LogitsRow;
use paceline_device::{Backend, DeviceError, RowOrder, Rows, WeightData, WeightPart};
use paceline_testkit::Matrix;
use paceline_types::DType;

pub(crate) fn judge<B: Backend>(judge: &mut Judge<'_, B>) {
    for dtype in DType::ALL {
        for scale in [1.0, 12.5] {
            // Weights of a few bits may be held in 16, and are rounded then.
            let (operation, limit) = if dtype == DType::F8E4M3 {
                ("embed f8_e4m3", Limit::Within(grain(DType::BF16) / 2.0))
            } else if dtype.is_quantised() {
                ("embed gguf", Limit::Within(grain(DType::BF16) / 2.0))
            } else {
                ("embed", Limit::Exact)
            };
            let embed = Embed {
                dtype,
                columns: 512,
                scale,
                limit,
            };
            judge.compare(operation, &format!("{dtype} times {scale}"), &embed);
        }
    }
    for store_as in [None, Some(DType::BF16), Some(DType::F16), Some(DType::F32)] {
        judge.compare(
            "embed",
            &format!("parts stored as {store_as:?}"),
            &Parts { store_as },
        );
    }
    for columns in [1, 45, 64, 2560] {
        judge_rows(judge, "copy", &format!("{columns} columns"), &Copy(columns));
        judge.compare("gather", &format!("{columns} columns"), &Gather { columns });
        judge.compare(
            "gather_sampled",
            &format!("{columns} columns"),
            &GatherSampled { columns },
        );
    }
    for (columns, wide) in [(80, 256), (96, 97), (1, 1), (41, 9001)] {
        let case = format!("{columns} columns over {wide}");
        judge.compare("spread", &case, &Spread { columns, wide });
    }
}

const VOCABULARY: usize = 300;

/// Rows of a table.
struct Embed {
    dtype: DType,
    columns: usize,
    scale: f32,
    limit: Limit,
}

impl Case for Embed {
    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<Vec<Output>, DeviceError> {
        let table = rig.weight("table", Matrix::new(self.dtype, VOCABULARY, self.columns))?;
        embed_all(rig, &table, (VOCABULARY, self.columns), (self.scale, self.limit))
    }
}

/// All rows of a table, in a random order.
fn embed_all<B: Backend>(
    rig: &Rig<'_, B>,
    table: &B::Weight,
    (rows, columns): (usize, usize),
    (scale, limit): (f32, Limit),
) -> Result<Vec<Output>, DeviceError> {
    let step = rig.token_tables(512)?;
    let out = rig.device.tensor(&step.tokens, columns)?;
    let program = rig.program(|device| device.embed(&step, table, scale, &mut out.clone()));
    let mut random = rig.random("ids");
    let mut outputs = Vec::new();
    for (launch, count) in [1, 300, 17].into_iter().enumerate() {
        let mut ids: Vec<usize> = (0..count).map(|_| random.below(rows)).collect();
        ids[0] = rows - 1;
        rig.write_ids(&step, ids);
        program.launch();
        outputs.push(rig.output(&format!("launch {launch}"), &out, limit)?);
    }
    Ok(outputs)
}

/// A table of several parts, one of them picked in an order of its own, converted when it is packed.
struct Parts {
    store_as: Option<DType>,
}

impl Case for Parts {
    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<Vec<Output>, DeviceError> {
        let columns = 256;
        let types = [DType::F32, DType::F32, DType::BF16, DType::Q4K, DType::F16];
        let mut random = rig.random("parts");
        let data: Vec<Vec<u8>> = types
            .iter()
            .map(|dtype| Matrix::new(*dtype, 40, columns).stored(&mut random))
            .collect();
        let picked: Vec<u32> = (0..30).map(|_| random.below(40) as u32).collect();
        let parts: Vec<WeightPart<'_>> = types
            .iter()
            .zip(&data)
            .enumerate()
            .map(|(index, (dtype, data))| WeightPart {
                name: "part",
                dtype: *dtype,
                stored_rows: 40,
                columns,
                data: WeightData::Stored(data),
                order: if index % 2 == 1 {
                    RowOrder::Picked(picked.clone())
                } else {
                    RowOrder::Stored
                },
            })
            .collect();
        let rows = parts.iter().map(WeightPart::rows).sum();
        let table = rig.device.weight(&parts, self.store_as)?;
        embed_all(rig, &table, (rows, columns), (1.0, Limit::Exact))
    }
}

struct Copy(usize);

impl RowOperation for Copy {
    fn inputs(&self) -> Vec<Input> {
        vec![Input::new(self.0, 2.0)]
    }

    fn outs(&self) -> Vec<Out> {
        vec![Out::Tensor(self.0, Limit::Exact)]
    }

    fn enqueue<B: Backend>(&self, device: &B, operands: &Operands<B>) {
        device.copy(&operands.inputs[0], &mut operands.outs[0].clone());
    }
}

const TOKENS: usize = 40;

/// Rows of a tensor at an index of another row space.
struct Gather {
    columns: usize,
}

impl Case for Gather {
    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<Vec<Output>, DeviceError> {
        let step = rig.token_tables(64)?;
        let rows = Rows::new(rig.device, 96)?;
        let table = rig.inputs("x", (TOKENS, self.columns), (2.0, false))?;
        let x = rig.device.tensor(&step.tokens, self.columns)?;
        let out = rig.device.tensor(&rows, self.columns)?;
        let index = rig.device.buffer::<i32>(96)?;
        let program = rig.program(|device| {
            device.embed(&step, &table, 1.0, &mut x.clone());
            device.gather(&x, &index, &mut out.clone());
        });
        rig.write_ids(&step, 0..TOKENS);
        let mut random = rig.random("index");
        let mut outputs = Vec::new();
        for count in [90, 1, 33] {
            let places: Vec<i32> = (0..count).map(|_| random.below(TOKENS) as i32).collect();
            rig.device.write(&index, &places);
            rig.device.write(&rows.live, &[count]);
            program.launch();
            outputs.push(rig.output(&format!("{count} rows"), &out, Limit::Exact)?);
        }
        Ok(outputs)
    }
}

/// The rows that rows of logits come from.
struct GatherSampled {
    columns: usize,
}

impl Case for GatherSampled {
    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<Vec<Output>, DeviceError> {
        let step = rig.token_tables(64)?;
        let table = rig.inputs("x", (TOKENS, self.columns), (2.0, false))?;
        let x = rig.device.tensor(&step.tokens, self.columns)?;
        let out = rig.device.tensor(&step.samples, self.columns)?;
        let program = rig.program(|device| {
            device.embed(&step, &table, 1.0, &mut x.clone());
            device.gather_sampled(&x, &step, &mut out.clone());
        });
        rig.write_ids(&step, (0..TOKENS).rev());
        let mut random = rig.random("rows of logits");
        let mut outputs = Vec::new();
        for count in [30, 1, 0] {
            let rows: Vec<LogitsRow> = (0..count)
                .map(|_| LogitsRow {
                    token: random.below(TOKENS) as i32,
                    ..LogitsRow::default()
                })
                .collect();
            rig.device.write(&step.logits_rows, &rows);
            rig.device.write(&step.samples.live, &[count]);
            program.launch();
            outputs.push(rig.output(&format!("{count} rows"), &out, Limit::Exact)?);
        }
        Ok(outputs)
    }
}

/// Columns that go elsewhere.
struct Spread {
    columns: usize,
    wide: usize,
}

impl Case for Spread {
    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<Vec<Output>, DeviceError> {
        let step = rig.token_tables(16)?;
        let table = rig.inputs("x", (13, self.columns), (2.0, false))?;
        let x = rig.device.tensor(&step.tokens, self.columns)?;
        let out = rig.device.tensor(&step.tokens, self.wide)?;
        let mut places: Vec<i32> = (0..self.wide as i32).collect();
        let mut random = rig.random("columns");
        for index in 0..self.columns {
            let other = index + random.below(self.wide - index);
            places.swap(index, other);
        }
        let columns = rig.device.buffer_from(&places[..self.columns])?;
        let program = rig.program(|device| {
            device.embed(&step, &table, 1.0, &mut x.clone());
            device.spread(&x, &columns, &mut out.clone());
        });
        rig.write_ids(&step, 0..13);
        program.launch();
        Ok(vec![rig.output("out", &out, Limit::Exact)?])
    }
}
