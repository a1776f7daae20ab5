//! Convolutions and recurrent layers.

use crate::arguments::{Ptr, arguments};
use crate::caches::CudaStateCache;
use crate::cuda::Cuda;
use crate::launch::{Grid, Kernel};
use crate::ops::checks::{Checks, check_causal_conv, check_delta_rule, check_state_space};
use crate::ops::expects_prompts;
use crate::pack::Architecture;
use crate::scratch::ScratchKind;
use crate::storage::CudaTensor;
use crate::unread::Written;
use crate::views::{Matrix, StateView, Tables, optional};
use paceline_device::{CausalConv, DeltaRule, HeadMap, StateShape, StateSpace, StepTables};
use paceline_types::STATE_GRID;
use std::mem::offset_of;

arguments! { "recurrence.h";
    /// Of `causal_conv`. A bias that is missing is null.
    struct ConvArgs {
        x: Matrix,
        weight: Ptr<f32>,
        bias: Ptr<f32>,
        out: Matrix,
        states: StateView,
        tables: Tables,
        strips: u32,
        fault: Ptr<i32>,
    }

    /// Of the kernels of a recurrence, see `recurrence.cuh`: keys are `k` or `B`, queries `q` or `C`, values `v` or `x`, and `a` is
    /// `dt` of Mamba2, which has no `b`.
    struct RecurArgs {
        keys: Matrix,
        queries: Matrix,
        values: Matrix,
        a: Matrix,
        b: Matrix,
        out: Matrix,
        decay: Ptr<f32>,
        dt_bias: Ptr<f32>,
        skip: Ptr<f32>,
        least: f32,
        most: f32,
        unit_keys: Ptr<f32>,
        unit_queries: Ptr<f32>,
        dots: Ptr<f32>,
        factors: Ptr<f32>,
        entered: Ptr<f32>,
        states: StateView,
        tables: Tables,
        tiled: u32,
        leaves: u32,
        /// Tokens of a warp of `relate_prompt`, up to 32.
        run: u32,
        fault: Ptr<i32>,
    }
}

const CONV_4: Kernel<ConvArgs> = Kernel::new("causal_conv", "causal_conv_4");
const CONV_ANY: Kernel<ConvArgs> = Kernel::new("causal_conv", "causal_conv_any");
const CONV_PROMPT: Kernel<ConvArgs> = Kernel::new("causal_conv", "causal_conv_prompt");
/// Threads of a thread block of the convolution.
const CONV_THREADS: usize = 256;
/// Channels and tokens that a thread block of `causal_conv_prompt` has at a time.
const CONV_TILE: (usize, usize) = (128, 64);
/// Requests of many tokens that have thread blocks of their own there; those take all others in turn. Where a step has fewer, as most
/// do, the thread blocks of the others only stand in the way.
const CONV_REQUESTS: usize = 4;
/// Thread blocks of it per multiprocessor, by its registers.
const CONV_TOGETHER: usize = 2;

/// The kernels of one rule, for states of up to this many rows.
struct Rule {
    rows: usize,
    relate: Kernel<RecurArgs>,
    recur: Kernel<RecurArgs>,
    keep: Kernel<RecurArgs>,
    /// For states of exactly so many rows: for many tokens of a request at a time, and for few.
    scan: Option<[Kernel<RecurArgs>; 2]>,
    /// For states of exactly so many rows, where a request may have many tokens: what takes the place of `relate`, and of
    /// `recur`.
    prompt: Option<[Kernel<RecurArgs>; 2]>,
}

macro_rules! rules {
    ($rule:literal: $($rows:literal $scan:expr, $prompt:expr;)*) => {
        [$(Rule {
            rows: $rows,
            relate: Kernel::new("recurrence", concat!("relate_", $rule, "_", $rows)),
            recur: Kernel::new("recurrence", concat!("recur_", $rule, "_", $rows)),
            keep: Kernel::new("recurrence", concat!("keep_", $rule)),
            scan: $scan,
            prompt: $prompt,
        }),*]
    };
}

macro_rules! scan {
    ($entry:literal) => {
        Some([
            Kernel::new("scan", concat!($entry, "_16")),
            Kernel::new("scan", concat!($entry, "_4")),
        ])
    };
}

macro_rules! prompt {
    ($rule:literal) => {
        Some([
            Kernel::new("relate", concat!("relate_prompt_", $rule)),
            Kernel::new("prompt", concat!("prompt_", $rule)),
        ])
    };
}

