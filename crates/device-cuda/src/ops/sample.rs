//! Choosing tokens.

use super::checks::Checks;
use crate::arguments::{Ptr, arguments};
use crate::cuda::Cuda;
use crate::launch::{Grid, Kernel};
use crate::ops::dense::check_linear;
use crate::ops::product::Target;
use crate::pack::Architecture;
use crate::scratch::ScratchKind;
use crate::storage::CudaTensor;
use crate::views::{Matrix, PiecedProduct, Slots, Tables};
use crate::weight::Kind;
use paceline_device::abi::Logprobs;
use paceline_device::{SampledProduct, SampledText, Sampling};

arguments! { "sample.h";
    struct SampleArgs {
        logits: Matrix,
        step: Tables,
        /// Of rows with options.
        slots: Slots,
        plan: Ptr<i32>,
        tokens: Ptr<i32>,
        logprobs: Ptr<Logprobs>,
        fault: Ptr<i32>,
        /// Per row and part: the best of the part.
        parts: Ptr<u64>,
        /// Per row: not 0 if the largest logit is not all that it takes.
        open: Ptr<i32>,
        /// Per thread block: a row, if shared memory has no room for it.
        copies: Ptr<f32>,
        /// The product that logits are the results of, if it was left in pieces: then there are no logits yet.
        product: PiecedProduct,
        /// 0: rows have no options; else where the text before them is, see `options.cuh`.
        options: i32,
    }
}

const LARGEST: Kernel<SampleArgs> = Kernel::new("sample", "sample_largest");
const FINISH_OPEN: Kernel<SampleArgs> = Kernel::new("sample", "finish_open");
const TOGETHER: Kernel<SampleArgs> = Kernel::new("sample", "sample_together");
const ALONE: Kernel<SampleArgs> = Kernel::new("sample", "sample_alone");

/// Thread blocks of a cluster, and parts of a row in `sample_largest`.
const CLUSTER: u32 = 16;
const LOOKERS: u32 = 256;
const THREADS: u32 = 512;
/// Thread blocks of `finish_open` per multiprocessor.
const OPEN_BLOCKS: u32 = 4;
/// `sizeof(RowMemory)` of a cluster and of a thread block alone.
const TOGETHER_MEMORY: u32 = 50_048;
const ALONE_MEMORY: u32 = 49_792;
/// Vocabularies up to this size are left to one thread block per row, whose shared memory has room for them on every GPU.
const ALONE_VOCABULARY: usize = 8192;
/// Thread blocks with a copy of a row in memory: a megabyte each with the largest vocabularies.
const COPIES: u32 = 32;
/// Masses of this many tokens can be added up.
const MOST_TOKENS: usize = 1 << 20;

impl Cuda {
    pub(crate) fn enqueue_sample(&self, logits: &CudaTensor, args: &Sampling<'_, Self>) {
        let arguments = self.sample_arguments(logits, args);
        if self.samples_together(logits) {
            self.sample_together(logits, &arguments);
        } else {
            self.sample_alone(logits, &arguments);
        }
    }

    /// The output matrix and the choice behind it: logits that are left in pieces are written for rows that need them only.
    pub(crate) fn enqueue_sample_states(
        &self,
        product: &SampledProduct<'_, Self>,
        args: &Sampling<'_, Self>,
    ) {
        let (states, w, logits) = (&*product.states, product.w, &*product.logits);
        if w.kind() == Kind::F32 || !self.samples_together(logits) {
            self.enqueue_linear(states, w, &product.epilogue, logits);
            return self.enqueue_sample(logits, args);
        }
        check_linear(states, w, &product.epilogue, logits);
        let mut arguments = self.sample_arguments(logits, args);
        if let Some(pieces) = self.enqueue_product(states, w, &product.epilogue, Target::new(logits)) {
            arguments.product = pieces.product();
        }
        self.sample_together(logits, &arguments);
    }

