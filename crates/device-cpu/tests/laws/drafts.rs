//! Recurrent layers under speculation: verify windows with every number of drafts that hold, snapshots at every
//! grid position, states restored elsewhere, rows that look ahead in between. All must give the bits of plain decoding.

use crate::harness::{bits, devices, numbers, tensor};
use paceline_device::abi::{RequestRow, TokenRow};
use paceline_device::{
    Backend, CausalConv, DeltaRule, HeadMap, Pending, StateShape, StateSpace, StepLimits, StepTables,
};
use paceline_device_cpu::{Cpu, CpuBuffer, CpuTensor};
use paceline_types::on_state_grid;

const CHANNELS: usize = 300;
const HEADS: usize = 4;
/// Key heads of the delta rule, groups of the state space.
const GROUPS: usize = 2;
const ROWS: usize = 21;
const COLUMNS: usize = 44;

const KINDS: [Kind; 5] = [
    Kind::Conv(4),
    Kind::Conv(2),
    Kind::Conv(1),
    Kind::Delta,
    Kind::Space,
];

#[derive(Clone, Copy, Debug)]
enum Kind {
    Conv(usize),
    Delta,
    Space,
}

/// A request's part of a step.
#[derive(Clone, Default)]
struct Row {
    request: usize,
    slot: usize,
    start: usize,
    certain: usize,
    /// Whether each draft is the right token.
    drafts: Vec<bool>,
    /// Where the state stands.
    state_at: usize,
    /// A position, and the snapshot that its state goes to.
    snapshot: Option<(usize, usize)>,
    restore: Option<usize>,
    /// Leaves the state where it is: all tokens are drafts.
    ahead: bool,
    /// The certain tokens are wrong too, as those of a text that looking ahead led to.
    astray: bool,
}

impl Row {
    fn len(&self) -> usize {
        self.certain + self.drafts.len()
    }

    /// Where the state is left: at the last grid position that the certain tokens reach.
    fn state_end(&self) -> usize {
        if self.ahead || self.len() == 0 {
            self.state_at
        } else {
            on_state_grid(self.start + self.certain)
        }
    }

    /// A snapshot of the last grid position that this row passes.
    fn save_to(&mut self, snapshot: usize) -> bool {
        let passes = self.state_end() > self.state_at;
        self.snapshot = passes.then(|| (self.state_end(), snapshot));
        passes
    }

    /// The row of the next step if `held` drafts hold, with tokens yet to be set.
    fn next(&self, held: usize) -> Self {
        Self {
            request: self.request,
            slot: self.slot,
            start: self.start + self.certain + held,
            certain: 1,
            state_at: self.state_end(),
            ..Self::default()
        }
    }
}

/// A layer on a device.
struct Layer {
    kind: Kind,
    cpu: Cpu,
    cache: <Cpu as Backend>::StateCache,
    parameters: Vec<CpuBuffer<f32>>,
}

impl Layer {
    fn new(cpu: &Cpu, kind: Kind, slots: usize, (drafts, snapshots): (usize, usize)) -> Self {
        let (conv_channels, conv_width, heads) = match kind {
            Kind::Conv(width) => (CHANNELS, width, 0),
            Kind::Delta | Kind::Space => (0, 1, HEADS),
        };
        let shape = StateShape {
            slots,
            conv_channels,
            conv_width,
            heads,
            groups: GROUPS.min(heads),
            rows: ROWS,
            columns: COLUMNS,
            drafts,
            snapshots,
        };
        let parameters = match kind {
            Kind::Conv(width) => vec![
                numbers((20, 0, 0), CHANNELS * width, 1.0),
                numbers((21, 0, 0), CHANNELS, 1.0),
            ],
            Kind::Delta | Kind::Space => {
                let decay = numbers((30, 0, 0), HEADS, 1.0);
                vec![
                    decay.iter().map(|x| -x.exp()).collect(),
                    numbers((31, 0, 0), HEADS, 1.0),
                    numbers((32, 0, 0), HEADS, 1.0),
                ]
            }
        };
        Self {
            kind,
            cpu: cpu.clone(),
            cache: cpu.state_cache(shape).unwrap(),
            parameters: parameters
                .iter()
                .map(|data| cpu.buffer_from(data).unwrap())
                .collect(),
        }
    }

