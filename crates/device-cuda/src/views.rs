//! Tensors, tables, slots, rings and caches as kernels see them.

use crate::arguments::{Ptr, arguments};
use crate::cuda::Cuda;
use crate::storage::{CudaBuffer, CudaTensor};
use paceline_device::abi::{LogitsRow, RecordHeader, RecordRow, RequestRow, Slot, TokenRow, Wide};
use paceline_device::{SlotTable, StepRecord, StepRings, StepTables};

arguments! { "views.h";
    /// A tensor: rows of f32, `stride` elements apart, of which `*live` carry data.
    struct Matrix {
        data: Ptr<f32>,
        live: Ptr<i32>,
        stride: u32,
        columns: u32,
        bucket: u32,
    }

    /// [`StepTables`].
    struct Tables {
        tokens: Ptr<TokenRow>,
        requests: Ptr<RequestRow>,
        logits: Ptr<LogitsRow>,
        block_table: Ptr<i32>,
        live_tokens: Ptr<i32>,
        live_requests: Ptr<i32>,
        live_logits: Ptr<i32>,
        token_bucket: u32,
        request_bucket: u32,
        logits_bucket: u32,
        blocks_per_request: u32,
        block_size: u32,
    }

    /// [`SlotTable`].
    struct Slots {
        state: Ptr<Slot>,
        lists: Ptr<i32>,
        block_table: Ptr<i32>,
        history: Ptr<i32>,
        drafter_saved: Ptr<i32>,
        slots: u32,
        blocks_per_slot: u32,
        blocks: u32,
        block_size: u32,
        snapshots: u32,
    }

    /// [`StepRings`]. A place of either is `stride` words; the last word of a record's place is the number of the step
    /// that wrote it, written last.
    struct Rings {
        plans: Ptr<i32>,
        records: Ptr<i32>,
        begun: Ptr<Wide>,
        depth: u32,
        plan_words: u32,
        plan_stride: u32,
        record_words: u32,
        record_stride: u32,
    }

    /// A weight, for kernels that read rows of it; `kernels/weight.cuh` has the layouts.
    struct RowSource {
        data: Ptr<u8>,
        kind: u32,
        rows: u32,
        columns: u32,
        /// f32: elements from one row to the next. Else blocks of inputs.
        pitch: u32,
    }

    /// Where the sums of a product with a weight are cut; `kernels/kplan.cuh` says how.
    struct KPlan {
        tiles: u32,
        blocks: u32,
        workers: u32,
        /// Most pieces of a tile.
        pieces: u32,
        /// Tiles that are not cut.
        whole: u32,
        /// Workers that share the others.
        shares: u32,
    }

    /// Partial sums of a product of up to `width` tokens; `kernels/pieces.cuh` says where each is. None if `data` is null.
    struct PieceRows {
        data: Ptr<f32>,
        plan: KPlan,
        width: u32,
    }

    /// Partial sums of a product, and what happens to their sum.
    struct PiecedProduct {
        sums: PieceRows,
        bias: Ptr<f32>,
        scale: Ptr<f32>,
        outputs: u32,
        gated: u32,
    }

    /// Rows rounded to the type of a weight, where a product looks for its inputs: strips of `height` rows of `blocks`
    /// blocks. Nowhere if `data` is null.
    struct RoundedRows {
        data: Ptr<u8>,
        height: u32,
        blocks: u32,
        half: u32,
    }

    /// [`StepRecord`].
    struct Findings {
        header: Ptr<RecordHeader>,
        rows: Ptr<RecordRow>,
        row_count: u32,
    }

    /// A [`CudaKvCache`](crate::CudaKvCache), and how many requests have a row in the step's block table.
    struct KvView {
        keys: Ptr<u8>,
        values: Ptr<u8>,
        layout: i32,
        blocks: u32,
        block_size: u32,
        heads: u32,
        head_dim: u32,
        table_rows: u32,
    }

    /// A [`CudaStateCache`](crate::CudaStateCache).
    struct StateView {
        matrices: Ptr<f32>,
        keys: Ptr<f32>,
        values: Ptr<f32>,
        decays: Ptr<f32>,
        inputs: Ptr<f32>,
        saved_matrices: Ptr<f32>,
        saved_inputs: Ptr<f32>,
        slots: u32,
        snapshots: u32,
        heads: u32,
        groups: u32,
        rows: u32,
        columns: u32,
        entries: u32,
        conv_inputs: u32,
        conv_channels: u32,
        conv_width: u32,
    }
}