static DELTA: [Rule; 4] = rules!("delta":
    32 None, None;
    64 None, None;
    128 scan!("scan_delta_128"), prompt!("delta_128");
    256 scan!("scan_delta_256"), None;
);
static SPACE: [Rule; 4] = rules!("space":
    32 None, None;
    64 None, None;
    128 scan!("scan_space_128"), prompt!("space_128");
    256 scan!("scan_space_256"), None;
);

/// Columns of a thread block of `recur` and `scan`.
const COLUMNS: usize = 32;
/// A program with room for more is hardly one of verify windows.
const WINDOW: usize = 8;
/// Tokens of a warp of `relate_prompt`, and from how many of a step on they are a chunk's: a warp without the first token of a
/// chunk has no work, and one with those of many requests has much.
const RELATED: usize = 4;
const MANY: usize = 2048;
const fn related(tokens: usize) -> usize {
    if tokens < MANY { RELATED } else { STATE_GRID }
}
/// Threads of `prompt`, and its shared memory: as its `Memory` has it, and so much that a multiprocessor has room for one thread
/// block. The hardware would put two on one and leave another without.
const PROMPT_THREADS: u32 = 512;
const PROMPT_SHARED: u32 = 92_032;
const PROMPT_ALONE: u32 = 118_784;

/// A kernel that goes through states.
struct Through<'a> {
    /// The kernel before it, for what does not depend on the state.
    relate: (&'a Kernel<RecurArgs>, Grid),
    kernel: &'a Kernel<RecurArgs>,
    grid: Grid,
    /// Whether it leaves entries of short rows.
    leaves: bool,
}

impl Rule {
    /// The kernel that goes through states.
    fn through(&self, args: &RecurArgs, shape: StateShape, prompts: bool, cuda: &Cuda) -> Through<'_> {
        let aligned = [&args.keys, &args.queries, &args.values, &args.out]
            .iter()
            .all(|matrix| matrix.in_fours());
        // Ada and workstations have 99 KB of shared memory per thread block.
        let fits = self.rows <= 128
            || matches!(
                cuda.context.architecture,
                Architecture::Sm90a | Architecture::Sm100
            );
        let whole = shape.rows == self.rows && shape.columns.is_multiple_of(COLUMNS);
        let (tokens, requests) = (args.out.bucket as usize, args.tables.request_bucket as usize);
        let multiprocessors = cuda.multiprocessors();
        // A warp each, of four: a token or some of them, of a group.
        let vectors = |tokens: usize| Grid::new((tokens * shape.groups).div_ceil(4) as u32, 128);
        let blocks = (shape.heads * shape.columns.div_ceil(COLUMNS)) as u32;
        // A program has room for more requests than most of its steps have: thread blocks that serve several in turn leave
        // fewer of them without work.
        let in_turn =
            (requests as u32).min((requests as u32 / 4).max((4 * multiprocessors).div_ceil(blocks)));
        if let Some([relate, kernel]) = &self.prompt
            && whole
            && aligned
            && prompts
        {
            let states = blocks * requests as u32;
            return Through {
                relate: (relate, vectors(tokens.div_ceil(related(tokens)))),
                kernel,
                grid: prompt_grid(states, cuda),
                leaves: true,
            };
        }
        let relate = (&self.relate, vectors(tokens));
        match &self.scan {
            Some(scan) if whole && aligned && fits => {
                // Verify windows have few tokens.
                let few = tokens <= WINDOW * requests;
                let batch = if few { 4 } else { STATE_GRID };
                let shared = scan_shared(self.rows, batch);
                Through {
                    relate,
                    kernel: &scan[usize::from(few)],
                    grid: through_grid([blocks, in_turn], shared, multiprocessors),
                    leaves: true,
                }
            }
            _ => Through {
                relate,
                kernel: &self.recur,
                grid: through_grid([blocks, requests as u32], self.shared(), multiprocessors),
                leaves: false,
            },
        }
    }

    /// Shared memory of `recur`, as its `Memory` has it.
    const fn shared(&self) -> u32 {
        let vectors = 2 * STATE_GRID * (self.rows + 4) + 2 * STATE_GRID * COLUMNS;
        let sums = (8 + 1) * 2 * STATE_GRID * COLUMNS;
        let small = 2 * STATE_GRID * STATE_GRID + 4 * STATE_GRID + 4;
        (4 * (vectors + sums + small)) as u32
    }
}

