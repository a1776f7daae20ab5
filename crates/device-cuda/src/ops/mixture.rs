//! What is around the products of experts: the choice, the sorting of rows, and what results add up to.

use crate::arguments::{Ptr, arguments};
use crate::cuda::Cuda;
use crate::launch::{Grid, Kernel};
use crate::ops::checks::Checks;
use crate::ops::dense::{ResidualNormArgs, RouteArgs, check_linear, elements};
use crate::ops::experts::{CudaExperts, check_experts};
use crate::ops::inputs::RoundedInputs;
use crate::ops::norms::{by_columns, check_add_norm, norm_written};
use crate::ops::product::{Strips, Target};
use crate::scratch::ScratchKind;
use crate::views::{Matrix, PiecedProduct, RoundedRows};
use crate::weight::Kind;
use paceline_device::{Experts, Mixture, MoeRouting, Product, ResidualNorm, Router};
use std::mem::offset_of;

arguments! { "experts.h";
    /// Pairs to be sorted by expert.
    struct SortArgs {
        /// The expert of each pair, rows one behind the other.
        ids: Ptr<i32>,
        live: Ptr<i32>,
        /// Strips and slots.
        counts: Ptr<i32>,
        /// Of each strip: where the matrices of its expert are, and which of its slots have rows.
        strip_up: Ptr<u64>,
        strip_down: Ptr<u64>,
        strip_slots: Ptr<u32>,
        slot_row: Ptr<i32>,
        pair_slot: Ptr<i32>,
        /// The matrices of each expert.
        up: Ptr<u64>,
        down: Ptr<u64>,
        bucket: u32,
        chosen: u32,
        experts: u32,
        height: u32,
        /// A strip has all rows, a slot for each.
        together: u32,
    }

    /// The choice of experts and the sorting of pairs. Logits are partial sums of a product, or lie there.
    struct RouteFewArgs {
        product: PiecedProduct,
        route: RouteArgs,
        sort: SortArgs,
    }

    /// Results of slots that rows add up.
    struct CombineArgs {
        results: Matrix,
        weights: Matrix,
        out: Matrix,
        pair_slot: Ptr<i32>,
        chosen: u32,
    }

    /// The same, added to the residual stream, and the norm behind that.
    struct CombineNormArgs {
        experts: CombineArgs,
        norm: ResidualNormArgs,
        rounded: RoundedRows,
        /// Everything but the results is there before the kernel ahead has ended.
        early: u32,
    }
}

const SORT_PAIRS: Kernel<SortArgs> = Kernel::new("experts", "sort_pairs");
const SORT_FEW: Kernel<SortArgs> = Kernel::new("experts", "sort_few");
const ROUTE_FEW: Kernel<RouteFewArgs> = Kernel::new("experts", "route_few");
const COMBINE: Kernel<CombineArgs> = Kernel::new("experts", "combine");
const COMBINE_ADD_NORM: [Kernel<CombineNormArgs>; 3] = [
    Kernel::new("experts", "combine_add_norm_256"),
    Kernel::new("experts", "combine_add_norm_512"),
    Kernel::new("experts", "combine_add_norm_768"),
];

/// Experts of which the thread block that sorts the pairs of many rows has room to count for each of 32 warps.
const MANY_WARPS: usize = 512;
/// Rows whose experts one thread block chooses and sorts: the kernels' `FEW`.
const FEW: usize = 64;
/// Bytes of shared memory that every GPU has for a thread block.
const SHARED: usize = 99 * 1024;

/// Pairs in strips, and where the slot of each is found.
pub(crate) struct Sorted {
    pub(crate) strips: Strips,
    pair_slot: Ptr<i32>,
}

