//! Sequences cut into steps in different ways: chunks of a prompt, windows whose drafts hold in part, looks ahead that
//! leave no trace, and states that are saved and restored elsewhere. Whatever the cut, a right token has one result.

use crate::compare::{Limit, Output};
use crate::rig::{Launcher, Rig};
use paceline_device::abi::{RequestRow, TokenRow};
use paceline_device::{Backend, DeviceError, Pending, StepLimits, StepTables};
use paceline_testkit::Random;
use paceline_types::{STATE_GRID, on_state_grid};
use std::collections::BTreeMap;

/// Rows of the table that inputs come from. A prime, so that what repeats does not repeat with blocks or tiles.
const INPUTS: usize = 251;

/// Some tokens of one request in one step.
#[derive(Clone, Debug, Default)]
struct Piece {
    request: usize,
    slot: usize,
    start: usize,
    /// Tokens that are certain; drafts follow.
    certain: usize,
    /// Whether each draft is the right token.
    drafts: Vec<bool>,
    state_at: usize,
    /// A position, and the snapshot that its state goes to.
    snapshot: Option<(usize, usize)>,
    restore: Option<usize>,
    /// The state stays where it is.
    ahead: bool,
}

impl Piece {
    fn len(&self) -> usize {
        self.certain + self.drafts.len()
    }

    fn state_end(&self) -> usize {
        if self.ahead {
            self.state_at
        } else {
            on_state_grid(self.start + self.certain)
        }
    }

    /// Whether each token is the right one, with nothing but right ones before it.
    fn right(&self) -> impl Iterator<Item = bool> {
        let drafts = self.drafts.iter().scan(true, |right, draft| {
            *right &= draft;
            Some(*right)
        });
        std::iter::repeat_n(true, self.certain).chain(drafts)
    }
}

/// How sequences are cut.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cut {
    /// One request after the other, in chunks of this many tokens.
    Alone(usize),
    /// All of them together, in every way there is, by this number.
    Mixed(u64),
}

impl Cut {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Alone(usize::MAX) => "each in one piece".to_owned(),
            Self::Alone(size) => format!("each in chunks of {size}"),
            Self::Mixed(seed) => format!("mixed up {seed}"),
        }
    }
}

/// Requests and how they are run.
#[derive(Clone, Debug)]
pub(crate) struct Texts {
    pub(crate) lengths: Vec<usize>,
    /// Most drafts of a window.
    pub(crate) drafts: usize,
    pub(crate) block_size: usize,
    pub(crate) cut: Cut,
}

impl Texts {
    /// Slots: two for each request, so that it can go on in the other.
    pub(crate) fn slots(&self) -> usize {
        2 * self.lengths.len()
    }

    /// Snapshots: two for each request, so that it can be saved while it starts from the other.
    pub(crate) fn snapshots(&self) -> usize {
        2 * self.lengths.len()
    }

    fn blocks_per_request(&self) -> usize {
        let longest = self.lengths.iter().max().copied().unwrap_or(0);
        (longest + self.drafts + 1).div_ceil(self.block_size)
    }

    /// Blocks of all requests together.
    pub(crate) fn blocks(&self) -> usize {
        self.lengths.len() * self.blocks_per_request()
    }

    fn steps(&self) -> Vec<Vec<Piece>> {
        match self.cut {
            Cut::Alone(size) => self.alone(size),
            Cut::Mixed(seed) => Mixer::new(self, seed).mix(),
        }
    }

    fn alone(&self, size: usize) -> Vec<Vec<Piece>> {
        let mut steps = Vec::new();
        for (request, length) in self.lengths.iter().enumerate() {
            let mut start = 0;
            while start < *length {
                let certain = size.min(length - start);
                steps.push(vec![Piece {
                    request,
                    slot: request,
                    start,
                    certain,
                    state_at: on_state_grid(start),
                    ..Piece::default()
                }]);
                start += certain;
            }
        }
        steps
    }
}