    /// Runs a step and returns the outputs of each row's tokens.
    fn step(&self, rows: &[Row]) -> Vec<Vec<Vec<f32>>> {
        if rows.is_empty() {
            return Vec::new();
        }
        let cpu = &self.cpu;
        let tables = tables(cpu, rows);
        let input = |name: u64, columns: usize| {
            let mut data = Vec::new();
            for row in rows {
                for token in 0..row.len() {
                    let wrong = match token.checked_sub(row.certain) {
                        Some(draft) => !row.drafts[draft],
                        None => row.astray,
                    };
                    // What is wrong ahead differs from what was wrong in the window, whose place it takes.
                    let other = wrong && (row.ahead || row.astray);
                    let name = name + 100 * u64::from(wrong) + 100 * u64::from(other);
                    data.extend(numbers((name, row.request, row.start + token), columns, 2.0));
                }
            }
            tensor(cpu, &tables.tokens, &data, columns)
        };
        let out = self.run(&tables, &input);
        let values = cpu.read_tensor(&out).wait().unwrap();
        let columns = values.len() / rows.iter().map(Row::len).sum::<usize>();
        let mut outputs = values.chunks(columns).map(<[f32]>::to_vec);
        rows.iter()
            .map(|row| outputs.by_ref().take(row.len()).collect())
            .collect()
    }

    fn run(&self, step: &StepTables<Cpu>, input: &dyn Fn(u64, usize) -> CpuTensor) -> CpuTensor {
        let (cpu, cache, parameters) = (&self.cpu, &self.cache, &self.parameters);
        let empty = |columns| cpu.tensor(&step.tokens, columns).unwrap();
        match self.kind {
            Kind::Conv(_) => {
                let mut out = empty(CHANNELS);
                cpu.causal_conv(CausalConv {
                    x: &input(1, CHANNELS),
                    weight: &parameters[0],
                    bias: Some(&parameters[1]),
                    cache,
                    out: &mut out,
                    step,
                });
                out
            }
            Kind::Delta => {
                let mut out = empty(HEADS * COLUMNS);
                cpu.delta_rule(DeltaRule {
                    q: &input(1, GROUPS * ROWS),
                    k: &input(2, GROUPS * ROWS),
                    v: &input(3, HEADS * COLUMNS),
                    a: &input(4, HEADS),
                    b: &input(5, HEADS),
                    decay: &parameters[0],
                    dt_bias: &parameters[1],
                    head_map: HeadMap::Grouped,
                    cache,
                    out: &mut out,
                    step,
                });
                out
            }
            Kind::Space => {
                let mut out = empty(HEADS * COLUMNS);
                cpu.state_space(StateSpace {
                    x: &input(1, HEADS * COLUMNS),
                    b: &input(2, GROUPS * ROWS),
                    c: &input(3, GROUPS * ROWS),
                    dt: &input(4, HEADS),
                    decay: &parameters[0],
                    skip: &parameters[1],
                    dt_bias: &parameters[2],
                    dt_limits: (0.2, 1.5),
                    cache,
                    out: &mut out,
                    step,
                });
                out
            }
        }
    }
}

/// The tables of a step.
fn tables(cpu: &Cpu, rows: &[Row]) -> StepTables<Cpu> {
    let tokens: usize = rows.iter().map(Row::len).sum();
    let limits = StepLimits {
        tokens,
        requests: rows.len(),
        samples: 1,
        blocks_per_request: 1,
        block_size: 1024,
    };
    let tables = StepTables::new(cpu, limits).unwrap();
    let (mut token_rows, mut request_rows) = (Vec::new(), Vec::new());
    for (request, row) in rows.iter().enumerate() {
        let (saved, snapshot) = row.snapshot.unwrap_or_default();
        request_rows.push(RequestRow {
            first_token: token_rows.len() as i32,
            token_count: row.len() as i32,
            slot: row.slot as i32,
            drafts: row.drafts.len() as i32,
            state_at: row.state_at as i32,
            state_end: row.state_end() as i32,
            snapshot_at: saved as i32,
            snapshot: snapshot as i32,
            restore: row.restore.map_or(0, |id| id as i32 + 1),
        });
        token_rows.extend((row.start..row.start + row.len()).map(|position| TokenRow {
            id: 0,
            position: position as i32,
            request: request as i32,
        }));
    }
    cpu.write(&tables.tokens.live, &[tokens as i32]);
    cpu.write(&tables.requests.live, &[rows.len() as i32]);
    cpu.write(&tables.token_rows, &token_rows);
    cpu.write(&tables.request_rows, &request_rows);
    tables
}