    fn sample_arguments(&self, logits: &CudaTensor, args: &Sampling<'_, Self>) -> SampleArgs {
        let check = Checks("sample");
        let (rows, vocabulary) = (logits.bucket, logits.columns);
        check.room("rows of logits", &args.step.logits_rows, rows);
        check.room("tokens", args.tokens, rows);
        check.room("logprobs", args.logprobs, rows);
        assert!(
            vocabulary < MOST_TOKENS,
            "sample: a vocabulary of {vocabulary} tokens"
        );
        SampleArgs {
            logits: Matrix::of(logits),
            step: Tables::of(args.step),
            slots: args
                .options
                .as_ref()
                .map_or(Slots::NONE, |found| Slots::of(found.slots)),
            plan: args.options.as_ref().map_or(Ptr::NULL, |found| found.plan.ptr()),
            tokens: args.tokens.ptr(),
            logprobs: args.logprobs.ptr(),
            fault: self.fault(),
            parts: Ptr::NULL,
            open: Ptr::NULL,
            copies: Ptr::NULL,
            product: PiecedProduct::NONE,
            options: match (&args.options, args.text) {
                (None, _) => 0,
                (Some(_), SampledText::Step) => 1,
                (Some(_), SampledText::Drafts) => 2,
            },
        }
    }

    /// Whether several thread blocks have a row of logits. Copies of sixteen bytes need rows that begin at a multiple of them.
    fn samples_together(&self, logits: &CudaTensor) -> bool {
        let clusters = matches!(
            self.context.architecture,
            Architecture::Sm90a | Architecture::Sm100
        );
        clusters && logits.columns > ALONE_VOCABULARY && logits.first.is_multiple_of(4)
    }

    fn sample_together(&self, logits: &CudaTensor, arguments: &SampleArgs) {
        let (rows, slice) = (logits.bucket as u32, slice(logits.columns, CLUSTER));
        let parts = u64::from(rows * CLUSTER) * 8;
        let Some(address) = self.scratch(ScratchKind::Choices, parts + u64::from(rows) * 4) else {
            return;
        };
        let arguments = SampleArgs {
            parts: Ptr::new(address),
            open: Ptr::new(address + parts),
            ..*arguments
        };
        let looks = Grid::of([CLUSTER, rows, 1], LOOKERS);
        self.enqueue(&LARGEST, looks, &arguments);
        if !arguments.product.sums.data.is_null() {
            let grid = Grid::new(OPEN_BLOCKS * self.multiprocessors(), LOOKERS);
            self.enqueue(&FINISH_OPEN, grid, &arguments);
        }
        // Two thread blocks find room on a multiprocessor. More clusters than fit at a time would come second, and the parts of a
        // chip that clusters do not cross are rarely multiples of them.
        let fit = (self.multiprocessors() * 2 / CLUSTER).saturating_sub(2).max(1);
        let grid = Grid::new(rows.min(fit) * CLUSTER, THREADS)
            .cluster(CLUSTER)
            .shared(TOGETHER_MEMORY + slice * 4);
        self.enqueue(&TOGETHER, grid, &arguments);
    }

    fn sample_alone(&self, logits: &CudaTensor, arguments: &SampleArgs) {
        let (rows, slice) = (logits.bucket as u32, slice(logits.columns, 1));
        if logits.columns <= ALONE_VOCABULARY {
            let grid = Grid::new(rows, THREADS).shared(ALONE_MEMORY + slice * 4);
            self.enqueue(&ALONE, grid, arguments);
            return;
        }
        let blocks = rows.min(COPIES);
        let Some(address) = self.scratch(ScratchKind::Rows, u64::from(blocks) * u64::from(slice) * 4) else {
            return;
        };
        let arguments = SampleArgs {
            copies: Ptr::new(address),
            ..*arguments
        };
        let grid = Grid::new(blocks, THREADS).shared(ALONE_MEMORY);
        self.enqueue(&ALONE, grid, &arguments);
    }
}

/// Tokens of a row that one thread block of a cluster has.
fn slice(vocabulary: usize, cluster: u32) -> u32 {
    (vocabulary as u32).div_ceil(cluster * 128) * 128
}