impl Cuda {
    /// The router's product, the choice, the experts, and the end: the addition to the residual stream and its norm.
    pub(crate) fn enqueue_mix_experts(&self, mixture: &Mixture<'_, Self>, norm: &ResidualNorm<'_, Self>) {
        let Mixture { router, routing, .. } = mixture;
        check_linear(router.x, router.w, &router.epilogue, router.out);
        let args = Experts {
            x: router.x,
            routing,
            experts: mixture.experts,
            activation: mixture.activation,
            out: &mut mixture.out.clone(),
        };
        check_experts(&args);
        check_add_norm(mixture.out, norm);
        let check = Checks("mix_experts");
        check.columns("logits", router.out, mixture.experts.len());
        check.apart(norm.residual, &[router.x]);
        // Without memory nothing is enqueued, and whoever waits next is told.
        let _ = self.mix_experts(mixture, &args, norm);
    }

    fn mix_experts(
        &self,
        mixture: &Mixture<'_, Self>,
        args: &Experts<'_, Self>,
        norm: &ResidualNorm<'_, Self>,
    ) -> Option<()> {
        let router = &mixture.router;
        let choice = Router {
            logits: router.out,
            scores: mixture.scores.clone(),
            shared: mixture.shared,
            out: &mut again(mixture.routing),
        };
        let route = self.route_arguments(&choice);
        let sorted = if let Some(block) = block_of_few(args, &route) {
            self.route_few(router, args, (route, block))?
        } else {
            self.enqueue_linear(router.x, router.w, &router.epilogue, router.out);
            self.enqueue_route(&choice);
            self.sort_pairs(args)?
        };
        let results = self.expert_products(args, &sorted.strips)?;
        self.combine_add_norm(args, (&sorted, results), norm);
        Some(())
    }

    /// Enqueues the router's product, and one kernel that adds it up, chooses and sorts.
    fn route_few(
        &self,
        router: &Product<'_, Self>,
        args: &Experts<'_, Self>,
        (route, block): (RouteArgs, Grid),
    ) -> Option<Sorted> {
        let Product { x, w, epilogue, out } = router;
        let product = if w.kind() == Kind::F32 {
            self.enqueue_linear(x, w, epilogue, out);
            PiecedProduct::NONE
        } else {
            let pieces = self.enqueue_product(x, w, epilogue, Target::new(out));
            pieces.map_or(PiecedProduct::NONE, |pieces| pieces.product())
        };
        let (sorted, sort) = self.sorting(args)?;
        let arguments = RouteFewArgs { product, route, sort };
        self.enqueue_beside_inputs(&ROUTE_FEW, block, &arguments);
        Some(sorted)
    }

    /// Enqueues the sorting of pairs into strips.
    pub(crate) fn sort_pairs(&self, args: &Experts<'_, Self>) -> Option<Sorted> {
        let (sorted, arguments) = self.sorting(args)?;
        let experts = args.experts.len();
        if args.x.bucket <= FEW {
            let grid = Grid::new(1, 512).shared((3 * experts * 4) as u32);
            self.enqueue_beside_inputs(&SORT_FEW, grid, &arguments);
        } else {
            let warps = if experts <= MANY_WARPS { 32 } else { 16 };
            let shared = ((warps + 2) * experts * 4) as u32;
            let grid = Grid::new(1, warps as u32 * 32).shared(shared);
            self.enqueue_beside_inputs(&SORT_PAIRS, grid, &arguments);
        }
        Some(sorted)
    }