/// Where a request is.
#[derive(Clone, Debug)]
struct Progress {
    position: usize,
    slot: usize,
    state_at: usize,
    /// A position, and the snapshot that holds its state.
    saved: Option<(usize, usize)>,
    moved: bool,
}

/// Cuts all requests at random.
struct Mixer<'a> {
    texts: &'a Texts,
    random: Random,
    progress: Vec<Progress>,
}

impl<'a> Mixer<'a> {
    fn new(texts: &'a Texts, seed: u64) -> Self {
        let requests = texts.lengths.len();
        let progress = (0..requests).map(|request| Progress {
            position: 0,
            slot: 2 * requests - 1 - request,
            state_at: 0,
            saved: None,
            moved: false,
        });
        Self {
            texts,
            random: Random::new(seed, "cut"),
            progress: progress.collect(),
        }
    }

    fn mix(mut self) -> Vec<Vec<Piece>> {
        let mut steps = Vec::new();
        loop {
            let left = |(progress, length): (&Progress, &usize)| progress.position < *length;
            if !self.progress.iter().zip(&self.texts.lengths).any(left) {
                return steps;
            }
            let first = self.random.below(self.progress.len());
            let mut step = Vec::new();
            for offset in 0..self.progress.len() {
                let request = (first + offset) % self.progress.len();
                if !self.random.once_in(4) {
                    step.extend(self.piece(request));
                }
            }
            steps.push(step);
            if self.texts.drafts > 0 && self.random.once_in(3) {
                let request = self.random.below(self.progress.len());
                steps.extend(self.look_ahead(request));
            }
        }
    }

    /// The next piece of a request, and what becomes of it.
    fn piece(&mut self, request: usize) -> Option<Piece> {
        let (random, progress) = (&mut self.random, &mut self.progress[request]);
        let length = self.texts.lengths[request];
        let mut restore = None;
        if let Some((saved, snapshot)) = progress.saved
            && !progress.moved
            && random.once_in(3)
        {
            // It is sent to its other slot, and goes on from its snapshot.
            (progress.position, progress.state_at) = (saved, saved);
            (progress.slot, progress.moved) = (request, true);
            restore = Some(snapshot);
        }
        let left = length - progress.position;
        if left == 0 {
            return None;
        }
        let mut piece = Piece {
            request,
            slot: progress.slot,
            start: progress.position,
            certain: 1,
            state_at: progress.state_at,
            restore,
            ..Piece::default()
        };
        let mut held = 0;
        if restore.is_some() || random.once_in(3) {
            let most = if random.once_in(3) { 200 } else { 20 };
            piece.certain = left.min(1 + random.below(most));
        } else {
            let window = random.below(self.texts.drafts + 1).min(left - 1);
            held = random.below(window + 1);
            piece.drafts = (0..window).map(|place| place < held).collect();
        }
        let passed = (piece.state_end() - piece.state_at) / STATE_GRID;
        if passed > 0 && random.once_in(2) {
            let at = piece.state_at + STATE_GRID * (1 + random.below(passed));
            let held = progress.saved.map(|(_, snapshot)| snapshot);
            let snapshot = if held == Some(request) {
                request + self.texts.lengths.len()
            } else {
                request
            };
            piece.snapshot = Some((at, snapshot));
            progress.saved = Some((at, snapshot));
        }
        progress.position += piece.certain + held;
        progress.state_at = piece.state_end();
        Some(piece)
    }

    /// One token after the other behind what is certain, as a draft model does between steps: the newest, then drafts.
    fn look_ahead(&mut self, request: usize) -> Vec<Vec<Piece>> {
        let progress = &self.progress[request];
        let left = self.texts.lengths[request] - progress.position;
        let places = self.texts.drafts.min(left).min(3);
        let astray = self.random.below(places + 1).max(1);
        (0..places)
            .map(|place| {
                vec![Piece {
                    request,
                    slot: progress.slot,
                    start: progress.position + place,
                    drafts: vec![place < astray],
                    state_at: progress.state_at,
                    ahead: true,
                    ..Piece::default()
                }]
            })
            .collect()
    }
}