/// The outputs of plain decoding, token by token, one request at a time.
fn plain(kind: Kind, requests: usize, length: usize) -> Vec<Vec<Vec<f32>>> {
    let (_, cpu) = devices().remove(0);
    let layer = Layer::new(&cpu, kind, requests, (0, 0));
    let decode = |request| {
        let token = |start| {
            let row = Row {
                request,
                slot: request,
                start,
                certain: 1,
                state_at: on_state_grid(start),
                ..Row::default()
            };
            layer.step(&[row]).remove(0).remove(0)
        };
        (0..length).map(token).collect()
    };
    (0..requests).map(decode).collect()
}

/// Runs a step and compares the outputs of all tokens that follow right ones only.
fn check(what: &str, layer: &Layer, plain: &[Vec<Vec<f32>>], rows: &[Row]) {
    let outputs = layer.step(rows);
    for (row, outputs) in rows.iter().zip(&outputs) {
        let right = row.certain + row.drafts.iter().take_while(|right| **right).count();
        for (token, output) in outputs.iter().enumerate().take(right) {
            let position = row.start + token;
            assert!(
                bits(output) == bits(&plain[row.request][position]),
                "{:?}, {what}: request {}, position {position} (row from {})",
                layer.kind,
                row.request,
                row.start
            );
        }
    }
}

/// `k` drafts, the first `held` of them right.
fn drafts(k: usize, held: usize) -> Vec<bool> {
    (0..k).map(|index| index < held).collect()
}

const WINDOWS: [usize; 8] = [0, 1, 2, 3, 5, 7, 8, 15];

#[test]
fn verify_windows_give_the_bits_of_plain_decoding_for_every_acceptance() {
    const REQUESTS: usize = 4;
    for kind in KINDS {
        let plain = plain(kind, REQUESTS, 100);
        for (device, cpu) in devices() {
            for k in WINDOWS {
                for held in 0..=k {
                    let what = format!("{device}, {held} of {k}");
                    let layer = Layer::new(&cpu, kind, REQUESTS, (k, 0));
                    run_windows(&what, &layer, &plain, (k, held));
                }
            }
        }
    }
}

/// Prefill in chunks, then windows of several requests with different acceptances, then plain tokens. The last
/// request sits out some steps.
fn run_windows(what: &str, layer: &Layer, plain: &[Vec<Vec<f32>>], (k, held): (usize, usize)) {
    let requests = plain.len();
    let prefill = |request: usize, start: usize, certain: usize| Row {
        request,
        slot: requests - 1 - request,
        start,
        certain,
        ..Row::default()
    };
    // Up to 16 tokens: the windows behind lie around the first grid position.
    let chunk = |start: usize| -> Vec<Row> {
        (0..requests)
            .map(|request| prefill(request, start * (request + 5), request + 5))
            .collect()
    };
    check(what, layer, plain, &chunk(0));
    check(what, layer, plain, &chunk(1));
    let mut rows: Vec<Row> = chunk(1).iter().map(|row| row.next(0)).collect();
    for window in 0..4 {
        let mut kept = Vec::new();
        for row in &mut rows {
            // Windows are not all as long as they may be, and requests differ.
            let k = k - usize::from(window == 2 && k > 1);
            let held = (held + row.request * (window + 1)) % (k + 1);
            row.drafts = drafts(k, held);
            kept.push(row.next(held));
            if row.request == requests - 1 && window % 2 == 1 {
                kept.pop();
                kept.push(Row {
                    drafts: Vec::new(),
                    ..row.clone()
                });
                // No tokens in this step: whatever else the row says changes nothing.
                row.certain = 0;
                row.state_at = 7;
                row.drafts.clear();
            }
        }
        check(what, layer, plain, &rows);
        rows = kept;
    }
    for _ in 0..3 {
        check(what, layer, plain, &rows);
        rows = rows.iter().map(|row| row.next(0)).collect();
    }
}

#[test]
fn snapshots_at_every_grid_position_continue_elsewhere_with_the_same_bits() {
    // Prompts in two pieces, behind which the window and the row after it lie before, on and behind grid positions.
    let prompts = [(9, 5), (12, 3), (10, 23), (3, 45)];
    for kind in KINDS {
        let plain = plain(kind, 2, 100);
        for (device, cpu) in devices() {
            for (k, prompt) in [1, 3, 8, 15]
                .into_iter()
                .flat_map(|k| prompts.map(|prompt| (k, prompt)))
            {
                for held in 0..=k {
                    for point in (16..=prompt.0 + prompt.1 + 2 + held).step_by(16) {
                        let what = format!("{device}, {prompt:?}, {held} of {k}, saved at {point}");
                        let layer = Layer::new(&cpu, kind, 5, (k, 3));
                        save_and_restore(&what, &layer, &plain, (prompt, k, held, point));
                    }
                }
            }
        }
    }
}

