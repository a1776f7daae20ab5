//! Keys and values, and attention over them.

use crate::arguments::{Ptr, arguments};
use crate::caches::KvLayout;
use crate::cuda::Cuda;
use crate::launch::{Grid, Kernel};
use crate::ops::checks::Checks;
use crate::ops::expects_prompts;
use crate::ops::inputs::RoundedInputs;
use crate::pack::Architecture;
use crate::scratch::ScratchKind;
use crate::views::{KvView, Matrix, RoundedRows, Tables, optional};
use paceline_device::{Attention, KeyValueStore, KvShape, StepTables};

arguments! { "attention.h";
    /// Of `store_kv`. Without norms their weights are null, without positions there are no angles.
    struct StoreKvArgs {
        q: Matrix,
        k: Matrix,
        v: Matrix,
        angles: Matrix,
        q_norm: Ptr<f32>,
        k_norm: Ptr<f32>,
        eps: f32,
        kv: KvView,
        tables: Tables,
        fault: Ptr<i32>,
    }

    /// Of the kernels of attention. Without a gate its data is null. `window`: most tokens of a work item; `group`: query heads
    /// of a key-value head; `rounded`: where the next product looks for its inputs, of the kernels on
    /// matrix units; `few`: most tokens of a request that `attend` sees, others are `prefill`'s; `partial` and `scales` are
    /// null unless splits are joined by another kernel; `totals` and `list` are those of `prefill`.
    struct AttentionArgs {
        q: Matrix,
        gate: Matrix,
        out: Matrix,
        rounded: RoundedRows,
        kv: KvView,
        tables: Tables,
        partial: Ptr<f32>,
        scales: Ptr<f32>,
        totals: Ptr<f32>,
        list: Ptr<i32>,
        scale: f32,
        few: i32,
        window: u32,
        group: u32,
        splits: u32,
        fault: Ptr<i32>,
    }
}

const STORE: Kernel<StoreKvArgs> = Kernel::new("store_kv", "store_kv");
/// Heads of so many elements, where all lies in fours.
const STORE_FOURS: [(usize, Kernel<StoreKvArgs>); 2] = [
    (128, Kernel::new("store_kv", "store_kv_128")),
    (256, Kernel::new("store_kv", "store_kv_256")),
];
/// Thread blocks of those per multiprocessor, by their registers.
const STORE_TOGETHER: u32 = 6;
/// Heads of a thread block at a time.
const STORE_HEADS: usize = 4;

const PREFILL_PLAN: Kernel<AttentionArgs> = Kernel::new("prefill", "prefill_plan");
const ATTENTION_F32: Kernel<AttentionArgs> = Kernel::new("attention", "attention_f32");
const ATTENTION_BF16: Kernel<AttentionArgs> = Kernel::new("attention", "attention_bf16");
const ATTENTION_TILES: Kernel<AttentionArgs> = Kernel::new("attention", "attention_tiles");

impl StoreKvArgs {
    /// Whether four elements of anything can be read at a time.
    fn in_fours(&self) -> bool {
        let rows = [&self.q, &self.k, &self.v].iter().all(|matrix| matrix.in_fours());
        let angles = self.angles.in_fours() && self.angles.columns.is_multiple_of(8);
        rows && angles && self.q_norm.is_aligned(16) && self.k_norm.is_aligned(16)
    }
}

impl Cuda {
    pub(crate) fn enqueue_store_kv(&self, args: &KeyValueStore<'_, Self>) {
        let check = Checks("store_kv");
        let shape = args.cache.shape();
        check.room("token rows", &args.step.token_rows, args.q.bucket);
        check_blocks(check, args.step, shape);
        check.same_rows(args.q, args.k);
        check.same_shape(args.k, args.v);
        check.columns("k", args.k, shape.heads * shape.head_dim);
        check.divides("head_dim", shape.head_dim, args.q.columns);
        check.apart(args.q, &[args.k, args.v]);
        if let Some(norms) = &args.norms {
            check.length("the norm of queries", norms.q, shape.head_dim);
            check.length("the norm of keys", norms.k, shape.head_dim);
        }
        if let Some(angles) = args.angles {
            check.same_rows(args.q, angles);
            check.apart(args.q, &[angles]);
            assert!(
                angles.columns <= shape.head_dim && angles.columns.is_multiple_of(2),
                "store_kv: {} angles for heads of {}",
                angles.columns,
                shape.head_dim
            );
        }
        let norms = args.norms.as_ref();
        let store = StoreKvArgs {
            q: Matrix::of(args.q),
            k: Matrix::of(args.k),
            v: Matrix::of(args.v),
            angles: Matrix::of_optional(args.angles),
            q_norm: optional(norms.map(|norms| norms.q)),
            k_norm: optional(norms.map(|norms| norms.k)),
            eps: norms.map_or(0.0, |norms| norms.eps),
            kv: KvView::of(args.cache, args.step),
            tables: Tables::of(args.step),
            fault: Ptr::new(self.context.fault),
        };
        let (tokens, heads) = (
            args.q.bucket as u32,
            args.q.columns / shape.head_dim + shape.heads,
        );
        let across = heads.div_ceil(STORE_HEADS) as u32;
        let fours = STORE_FOURS
            .iter()
            .find(|(dim, _)| *dim == shape.head_dim && store.in_fours());
        let (kernel, across) = match fours {
            // Warps of many tokens have several heads each: then all thread blocks are there at once.
            Some((_, kernel)) => {
                let room = STORE_TOGETHER * self.multiprocessors();
                (kernel, across.min((room / tokens.max(1)).max(1)))
            }
            None => (&STORE, across),
        };
        let grid = Grid::of([tokens, across, 1], 32 * STORE_HEADS as u32);
        self.enqueue(kernel, grid, &store);
    }