    /// Room for the pairs of a step in strips, and what a kernel that sorts them is told.
    fn sorting(&self, args: &Experts<'_, Self>) -> Option<(Sorted, SortArgs)> {
        let (routing, rows) = (args.routing, args.x.bucket);
        let experts: &CudaExperts = args.experts;
        let pairs = rows * routing.chosen;
        let (height, together) = self.strips_of(experts, rows, pairs);
        // All strips but one per expert are full; with all rows together, an expert has one.
        let full = if together { 0 } else { pairs / height };
        let most = full + experts.len().min(pairs);
        let strip_words = (2 + 5 * most).next_multiple_of(2);
        let bytes = (strip_words + most * height + pairs) as u64 * 4;
        let counts = self.scratch(ScratchKind::Routing, bytes)?;
        let at = |words: usize| counts + words as u64 * 4;
        let strips = Strips {
            height,
            most,
            counts,
            matrices: [Ptr::new(at(2)), Ptr::new(at(2 + 2 * most))],
            taken: Ptr::new(at(2 + 4 * most)),
            together,
            rows: Ptr::new(at(strip_words)),
        };
        let pair_slot = Ptr::new(at(strip_words + most * height));
        let [up, down] = experts.addresses();
        let arguments = SortArgs {
            ids: routing.ids.ptr(),
            live: args.x.live.ptr(),
            counts: Ptr::new(counts),
            strip_up: strips.matrices[0],
            strip_down: strips.matrices[1],
            strip_slots: strips.taken,
            slot_row: strips.rows,
            pair_slot,
            up,
            down,
            bucket: rows as u32,
            chosen: routing.chosen as u32,
            experts: experts.len() as u32,
            height: height as u32,
            together: u32::from(together),
        };
        Some((Sorted { strips, pair_slot }, arguments))
    }

    /// Enqueues the sums of rows.
    pub(crate) fn combine(&self, args: &Experts<'_, Self>, sorted: &Sorted, results: Matrix) {
        let arguments = combining(args.routing, sorted, results, Matrix::of(args.out));
        self.enqueue(&COMBINE, elements(args.out.bucket, args.out.columns), &arguments);
    }

    fn combine_add_norm(
        &self,
        args: &Experts<'_, Self>,
        (sorted, results): (&Sorted, Matrix),
        norm: &ResidualNorm<'_, Self>,
    ) {
        let next = self.next_inputs(norm.out);
        let arguments = CombineNormArgs {
            experts: combining(args.routing, sorted, results, Matrix::NONE),
            norm: ResidualNormArgs::of(norm),
            rounded: RoundedInputs::rows(next),
            early: u32::from(!args.experts.is_exact()),
        };
        let (at, threads) = by_columns(norm.out.columns);
        let written = norm_written(norm, offset_of!(CombineNormArgs, norm)).spare_if(next.is_some());
        let grid = Grid::new(norm.out.bucket as u32, threads);
        self.enqueue_writing(&COMBINE_ADD_NORM[at], grid, &arguments, Some(written));
        self.keep_inputs(next);
    }
}

/// The thread block that chooses and sorts, if there are few rows.
fn block_of_few(args: &Experts<'_, Cuda>, route: &RouteArgs) -> Option<Grid> {
    let (rows, experts) = (args.x.bucket, args.experts.len());
    // A thread for every expert, and a warp for every row, if there are not too many.
    let warps = rows.max(experts.div_ceil(32)).min(32);
    let scores = if route.sigmoid == 1 {
        warps * (experts + route.groups as usize)
    } else {
        0
    };
    let words = (3 * experts + rows * args.routing.chosen).next_multiple_of(4);
    let shared = 4 * (words + rows * experts.next_multiple_of(4) + scores);
    let grid = Grid::new(1, warps as u32 * 32).shared(shared as u32);
    (rows <= FEW && shared <= SHARED).then_some(grid)
}

fn combining(routing: &MoeRouting<Cuda>, sorted: &Sorted, results: Matrix, out: Matrix) -> CombineArgs {
    CombineArgs {
        results,
        weights: Matrix::of(&routing.weights),
        out,
        pair_slot: sorted.pair_slot,
        chosen: routing.chosen as u32,
    }
}

/// Another handle of a choice.
fn again(routing: &MoeRouting<Cuda>) -> MoeRouting<Cuda> {
    MoeRouting {
        ids: routing.ids.clone(),
        weights: routing.weights.clone(),
        chosen: routing.chosen,
    }
}