impl PieceRows {
    /// No partial sums.
    pub(crate) const NONE: Self = Self {
        data: Ptr::NULL,
        plan: KPlan {
            tiles: 0,
            blocks: 0,
            workers: 0,
            pieces: 0,
            whole: 0,
            shares: 1,
        },
        width: 0,
    };
}

impl PiecedProduct {
    /// No product.
    pub(crate) const NONE: Self = Self {
        sums: PieceRows::NONE,
        bias: Ptr::NULL,
        scale: Ptr::NULL,
        outputs: 0,
        gated: 0,
    };
}

impl Matrix {
    /// No tensor.
    pub(crate) const NONE: Self = Self {
        data: Ptr::NULL,
        live: Ptr::NULL,
        stride: 0,
        columns: 0,
        bucket: 0,
    };

    /// A tensor that may be missing.
    pub(crate) fn of_optional(tensor: Option<&CudaTensor>) -> Self {
        tensor.map_or(Self::NONE, Self::of)
    }

    /// A tensor.
    pub(crate) fn of(tensor: &CudaTensor) -> Self {
        Self {
            data: tensor.data(),
            live: tensor.live.ptr(),
            stride: tensor.stride as u32,
            columns: tensor.columns as u32,
            bucket: tensor.bucket as u32,
        }
    }

    /// Whether four elements of a row can be read at a time.
    pub(crate) const fn in_fours(&self) -> bool {
        self.data.is_aligned(16) && self.stride.is_multiple_of(4)
    }
}

impl Tables {
    /// A step's tables.
    pub(crate) fn of(step: &StepTables<Cuda>) -> Self {
        Self {
            tokens: step.token_rows.ptr(),
            requests: step.request_rows.ptr(),
            logits: step.logits_rows.ptr(),
            block_table: step.block_table.ptr(),
            live_tokens: step.tokens.live.ptr(),
            live_requests: step.requests.live.ptr(),
            live_logits: step.samples.live.ptr(),
            token_bucket: step.tokens.bucket as u32,
            request_bucket: step.requests.bucket as u32,
            logits_bucket: step.samples.bucket as u32,
            blocks_per_request: step.limits.blocks_per_request as u32,
            block_size: step.limits.block_size as u32,
        }
    }
}

impl Slots {
    /// No slots.
    pub(crate) const NONE: Self = Self {
        state: Ptr::NULL,
        lists: Ptr::NULL,
        block_table: Ptr::NULL,
        history: Ptr::NULL,
        drafter_saved: Ptr::NULL,
        slots: 0,
        blocks_per_slot: 0,
        blocks: 0,
        block_size: 1,
        snapshots: 0,
    };

    /// The slots.
    pub(crate) fn of(slots: &SlotTable<Cuda>) -> Self {
        Self {
            state: slots.state.ptr(),
            lists: slots.lists.ptr(),
            block_table: slots.block_table.ptr(),
            history: slots.history.ptr(),
            drafter_saved: slots.drafter_saved.ptr(),
            slots: slots.limits.slots as u32,
            blocks_per_slot: slots.limits.blocks_per_slot as u32,
            blocks: slots.limits.blocks as u32,
            block_size: slots.limits.block_size as u32,
            snapshots: slots.limits.snapshots as u32,
        }
    }
}

impl Rings {
    /// The rings.
    pub(crate) fn of(rings: &StepRings<Cuda>) -> Self {
        Self {
            plans: rings.plans.ptr(),
            records: rings.records.ptr(),
            begun: rings.begun.ptr(),
            depth: rings.depth as u32,
            plan_words: rings.plans.words() as u32,
            plan_stride: rings.plans.stride() as u32,
            record_words: rings.records.words() as u32,
            record_stride: rings.records.stride() as u32,
        }
    }
}

impl Findings {
    /// A step's record.
    pub(crate) fn of(record: &StepRecord<Cuda>) -> Self {
        Self {
            header: record.header.ptr(),
            rows: record.rows.ptr(),
            row_count: record.rows.len() as u32,
        }
    }
}

/// The address of a buffer that may be missing.
pub(crate) fn optional<T: paceline_device::Element>(buffer: Option<&CudaBuffer<T>>) -> Ptr<T> {
    buffer.map_or(Ptr::NULL, CudaBuffer::ptr)
}