/// A prompt in two pieces, a window, a row behind it; somewhere on the way the state is saved. Then two slots start
/// from the snapshot.
fn save_and_restore(
    what: &str,
    layer: &Layer,
    plain: &[Vec<Vec<f32>>],
    (prompt, k, held, point): ((usize, usize), usize, usize, usize),
) {
    const SNAPSHOT: usize = 1;
    let first = Row {
        slot: 3,
        certain: prompt.0,
        ..Row::default()
    };
    let second = Row {
        certain: prompt.1,
        ..first.next(0)
    };
    let mut window = second.next(0);
    window.drafts = drafts(k, held);
    let mut last = window.next(held);
    last.drafts = drafts(k, 0);
    let mut rows = [first, second, window, last];
    for row in &mut rows {
        let passed = row.state_at + 1..=row.state_end();
        row.snapshot = passed.contains(&point).then_some((point, SNAPSHOT));
        // Another request in the same steps, in the slot that is started from the snapshot later.
        let other = Row {
            request: 1,
            certain: 1,
            ..Row::default()
        };
        layer.step(&[other, row.clone()]);
    }
    assert_eq!(
        rows.iter().filter(|row| row.snapshot.is_some()).count(),
        1,
        "{what}"
    );
    let restored = |slot, certain| Row {
        slot,
        start: point,
        state_at: point,
        certain,
        drafts: drafts(k, k),
        restore: Some(SNAPSHOT),
        ..Row::default()
    };
    let original = rows[3].next(0);
    let rows = [restored(0, 2), original, restored(4, 1)];
    check(what, layer, plain, &rows);
    let rows: Vec<Row> = rows
        .iter()
        .map(|row| row.next(row.drafts.len().saturating_sub(1)))
        .collect();
    check(what, layer, plain, &rows);
    let rows: Vec<Row> = rows.iter().map(|row| row.next(0)).collect();
    check(what, layer, plain, &rows);
}

#[test]
#[should_panic(expected = "tokens 15..37 with states 0..16 and 20 entries")]
fn more_drafts_than_there_are_entries_are_refused() {
    let (_, cpu) = devices().remove(1);
    let layer = Layer::new(&cpu, Kind::Delta, 1, (2, 0));
    layer.step(&[Row {
        start: 15,
        certain: 1,
        drafts: drafts(21, 21),
        ..Row::default()
    }]);
}

#[test]
#[should_panic(expected = "tokens 19..21 with states 0..0 and 20 entries")]
fn looking_further_ahead_than_there_are_entries_is_refused() {
    let (_, cpu) = devices().remove(1);
    let layer = Layer::new(&cpu, Kind::Space, 1, (2, 0));
    layer.step(&[Row {
        start: 19,
        drafts: drafts(2, 2),
        ahead: true,
        ..Row::default()
    }]);
}

#[test]
#[should_panic(expected = "a snapshot at 20 with states 0..32")]
fn a_snapshot_beside_the_grid_is_refused() {
    let (_, cpu) = devices().remove(1);
    let layer = Layer::new(&cpu, Kind::Conv(4), 1, (2, 1));
    layer.step(&[Row {
        certain: 40,
        snapshot: Some((20, 0)),
        ..Row::default()
    }]);
}

/// Small random numbers.
struct Dice(u64);

impl Dice {
    /// From 0 to `most`.
    fn up_to(&mut self, most: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % (most + 1)
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.up_to(n - 1) == 0
    }
}

/// Where a request is: its last row, and how it went on from there.
#[derive(Clone)]
struct Course {
    last: Row,
    /// Drafts of the last row that held.
    held: usize,
    /// The tokens ahead so far, whether right.
    ahead: Vec<bool>,
    /// The position that its snapshot was saved at.
    saved: Option<usize>,
}

/// Most drafts of a row in courses.
const ROOM: usize = 6;

impl Course {
    fn new(request: usize, slot: usize) -> Self {
        let last = Row {
            request,
            slot,
            ..Row::default()
        };
        Self {
            last,
            held: 0,
            ahead: Vec::new(),
            saved: None,
        }
    }

    /// A row that looks ahead of the last one. Its first tokens may be right.
    fn look(&mut self, dice: &mut Dice) -> Row {
        let next = self.last.next(self.held);
        let before = self.ahead.len();
        let count = 1 + dice.up_to((ROOM - before).min(3) - 1);
        // The first of all is the token that was chosen; the others are a drafter's.
        let held = match self.ahead.last() {
            None => 1 + dice.up_to(count - 1),
            Some(true) => dice.up_to(count),
            Some(false) => 0,
        };
        self.ahead.extend(drafts(count, held));
        Row {
            start: next.start + before,
            certain: 0,
            drafts: drafts(count, held),
            ahead: true,
            ..next
        }
    }