/// Thread blocks of `prompt` for so many parts of states: persistent, one per multiprocessor. An early start would be of no use to a
/// long prompt.
fn prompt_grid(states: u32, cuda: &Cuda) -> Grid {
    let shared = match cuda.context.architecture {
        Architecture::Sm90a | Architecture::Sm100 => PROMPT_ALONE,
        Architecture::Sm80 | Architecture::Sm120 => PROMPT_SHARED,
    };
    Grid::new(states.min(cuda.multiprocessors()), PROMPT_THREADS)
        .shared(shared)
        .late()
}

/// Thread blocks for parts of a state, by requests. Up to `late` of them begin when the kernel ahead has ended.
fn through_grid([parts, rows]: [u32; 2], shared: u32, late: u32) -> Grid {
    let grid = Grid::of([parts, rows, 1], 256).shared(shared);
    if parts * rows <= late { grid.late() } else { grid }
}

/// Shared memory of `scan`, as its `Memory` has it.
const fn scan_shared(rows: usize, batch: usize) -> u32 {
    let vectors = 2 * STATE_GRID * (rows + 8) + 2 * STATE_GRID * COLUMNS;
    let chunk = vectors + 2 * STATE_GRID * STATE_GRID + 2 * STATE_GRID;
    let sums = rows / 32 * 2 * batch * (COLUMNS + 4) + 2 * batch * COLUMNS;
    (4 * (2 * chunk + sums + STATE_GRID * STATE_GRID + 2 * STATE_GRID + 4)) as u32
}

impl Cuda {
    pub(crate) fn enqueue_causal_conv(&self, args: &CausalConv<'_, Self>) {
        let shape = args.cache.shape();
        check_causal_conv(args);
        let requests = args.step.requests.bucket;
        // Where a request may have many tokens, several threads share a channel.
        let prompts = expects_prompts(args.step);
        let strips = if prompts { 8 } else { 1 };
        let conv = ConvArgs {
            x: Matrix::of(args.x),
            weight: args.weight.ptr(),
            bias: optional(args.bias),
            out: Matrix::of(args.out),
            states: args.cache.view(),
            tables: Tables::of(args.step),
            strips: strips as u32,
            fault: Ptr::new(self.context.fault),
        };
        let fours = conv.x.in_fours()
            && conv.out.in_fours()
            && conv.weight.is_aligned(16)
            && conv.bias.is_aligned(16);
        let (kernel, blocks) =
            if shape.conv_width == 4 && prompts && fours && shape.conv_channels.is_multiple_of(4) {
                let blocks = shape.conv_channels.div_ceil(CONV_TILE.0);
                // Few requests, often one, have all the tokens: all thread blocks of one are there at once.
                let pieces = CONV_TOGETHER * self.multiprocessors() as usize / blocks;
                let most = args.x.bucket.div_ceil(CONV_TILE.1);
                (
                    &CONV_PROMPT,
                    [blocks, requests.min(CONV_REQUESTS), pieces.clamp(1, most.max(1))],
                )
            } else {
                let kernel = if shape.conv_width == 4 { &CONV_4 } else { &CONV_ANY };
                let blocks = shape.conv_channels.div_ceil(CONV_THREADS / strips);
                (kernel, [blocks, requests, 1])
            };
        let grid = Grid::of(blocks.map(|blocks| blocks as u32), CONV_THREADS as u32);
        self.enqueue(kernel, grid, &conv);
    }

    pub(crate) fn enqueue_delta_rule(&self, args: &DeltaRule<'_, Self>) {
        let shape = args.cache.shape();
        check_delta_rule(args);
        let rule = rule_for(Checks("delta_rule"), &DELTA, shape);
        let Some(scratch) = self.recurrence_scratch(shape, args.out.bucket, true) else {
            return;
        };
        let recur = RecurArgs {
            keys: Matrix::of(args.k),
            queries: Matrix::of(args.q),
            values: Matrix::of(args.v),
            a: Matrix::of(args.a),
            b: Matrix::of(args.b),
            decay: args.decay.ptr(),
            dt_bias: args.dt_bias.ptr(),
            tiled: u32::from(args.head_map == HeadMap::Tiled),
            ..self.recurrence(args.cache, args.out, args.step, &scratch)
        };
        self.enqueue_recurrence(rule, shape, (&recur, args.out), args.step);
    }