    pub(crate) fn enqueue_attention(&self, args: &Attention<'_, Self>) {
        let check = Checks("attention");
        let shape = args.cache.shape();
        check.room("token rows", &args.step.token_rows, args.q.bucket);
        check_blocks(check, args.step, shape);
        check.same_shape(args.q, args.out);
        check.divides("key-value heads", shape.heads * shape.head_dim, args.q.columns);
        check.apart(args.out, &[args.q]);
        if let Some(gate) = args.gate {
            check.same_shape(args.q, gate);
            check.apart(args.out, &[gate]);
        }
        let group = args.q.columns / shape.head_dim / shape.heads;
        let attention = AttentionArgs {
            q: Matrix::of(args.q),
            gate: Matrix::of_optional(args.gate),
            out: Matrix::of(args.out),
            rounded: RoundedRows::NOWHERE,
            kv: KvView::of(args.cache, args.step),
            tables: Tables::of(args.step),
            partial: Ptr::NULL,
            scales: Ptr::NULL,
            totals: Ptr::NULL,
            list: Ptr::NULL,
            scale: args.scale,
            few: i32::MAX,
            window: 0,
            group: group as u32,
            splits: 0,
            fault: Ptr::new(self.context.fault),
        };
        if args.cache.layout() == KvLayout::Tiles && group <= MOST_ROWS {
            assert!(args.scale > 0.0, "attention: scores times {}", args.scale);
            return self.enqueue_attend(shape, args, attention);
        }
        let kernel = match args.cache.layout() {
            KvLayout::F32 => &ATTENTION_F32,
            KvLayout::Bf16 => &ATTENTION_BF16,
            KvLayout::Tiles => &ATTENTION_TILES,
        };
        let heads = shape.heads * group;
        self.enqueue(
            kernel,
            Grid::of([args.q.bucket as u32, heads as u32, 1], 256),
            &attention,
        );
    }

    /// Attention on the matrix units, for shapes that they serve.
    fn enqueue_attend(&self, shape: KvShape, of: &Attention<'_, Self>, mut args: AttentionArgs) {
        let Some(kernels) = ATTEND.iter().find(|kernels| kernels.dim == shape.head_dim) else {
            panic!("attention: heads of {}", shape.head_dim);
        };
        let next = self.next_inputs(of.out);
        args.rounded = RoundedInputs::rows(next);
        if expects_prompts(of.step) {
            self.enqueue_prefill(kernels, shape, &mut args);
        }
        let (tokens, requests) = (args.q.bucket as usize, args.tables.request_bucket as usize);
        let (group, heads) = (args.group as usize, args.q.columns as usize / shape.head_dim);
        // A window of four tokens is one item where that is possible.
        let sixteens = if group <= 4 { 1 } else { 2 };
        let window = 16 * sixteens / group;
        let splits = (of.step.limits.blocks_per_request * shape.block_size).div_ceil(SPLIT);
        let bytes = (tokens * heads * splits * shape.head_dim * 4) as u64;
        let multiprocessors = self.multiprocessors() as usize;
        // Where full windows keep the GPU busy, or there are too many of them to keep their splits, each is one item.
        let split = splits > 1
            && tokens.div_ceil(window) * shape.heads < multiprocessors
            && bytes <= self.most_split_bytes();
        if split {
            let scales = (tokens * heads * splits * 8) as u64;
            let Some(scratch) = self.scratch(ScratchKind::Splits, bytes + scales) else {
                return;
            };
            args.partial = Ptr::new(scratch);
            args.scales = Ptr::new(scratch + bytes);
        }
        args.window = window as u32;
        args.splits = splits as u32;
        let items = (tokens / window + requests) * shape.heads * if split { splits } else { 1 };
        let architecture = self.context.architecture;
        let threads = if architecture == Architecture::Sm80 {
            256
        } else {
            288
        };
        let shared = attend_shared(architecture, shape.head_dim, sixteens);
        let most = multiprocessors * attend_together(architecture, sixteens);
        let grid = Grid::new(most.min(items) as u32, threads).shared(shared);
        self.enqueue(&kernels.attend[sixteens - 1], grid, &args);
        if split {
            let rows = (tokens * heads).div_ceil(4) as u32;
            self.enqueue(&kernels.merge, Grid::new(rows, 128), &args);
        }
        self.keep_inputs(next);
    }