    /// A row that goes on, or goes back to the snapshot.
    fn advance(&mut self, dice: &mut Dice) -> Row {
        let snapshot = self.last.request;
        let mut row = self.last.next(self.held);
        let known = row.start == 0;
        match self.saved {
            Some(saved) if dice.one_in(4) => {
                (row.start, row.state_at, row.restore) = (saved, saved, Some(snapshot));
                row.certain = 1 + dice.up_to(2);
            }
            _ if known => row.certain = 1 + dice.up_to(40),
            _ => {}
        }
        if !known {
            let k = dice.up_to(ROOM);
            self.held = dice.up_to(k);
            row.drafts = drafts(k, self.held);
        }
        // A row does not save to where it starts from.
        if row.restore.is_none() && dice.one_in(2) && row.save_to(snapshot) {
            self.saved = Some(row.state_end());
        }
        self.ahead.clear();
        self.last = row.clone();
        row
    }
}

/// The outputs of tokens ahead, some right and the others wrong, by plain decoding of them and of all before.
fn plain_ahead(cpu: &Cpu, kind: Kind, (request, start): (usize, usize), ahead: &[bool]) -> Vec<Vec<f32>> {
    let layer = Layer::new(cpu, kind, 1, (0, 0));
    layer.step(&[Row {
        request,
        certain: start,
        ..Row::default()
    }]);
    let decode = |(index, right): (usize, &bool)| {
        let row = Row {
            request,
            start: start + index,
            certain: 1,
            state_at: on_state_grid(start + index),
            astray: !right,
            ..Row::default()
        };
        layer.step(&[row]).remove(0).remove(0)
    };
    ahead.iter().enumerate().map(decode).collect()
}

#[test]
fn looking_ahead_gives_the_bits_of_plain_decoding_and_leaves_no_trace() {
    const REQUESTS: usize = 3;
    let devices = devices();
    for kind in KINDS {
        let plain = (&plain(kind, REQUESTS, 360)[..], &devices[0].1);
        for (seed, (device, cpu)) in devices.iter().chain(&devices).enumerate() {
            let what = format!("{device}, seed {seed}");
            let room = (ROOM, REQUESTS);
            let layer = Layer::new(cpu, kind, REQUESTS, room);
            let other = Layer::new(cpu, kind, REQUESTS, room);
            let mut dice = Dice(seed as u64);
            let mut courses: Vec<Course> = (0..REQUESTS)
                .map(|request| Course::new(request, REQUESTS - 1 - request))
                .collect();
            for _ in 0..40 {
                step_courses(&what, (&layer, &other), plain, (&mut courses, &mut dice));
            }
        }
    }
}

/// A step in which some requests look ahead and others go on; the second layer sees only the latter.
fn step_courses(
    what: &str,
    (layer, other): (&Layer, &Layer),
    (plain, plainest): (&[Vec<Vec<f32>>], &Cpu),
    (courses, dice): (&mut [Course], &mut Dice),
) {
    let step = |course: &mut Course| {
        let room = course.last.len() > 0 && course.ahead.len() < ROOM;
        if room && !dice.one_in(3) {
            course.look(dice)
        } else {
            course.advance(dice)
        }
    };
    let rows: Vec<Row> = courses.iter_mut().map(step).collect();
    let outputs = layer.step(&rows);
    let kept: Vec<Row> = rows.iter().filter(|row| !row.ahead).cloned().collect();
    let mut untouched = other.step(&kept).into_iter();
    for ((row, course), outputs) in rows.iter().zip(courses).zip(&outputs) {
        let what = format!(
            "{:?}, {what}: request {}, row from {}",
            layer.kind, row.request, row.start
        );
        if row.ahead {
            let start = row.start + row.len() - course.ahead.len();
            let all = plain_ahead(plainest, layer.kind, (row.request, start), &course.ahead);
            assert!(same(outputs, &all[all.len() - row.len()..]), "{what}, ahead");
        } else {
            let right = row.certain + course.held;
            let expected = &plain[row.request][row.start..row.start + right];
            assert!(same(&outputs[..right], expected), "{what}");
            assert!(
                same(outputs, &untouched.next().unwrap()),
                "{what}: a trace is left"
            );
        }
    }
}

fn same(a: &[Vec<f32>], b: &[Vec<f32>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| bits(a) == bits(b))
}