/// Tables on a device for the steps of some texts.
pub(crate) struct Session<'a, B: Backend> {
    rig: &'a Rig<'a, B>,
    steps: Vec<Vec<Piece>>,
    drafts: usize,
    pub(crate) tables: StepTables<B>,
    table: B::Weight,
    /// A row per token.
    pub(crate) x: B::Tensor,
}

/// The results of right tokens, by request and position.
type Results = BTreeMap<(usize, usize), Vec<f32>>;

impl<'a, B: Backend> Session<'a, B> {
    /// Texts whose tokens are `columns` numbers within ±`scale` each.
    pub(crate) fn new(
        rig: &'a Rig<'a, B>,
        texts: &Texts,
        (columns, scale): (usize, f32),
    ) -> Result<Self, DeviceError> {
        Self::with(rig, texts, (columns, scale, false))
    }

    /// The same with numbers that products of 16-bit weights take as they are.
    pub(crate) fn coarse(
        rig: &'a Rig<'a, B>,
        texts: &Texts,
        (columns, scale): (usize, f32),
    ) -> Result<Self, DeviceError> {
        Self::with(rig, texts, (columns, scale, true))
    }

    fn with(
        rig: &'a Rig<'a, B>,
        texts: &Texts,
        (columns, scale, coarse): (usize, f32, bool),
    ) -> Result<Self, DeviceError> {
        let steps = texts.steps();
        let tokens = |step: &Vec<Piece>| step.iter().map(Piece::len).sum::<usize>();
        let most = steps.iter().map(tokens).max().unwrap_or(1);
        let limits = StepLimits {
            tokens: most.max(1).next_power_of_two(),
            requests: texts.slots(),
            samples: 1,
            blocks_per_request: texts.blocks_per_request(),
            block_size: texts.block_size,
        };
        let tables = StepTables::new(rig.device, limits)?;
        rig.device.write(&tables.block_table, &block_table(texts));
        Ok(Self {
            table: rig.inputs("tokens", (INPUTS, columns), (scale, coarse))?,
            x: rig.device.tensor(&tables.tokens, columns)?,
            rig,
            steps,
            drafts: texts.drafts,
            tables,
        })
    }

    /// Enqueues the tokens' numbers; what every program begins with.
    pub(crate) fn fill(&self, device: &B) {
        device.embed(&self.tables, &self.table, 1.0, &mut self.x.clone());
    }

    /// Consecutive ranges of the tokens' columns.
    pub(crate) fn columns<const N: usize>(&self, widths: [usize; N]) -> [B::Tensor; N] {
        columns_of(self.rig.device, &self.x, widths)
    }

    /// Runs all steps and returns the results of right tokens, then those of wrong ones.
    pub(crate) fn run<F: Fn(&B)>(
        &self,
        program: &Launcher<'_, B, F>,
        out: &B::Tensor,
        limit: Limit,
    ) -> Result<Vec<Output>, DeviceError> {
        self.run_apart([program, program], out, limit)
    }

