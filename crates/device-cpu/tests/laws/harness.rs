//! Devices, numbers, tensors with contents, and sequences cut into steps in different ways.

use paceline_device::abi::{RequestRow, TokenRow};
use paceline_device::{Backend, Pending, RowOrder, Rows, StepLimits, StepTables, WeightData, WeightPart};
use paceline_device_cpu::{Cpu, CpuOptions, CpuTensor, CpuWeight, Instructions};
use paceline_types::{DType, on_state_grid};
use std::ops::Range;

/// Devices that must agree, the plainest first.
pub(crate) fn devices() -> Vec<(String, Cpu)> {
    let best = Instructions::detect();
    let one = Instructions::all().into_iter().map(|with| (1, with));
    one.chain([(2, best), (3, best), (3, Instructions::Portable)])
        .map(|(threads, instructions)| {
            let name = format!("{threads} threads, {}", instructions.name());
            (
                name,
                Cpu::new(CpuOptions {
                    threads,
                    instructions,
                }),
            )
        })
        .collect()
}

/// A row of numbers within ±`scale` that depends on its name alone.
pub(crate) fn numbers(name: (u64, usize, usize), len: usize, scale: f32) -> Vec<f32> {
    let mut state = name.0 ^ (name.1 as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    state ^= (name.2 as u64 + 1).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    (0..len)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let mixed = (state ^ (state >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            ((mixed >> 40) as f32 / 8_388_608.0 - 1.0) * scale
        })
        .collect()
}

/// `rows` rows of [`numbers`].
pub(crate) fn matrix(name: u64, rows: usize, columns: usize, scale: f32) -> Vec<f32> {
    (0..rows)
        .flat_map(|row| numbers((name, 0, row), columns, scale))
        .collect()
}

/// A row space with all its rows live.
pub(crate) fn live_rows(cpu: &Cpu, rows: usize) -> Rows<Cpu> {
    let space = Rows::new(cpu, rows).unwrap();
    cpu.write(&space.live, &[rows as i32]);
    space
}

/// An f32 weight.
pub(crate) fn weight(cpu: &Cpu, data: &[f32], columns: usize) -> CpuWeight {
    let bytes: Vec<u8> = data.iter().flat_map(|x| x.to_le_bytes()).collect();
    let part = WeightPart {
        name: "test",
        dtype: DType::F32,
        stored_rows: data.len() / columns,
        columns,
        data: WeightData::Stored(&bytes),
        order: RowOrder::Stored,
    };
    cpu.weight(&[part], None).unwrap()
}

/// A tensor over `rows` with these contents: the rows of an f32 table, looked up one by one.
pub(crate) fn tensor(cpu: &Cpu, rows: &Rows<Cpu>, data: &[f32], columns: usize) -> CpuTensor {
    let mut out = cpu.tensor(rows, columns).unwrap();
    if !data.is_empty() {
        let ids: Vec<TokenRow> = (0..rows.bucket as i32)
            .map(|id| token_of(id.min((data.len() / columns) as i32 - 1)))
            .collect();
        let step = step_of(cpu, &ids);
        cpu.embed(&step, &weight(cpu, data, columns), 1.0, &mut out);
    }
    out
}

/// A token row that is nothing but an id.
pub(crate) fn token_of(id: i32) -> TokenRow {
    TokenRow {
        id,
        ..TokenRow::default()
    }
}

/// Tables of a step that has these token rows and nothing else.
pub(crate) fn step_of(cpu: &Cpu, rows: &[TokenRow]) -> StepTables<Cpu> {
    let limits = StepLimits {
        tokens: rows.len(),
        requests: 1,
        samples: 1,
        blocks_per_request: 1,
        block_size: 16,
    };
    let step = StepTables::new(cpu, limits).unwrap();
    cpu.write(&step.tokens.live, &[rows.len() as i32]);
    cpu.write(&step.token_rows, rows);
    step
}

/// The words of numbers, or of structs of numbers.
pub(crate) fn bits<T: bytemuck::Pod>(values: &[T]) -> Vec<u32> {
    bytemuck::cast_slice(values).to_vec()
}

/// Fails at the first number that is further from the expected one than `tolerance`, relative to 1 or to it.
pub(crate) fn assert_close(what: &str, actual: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (index, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        let error = (f64::from(*actual) - expected).abs() / expected.abs().max(1.0);
        assert!(
            error <= tolerance,
            "{what}: element {index} is {actual}, not {expected}"
        );
    }
}

/// Some tokens of one request in one step.
#[derive(Clone)]
pub(crate) struct Chunk {
    pub(crate) request: usize,
    pub(crate) tokens: Range<usize>,
}

/// Steps, each with its chunks.
pub(crate) type Schedule = Vec<Vec<Chunk>>;

/// Ways to compute sequences of these lengths, all of which must give the same results.
pub(crate) fn schedules(lengths: &[usize]) -> Vec<(String, Schedule)> {
    let mut all = Vec::new();
    for size in [usize::MAX, 1, 7, 64] {
        let mut steps = Vec::new();
        for (request, length) in lengths.iter().enumerate() {
            let mut start = 0;
            while start < *length {
                let end = length.min(&start.saturating_add(size)).to_owned();
                steps.push(vec![Chunk {
                    request,
                    tokens: start..end,
                }]);
                start = end;
            }
        }
        all.push((format!("alone in chunks of {size}"), steps));
    }
    for (name, stride) in [("together", 9), ("together, long", 50)] {
        let mut done = vec![0; lengths.len()];
        let mut steps: Schedule = Vec::new();
        while done.iter().zip(lengths).any(|(done, length)| done < length) {
            let mut step = Vec::new();
            for offset in 0..lengths.len() {
                let request = (offset + steps.len()) % lengths.len();
                let size = 1 + (request * stride + steps.len() * 5) % (stride * 2);
                let tokens = done[request]..lengths[request].min(done[request] + size);
                if !tokens.is_empty() {
                    done[request] = tokens.end;
                    step.push(Chunk { request, tokens });
                }
            }
            steps.push(step);
        }
        all.push((name.to_owned(), steps));
    }
    all
}

/// Tables on a device and the step they currently describe.
pub(crate) struct Session {
    pub(crate) cpu: Cpu,
    pub(crate) tables: StepTables<Cpu>,
    requests: usize,
    chunks: Vec<Chunk>,
}

impl Session {
    pub(crate) fn new(cpu: &Cpu, lengths: &[usize], block_size: usize) -> Self {
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let limits = StepLimits {
            tokens: lengths.iter().sum(),
            requests: lengths.len(),
            samples: lengths.len(),
            blocks_per_request: longest.div_ceil(block_size),
            block_size,
        };
        Self {
            cpu: cpu.clone(),
            tables: StepTables::new(cpu, limits).unwrap(),
            requests: lengths.len(),
            chunks: Vec::new(),
        }
    }

    /// Blocks that all requests need together.
    pub(crate) fn blocks(&self) -> usize {
        self.requests * self.tables.limits.blocks_per_request
    }

    /// Writes the tables of a step. Blocks and states of requests are scattered.
    pub(crate) fn begin(&mut self, chunks: &[Chunk]) {
        self.chunks = chunks.to_vec();
        let per_request = self.tables.limits.blocks_per_request;
        let (mut token_rows, mut request_rows) = (Vec::new(), Vec::new());
        for (request, chunk) in chunks.iter().enumerate() {
            request_rows.push(RequestRow {
                first_token: token_rows.len() as i32,
                token_count: chunk.tokens.len() as i32,
                slot: (self.requests - 1 - chunk.request) as i32,
                state_at: on_state_grid(chunk.tokens.start) as i32,
                state_end: on_state_grid(chunk.tokens.end) as i32,
                ..RequestRow::default()
            });
            token_rows.extend(chunk.tokens.clone().map(|position| TokenRow {
                id: 0,
                position: position as i32,
                request: request as i32,
            }));
        }
        // The table has a row per slot, and slots run against requests.
        let blocks: Vec<i32> = (0..self.requests)
            .flat_map(|slot| {
                let request = self.requests - 1 - slot;
                (0..per_request).map(move |block| (per_request - 1 - block, request))
            })
            .map(|(block, request)| (block * self.requests + request) as i32)
            .collect();
        let (cpu, tables) = (&self.cpu, &self.tables);
        cpu.write(&tables.tokens.live, &[token_rows.len() as i32]);
        cpu.write(&tables.requests.live, &[chunks.len() as i32]);
        cpu.write(&tables.token_rows, &token_rows);
        cpu.write(&tables.request_rows, &request_rows);
        cpu.write(&tables.block_table, &blocks);
    }

    /// Request and position of every token row.
    pub(crate) fn token_rows(&self) -> Vec<(usize, usize)> {
        self.chunks
            .iter()
            .flat_map(|chunk| chunk.tokens.clone().map(move |token| (chunk.request, token)))
            .collect()
    }

    /// A tensor over the tokens of the step, each row named by its request and position.
    pub(crate) fn tensor(&self, name: u64, columns: usize, scale: f32) -> CpuTensor {
        let data: Vec<f32> = self
            .token_rows()
            .iter()
            .flat_map(|(request, token)| numbers((name, *request, *token), columns, scale))
            .collect();
        tensor(&self.cpu, &self.tables.tokens, &data, columns)
    }

    /// An empty tensor over the tokens of the step.
    pub(crate) fn empty(&self, columns: usize) -> CpuTensor {
        self.cpu.tensor(&self.tables.tokens, columns).unwrap()
    }
}

/// Runs `op` for every step of a schedule and returns the rows of each request in order.
pub(crate) fn run_schedule(
    session: &mut Session,
    schedule: &Schedule,
    mut op: impl FnMut(&Session) -> CpuTensor,
) -> Vec<Vec<f32>> {
    let mut results = vec![Vec::new(); session.requests];
    for step in schedule {
        session.begin(step);
        let out = op(session);
        let values = session.cpu.read_tensor(&out).wait().unwrap();
        let rows = session.token_rows();
        let columns = values.len() / rows.len();
        for ((request, _), row) in rows.iter().zip(values.chunks(columns)) {
            results[*request].extend_from_slice(row);
        }
    }
    results
}

/// Checks that an operation with a cache gives the same bits on every device and for every schedule, and returns
/// the result. `make` creates the caches and returns the operation.
pub(crate) fn sequence_law<F>(
    lengths: &[usize],
    block_sizes: &[usize],
    make: impl Fn(&Session) -> F,
) -> Vec<Vec<f32>>
where
    F: FnMut(&Session) -> CpuTensor,
{
    let mut expected: Option<Vec<Vec<f32>>> = None;
    for (device, cpu) in devices() {
        for block_size in block_sizes {
            for (name, schedule) in schedules(lengths) {
                let mut session = Session::new(&cpu, lengths, *block_size);
                let op = make(&session);
                let result = run_schedule(&mut session, &schedule, op);
                match &expected {
                    None => expected = Some(result),
                    Some(expected) => {
                        for (request, (expected, result)) in expected.iter().zip(&result).enumerate() {
                            assert!(
                                bits(expected) == bits(result),
                                "request {request} differs: {device}, {name}, blocks of {block_size}"
                            );
                        }
                    }
                }
            }
        }
    }
    expected.unwrap()
}
