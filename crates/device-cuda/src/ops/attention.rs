//! Keys and values, and attention over them.

use crate::arguments::{Ptr, arguments};
use crate::caches::KvLayout;
use crate::cuda::Cuda;
use crate::launch::{Grid, Kernel};
use crate::ops::checks::Checks;
use crate::views::{KvView, Matrix, Tables, optional};
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

    /// Of `attention`. Without a gate its data is null.
    struct AttentionArgs {
        q: Matrix,
        gate: Matrix,
        out: Matrix,
        kv: KvView,
        tables: Tables,
        scale: f32,
        fault: Ptr<i32>,
    }
}

const STORE: Kernel<StoreKvArgs> = Kernel::new("store_kv", "store_kv");
/// Heads of a thread block of [`STORE`].
const STORE_HEADS: usize = 4;

const ATTENTION_F32: Kernel<AttentionArgs> = Kernel::new("attention", "attention_f32");
const ATTENTION_BF16: Kernel<AttentionArgs> = Kernel::new("attention", "attention_bf16");
const ATTENTION_TILES: Kernel<AttentionArgs> = Kernel::new("attention", "attention_tiles");

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
        let heads = args.q.columns / shape.head_dim + shape.heads;
        let norms = args.norms.as_ref();
        self.enqueue(
            &STORE,
            Grid::of(
                [args.q.bucket as u32, heads.div_ceil(STORE_HEADS) as u32, 1],
                32 * STORE_HEADS as u32,
            ),
            &StoreKvArgs {
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
            },
        );
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
        let heads = (args.q.columns / shape.head_dim) as u32;
        let kernel = match args.cache.layout() {
            KvLayout::F32 => &ATTENTION_F32,
            KvLayout::Bf16 => &ATTENTION_BF16,
            KvLayout::Tiles => &ATTENTION_TILES,
        };
        self.enqueue(
            kernel,
            Grid::of([args.q.bucket as u32, heads, 1], 256),
            &AttentionArgs {
                q: Matrix::of(args.q),
                gate: Matrix::of_optional(args.gate),
                out: Matrix::of(args.out),
                kv: KvView::of(args.cache, args.step),
                tables: Tables::of(args.step),
                scale: args.scale,
                fault: Ptr::new(self.context.fault),
            },
        );
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