    /// Most memory for splits that wait to be joined: windows of drafts over long texts need much of it, and a thread block that goes
    /// through all keys of a window alone takes far longer.
    fn most_split_bytes(&self) -> u64 {
        (self.context.gpu.memory / SPLIT_SHARE).max(MOST_SPLIT_BYTES)
    }

    /// Leaves requests of many tokens to a kernel of their own, where there is one.
    fn enqueue_prefill(&self, kernels: &TileKernels, shape: KvShape, args: &mut AttentionArgs) {
        let aligned = [&args.q, &args.gate, &args.out]
            .iter()
            .all(|rows| rows.in_fours());
        let hopper = self.context.architecture == Architecture::Sm90a;
        if !(hopper && aligned) {
            return;
        }
        let blocks = self.multiprocessors();
        // Of 64 rows each.
        let (groups, stages) = if shape.head_dim == 256 { (2, 2) } else { (3, 4) };
        let bytes = u64::from(blocks) * (groups * 64 * shape.head_dim * 4) as u64;
        args.window = (groups * 64) as u32 / args.group;
        let windows = args.q.bucket / args.window + args.tables.request_bucket;
        let Some(totals) = self.scratch(ScratchKind::Totals, bytes + 16 + 32 * u64::from(windows)) else {
            return;
        };
        args.few = FEW;
        args.totals = Ptr::new(totals);
        args.list = Ptr::new(totals + bytes);
        self.enqueue(&PREFILL_PLAN, Grid::new(1, 1024).late(), args);
        let shared = (groups + 2 * stages) * 64 * shape.head_dim * 2 + 2 * 1024;
        let grid = Grid::new(blocks, 128 * (groups + 1) as u32).shared(shared as u32);
        self.enqueue(&kernels.prefill, grid, args);
    }
}

/// Positions of a split, see `tiles.cuh`.
const SPLIT: usize = 512;
/// Rows of the largest product: tokens of a window times query heads of a key-value head.
const MOST_ROWS: usize = 32;
/// Most tokens of a request whose windows are not a prompt's.
const FEW: i32 = 16;
/// The share of the GPU's memory that splits may take while they wait to be joined, and what they may take of any GPU.
const SPLIT_SHARE: u64 = 128;
const MOST_SPLIT_BYTES: u64 = 128 << 20;

/// Kernels for heads of `dim` elements: of windows of 16 and of 32 rows.
struct TileKernels {
    dim: usize,
    attend: [Kernel<AttentionArgs>; 2],
    merge: Kernel<AttentionArgs>,
    prefill: Kernel<AttentionArgs>,
}

macro_rules! attend {
    ($($dim:literal)*) => {
        [$(TileKernels {
            dim: $dim,
            attend: [
                Kernel::new("attend", concat!("attend_", $dim, "_1")),
                Kernel::new("attend", concat!("attend_", $dim, "_2")),
            ],
            merge: Kernel::new("attend", concat!("attend_merge_", $dim)),
            prefill: Kernel::new("prefill", concat!("prefill_", $dim)),
        }),*]
    };
}

static ATTEND: [TileKernels; 3] = attend!(64 128 256);

/// Shared memory of `attend` for windows of 16 times `sixteens` rows, as its `Memory` has it.
fn attend_shared(architecture: Architecture, dim: usize, sixteens: usize) -> u32 {
    let stages = match architecture {
        Architecture::Sm80 | Architecture::Sm120 => {
            if dim == 256 {
                1
            } else {
                2
            }
        }
        Architecture::Sm90a | Architecture::Sm100 => match (sixteens, dim) {
            (1, 256) => 1,
            (1, 64) => 3,
            _ => 2,
        },
    };
    let tiles = stages * 2 * 64 * dim * 2;
    let rows = sixteens * 16 * (64 + 8 + dim + 8) * 2;
    let sums = 2 * 8 * sixteens * 16 * 5 * 4;
    (tiles + rows + sums + 128).next_multiple_of(128) as u32
}

/// Thread blocks of it per multiprocessor.
fn attend_together(architecture: Architecture, sixteens: usize) -> usize {
    match architecture {
        Architecture::Sm90a | Architecture::Sm100 if sixteens == 1 => 2,
        _ => 1,
    }
}

/// Tables and caches agree on the size of a block.
pub(crate) fn check_blocks(check: Checks, step: &StepTables<Cuda>, shape: KvShape) {
    assert!(
        step.limits.block_size == shape.block_size,
        "{}: tables have blocks of {} tokens, caches blocks of {}",
        check.0,
        step.limits.block_size,
        shape.block_size
    );
}
