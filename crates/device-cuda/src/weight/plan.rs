//! Where the sums of a product are cut: `kernels/kplan.cuh` says how a plan is read.

use super::{Kind, TILE};
use crate::views::KPlan;

/// Workers per tile at most, so that a tile has no more pieces than the kernels that add them up have registers for.
const WORKERS_PER_TILE: usize = 7;

impl KPlan {
    /// The plan of a weight that is multiplied with alone: as many workers as the GPU has multiprocessors, if there is
    /// enough to share. Whole tiles first, as many to each, and what is left is shared. Tiles that nearly are as many as
    /// multiprocessors are not cut at all: their results need nobody to add them up.
    pub(crate) fn shared((outputs, inputs): (usize, usize), kind: Kind, multiprocessors: usize) -> Self {
        let (tiles, blocks) = (outputs.div_ceil(TILE), inputs.div_ceil(kind.block()));
        let whole = match kind {
            Kind::F8 => 0,
            _ if tiles < multiprocessors && 5 * tiles >= 3 * multiprocessors => tiles,
            _ => tiles - tiles % multiprocessors,
        };
        let cut = tiles - whole;
        // As many workers to each tile, if that leaves few multiprocessors idle: fewer tiles have a piece more.
        let even = multiprocessors / cut.max(1) * cut;
        let sharing = if kind != Kind::F8 && 10 * even >= 9 * multiprocessors {
            even
        } else {
            multiprocessors
        };
        Self::new((tiles, blocks), (whole, multiprocessors), sharing)
    }

    /// The plan of a weight that is multiplied with beside many others: no sum is cut.
    pub(crate) fn whole((outputs, inputs): (usize, usize), kind: Kind) -> Self {
        let (tiles, blocks) = (outputs.div_ceil(TILE), inputs.div_ceil(kind.block()));
        Self::new((tiles, blocks), (tiles, tiles), 1)
    }

    /// Whole tiles for so many workers at most, and the others shared by so many at most.
    fn new((tiles, blocks): (usize, usize), (whole, workers): (usize, usize), sharing: usize) -> Self {
        let cut = tiles - whole;
        let shares = sharing.min(cut * WORKERS_PER_TILE).min(cut * blocks).max(1);
        let owner = |block: usize| ((block + 1) * shares - 1) / (cut * blocks);
        let pieces = (0..cut)
            .map(|tile| owner((tile + 1) * blocks - 1) - owner(tile * blocks) + 1)
            .max();
        Self {
            tiles: tiles as u32,
            blocks: blocks as u32,
            workers: whole.min(workers).max(shares) as u32,
            pieces: pieces.unwrap_or(1) as u32,
            whole: whole as u32,
            shares: shares as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same number in `kernels/kplan.cuh`.
    const PIECE_LIMIT: usize = 8;

    /// The blocks of each worker, as kernels find them.
    fn blocks_of(plan: &KPlan, worker: usize) -> Vec<usize> {
        let [tiles, blocks, workers, whole, shares] =
            [plan.tiles, plan.blocks, plan.workers, plan.whole, plan.shares].map(|x| x as usize);
        let begin = |worker: usize| (tiles - whole) * blocks * worker.min(shares) / shares;
        let first = |worker: usize| whole * worker / workers * blocks;
        let behind = whole * blocks;
        (first(worker)..first(worker + 1))
            .chain(behind + begin(worker)..behind + begin(worker + 1))
            .collect()
    }

    fn check(plan: &KPlan, name: &str) {
        let blocks = plan.blocks as usize;
        let mut owners = vec![None; plan.tiles as usize * blocks];
        for worker in 0..plan.workers as usize {
            let own = blocks_of(plan, worker);
            assert!(!own.is_empty(), "an empty share of {name}");
            for block in own {
                assert!(owners[block].replace(worker).is_none(), "{name}: block {block}");
            }
        }
        let mut most = 1;
        for (tile, owners) in owners.chunks(blocks).enumerate() {
            let owners: Vec<usize> = owners.iter().map(|owner| owner.unwrap()).collect();
            let pieces = owners.chunk_by(|a, b| a == b).count();
            assert!(pieces == 1 || tile >= plan.whole as usize, "{name}: tile {tile}");
            most = most.max(pieces);
            if tile >= plan.whole as usize {
                let cut = (plan.tiles - plan.whole) as usize * blocks;
                let first = (tile - plan.whole as usize) * blocks;
                for (block, owner) in owners.iter().enumerate() {
                    assert_eq!(*owner, ((first + block + 1) * plan.shares as usize - 1) / cut);
                }
            }
        }
        assert_eq!(most, plan.pieces as usize, "{name}");
        assert!(most <= PIECE_LIMIT, "{most} pieces of {name}");
        assert!(u32::try_from(plan.tiles as usize * blocks * plan.workers as usize).is_ok());
    }

    #[test]
    fn every_block_has_one_owner_and_no_tile_too_many_pieces() {
        for multiprocessors in [1, 7, 108, 132, 148] {
            for outputs in [1, 100, 128, 129, 640, 2560, 12352, 18432, 34_048, 248_320] {
                for inputs in [1, 64, 65, 576, 960, 2560, 4096, 9216] {
                    for kind in [Kind::Bf16, Kind::F8] {
                        let plan = KPlan::shared((outputs, inputs), kind, multiprocessors);
                        check(&plan, &format!("[{outputs}, {inputs}] for {multiprocessors}"));
                    }
                }
            }
        }
    }

    #[test]
    fn a_whole_plan_cuts_no_sum() {
        let plan = KPlan::whole((1000, 2048), Kind::Bf16);
        check(&plan, "a whole plan");
        assert_eq!((plan.tiles, plan.blocks, plan.workers, plan.whole), (8, 32, 8, 8));
        assert_eq!(KPlan::whole((1000, 2048), Kind::F8).blocks, 16);
    }
}