    pub(crate) fn enqueue_state_space(&self, args: &StateSpace<'_, Self>) {
        let shape = args.cache.shape();
        check_state_space(args);
        let rule = rule_for(Checks("state_space"), &SPACE, shape);
        let Some(scratch) = self.recurrence_scratch(shape, args.out.bucket, false) else {
            return;
        };
        let recur = RecurArgs {
            keys: Matrix::of(args.b),
            queries: Matrix::of(args.c),
            values: Matrix::of(args.x),
            a: Matrix::of(args.dt),
            decay: args.decay.ptr(),
            dt_bias: args.dt_bias.ptr(),
            skip: args.skip.ptr(),
            least: args.dt_limits.0,
            most: args.dt_limits.1,
            ..self.recurrence(args.cache, args.out, args.step, &scratch)
        };
        self.enqueue_recurrence(rule, shape, (&recur, args.out), args.step);
    }

    /// What is the same for both rules; the rest is missing.
    fn recurrence(
        &self,
        cache: &CudaStateCache,
        out: &CudaTensor,
        step: &StepTables<Self>,
        scratch: &RecurrenceScratch,
    ) -> RecurArgs {
        RecurArgs {
            keys: Matrix::NONE,
            queries: Matrix::NONE,
            values: Matrix::NONE,
            a: Matrix::NONE,
            b: Matrix::NONE,
            out: Matrix::of(out),
            decay: Ptr::NULL,
            dt_bias: Ptr::NULL,
            skip: Ptr::NULL,
            least: 0.0,
            most: 0.0,
            unit_keys: scratch.unit_keys,
            unit_queries: scratch.unit_queries,
            dots: scratch.dots,
            factors: scratch.factors,
            entered: scratch.entered,
            states: cache.view(),
            tables: Tables::of(step),
            tiled: 0,
            leaves: 0,
            run: related(out.bucket) as u32,
            fault: Ptr::new(self.context.fault),
        }
    }

    fn enqueue_recurrence(
        &self,
        rule: &Rule,
        shape: StateShape,
        (args, out): (&RecurArgs, &CudaTensor),
        step: &StepTables<Self>,
    ) {
        let requests = args.tables.request_bucket;
        let through = rule.through(args, shape, expects_prompts(step), self);
        let (relate, grid) = through.relate;
        // It has nothing to do with results but to know how many rows there are.
        let nowhere = Matrix {
            data: Ptr::NULL,
            ..args.out
        };
        let related = RecurArgs {
            out: nowhere,
            ..*args
        };
        self.enqueue(relate, grid, &related);
        // Rows of a verify window at most are short enough for `scan` to leave their entries, see `recurrence.cuh`.
        let leaves = match through.leaves {
            false => 0,
            true if args.out.bucket as usize > 1 + shape.drafts => 1,
            true => 2,
        };
        let args = RecurArgs { leaves, ..*args };
        self.keep_inputs(None);
        let written = Written::new(out, offset_of!(RecurArgs, out));
        self.enqueue_writing(through.kernel, through.grid, &args, Some(written));
        if leaves < 2 {
            let grid = Grid::of([shape.heads as u32, requests, 1], 128);
            self.enqueue(&rule.keep, grid, &args);
        }
    }

    /// What lies between the kernels of a recurrence over up to `tokens` tokens.
    pub(crate) fn recurrence_scratch(
        &self,
        shape: StateShape,
        tokens: usize,
        delta: bool,
    ) -> Option<RecurrenceScratch> {
        let unit = if delta { shape.groups * shape.rows } else { 0 };
        let entered = if delta { shape.heads * shape.columns } else { 0 };
        let sizes = [
            unit,
            unit,
            shape.groups * 2 * STATE_GRID,
            shape.heads * 2,
            entered,
        ]
        .map(|elements| ((tokens * elements * 4) as u64).next_multiple_of(256));
        let mut next = self.scratch(ScratchKind::Recurrence, sizes.iter().sum())?;
        let [unit_keys, unit_queries, dots, factors, entered] = sizes.map(|size| {
            next += size;
            Ptr::new(next - size)
        });
        Some(RecurrenceScratch {
            unit_keys,
            unit_queries,
            dots,
            factors,
            entered,
        })
    }
}

/// See `recurrence.cuh`.
pub(crate) struct RecurrenceScratch {
    pub(crate) unit_keys: Ptr<f32>,
    pub(crate) unit_queries: Ptr<f32>,
    pub(crate) dots: Ptr<f32>,
    pub(crate) factors: Ptr<f32>,
    entered: Ptr<f32>,
}

/// The kernels for a shape.
fn rule_for(check: Checks, rules: &'static [Rule], shape: StateShape) -> &'static Rule {
    let found = rules.iter().find(|rule| shape.rows <= rule.rows);
    found.unwrap_or_else(|| panic!("{}: states of {} rows", check.0, shape.rows))
}