    /// The same with a program for any step, and one for those in which no request has more than a token and drafts.
    pub(crate) fn run_apart<F: Fn(&B)>(
        &self,
        [any, windows]: [&Launcher<'_, B, F>; 2],
        out: &B::Tensor,
        limit: Limit,
    ) -> Result<Vec<Output>, DeviceError> {
        let (mut right, mut wrong) = (Results::new(), Vec::new());
        for (number, step) in self.steps.iter().enumerate() {
            self.write(number, step);
            let prompts = step.iter().any(|piece| piece.len() > 1 + self.drafts);
            if prompts { any } else { windows }.launch();
            let numbers = self.rig.device.read_tensor(out).wait()?;
            let tokens: usize = step.iter().map(Piece::len).sum();
            let columns = numbers.len().checked_div(tokens).unwrap_or(1).max(1);
            let mut rows = numbers.chunks(columns);
            for piece in step {
                for (offset, is_right) in piece.right().enumerate() {
                    let row = rows.next().unwrap_or_default().to_vec();
                    if is_right {
                        keep(&mut right, (piece.request, piece.start + offset), row)?;
                    } else {
                        wrong.extend(row);
                    }
                }
            }
        }
        let right: Vec<f32> = right.into_values().flatten().collect();
        let mut outputs = vec![Output::numbers("out", right, limit)];
        if !wrong.is_empty() {
            outputs.push(Output::numbers("out of wrong drafts", wrong, limit));
        }
        Ok(outputs)
    }

    /// Makes the tables those of a step.
    fn write(&self, number: usize, step: &[Piece]) {
        let (mut token_rows, mut request_rows) = (Vec::new(), Vec::new());
        for (request, piece) in step.iter().enumerate() {
            let (snapshot_at, snapshot) = piece.snapshot.unwrap_or_default();
            request_rows.push(RequestRow {
                first_token: token_rows.len() as i32,
                token_count: piece.len() as i32,
                slot: piece.slot as i32,
                drafts: piece.drafts.len() as i32,
                state_at: piece.state_at as i32,
                state_end: piece.state_end() as i32,
                snapshot_at: snapshot_at as i32,
                snapshot: snapshot as i32,
                restore: piece.restore.map_or(0, |id| id as i32 + 1),
            });
            token_rows.extend(piece.right().enumerate().map(|(offset, right)| {
                let position = piece.start + offset;
                let lie = if right { 0 } else { 1 + number };
                TokenRow {
                    id: input(piece.request, position, lie) as i32,
                    position: position as i32,
                    request: request as i32,
                }
            }));
        }
        let (device, tables) = (self.rig.device, &self.tables);
        device.write(&tables.tokens.live, &[token_rows.len() as i32]);
        device.write(&tables.requests.live, &[request_rows.len() as i32]);
        device.write(&tables.token_rows, &token_rows);
        device.write(&tables.request_rows, &request_rows);
    }
}

/// A token that is computed again has the same result.
fn keep(results: &mut Results, at: (usize, usize), row: Vec<f32>) -> Result<(), DeviceError> {
    let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
    match results.get(&at) {
        Some(before) if bits(before) != bits(&row) => {
            let column = before
                .iter()
                .zip(&row)
                .position(|(a, b)| a.to_bits() != b.to_bits());
            let column = column.unwrap_or(0);
            let (request, position) = at;
            Err(DeviceError::Failed(format!(
                "request {request}, position {position}, column {column} was {} and is {} when it is computed again",
                before[column], row[column]
            )))
        }
        _ => {
            results.insert(at, row);
            Ok(())
        }
    }
}

/// The row of inputs that stands for a token.
fn input(request: usize, position: usize, lie: usize) -> usize {
    let name = (request * 8191 + position) as u64 ^ ((lie as u64) << 40);
    Random::new(name, "input").below(INPUTS)
}

/// Blocks of requests, scattered; both slots of a request see the same.
fn block_table(texts: &Texts) -> Vec<i32> {
    let requests = texts.lengths.len();
    let per_request = texts.blocks_per_request();
    (0..texts.slots())
        .flat_map(|slot| {
            let request = if slot < requests {
                slot
            } else {
                2 * requests - 1 - slot
            };
            (0..per_request).map(move |block| ((per_request - 1 - block) * requests + request) as i32)
        })
        .collect()
}

/// Consecutive ranges of a tensor's columns.
pub(crate) fn columns_of<B: Backend, const N: usize>(
    device: &B,
    x: &B::Tensor,
    widths: [usize; N],
) -> [B::Tensor; N] {
    let mut end = 0;
    widths.map(|width| {
        end += width;
        device.columns(x, end - width..end)
    })
}
