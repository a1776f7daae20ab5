//! Where the sums of a product are cut: `kernels/kplan.cuh` says how a plan is read.

use super::TILE;
use crate::views::KPlan;

/// Workers per tile at most, so that a tile has no more pieces than the kernels that add them up have registers for.
const WORKERS_PER_TILE: usize = 7;

impl KPlan {
    /// The plan of a weight that is multiplied with alone: as many workers as the GPU has multiprocessors, if there is
    /// enough to share.
    pub(crate) fn shared((outputs, inputs): (usize, usize), block: usize, multiprocessors: usize) -> Self {
        let (tiles, blocks) = (outputs.div_ceil(TILE), inputs.div_ceil(block));
        let workers = multiprocessors.min(tiles * WORKERS_PER_TILE).min(tiles * blocks);
        Self::new(tiles, blocks, workers)
    }

    /// The plan of a weight that is multiplied with beside many others: no sum is cut.
    pub(crate) fn whole((outputs, inputs): (usize, usize), block: usize) -> Self {
        let (tiles, blocks) = (outputs.div_ceil(TILE), inputs.div_ceil(block));
        Self::new(tiles, blocks, tiles)
    }

    fn new(tiles: usize, blocks: usize, workers: usize) -> Self {
        let owner = |unit: usize| ((unit + 1) * workers - 1) / (tiles * blocks);
        let pieces = (0..tiles)
            .map(|tile| owner((tile + 1) * blocks - 1) - owner(tile * blocks) + 1)
            .max();
        Self {
            tiles: tiles as u32,
            blocks: blocks as u32,
            workers: workers as u32,
            pieces: pieces.unwrap_or(1) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same number in `kernels/kplan.cuh`.
    const PIECE_LIMIT: usize = 8;

    /// The blocks at which a share begins, as kernels compute them.
    fn begins(plan: &KPlan) -> Vec<usize> {
        let total = plan.tiles as usize * plan.blocks as usize;
        (0..=plan.workers as usize)
            .map(|worker| total * worker / plan.workers as usize)
            .collect()
    }

    #[test]
    fn every_block_has_one_owner_and_no_tile_too_many_pieces() {
        for multiprocessors in [1, 7, 108, 132, 148] {
            for outputs in [1, 100, 128, 129, 640, 2560, 12352, 18432, 248_320] {
                for inputs in [1, 64, 65, 576, 960, 2560, 4096, 9216] {
                    let plan = KPlan::shared((outputs, inputs), 64, multiprocessors);
                    let begins = begins(&plan);
                    assert!(
                        begins.windows(2).all(|pair| pair[0] < pair[1]),
                        "an empty share of [{outputs}, {inputs}]"
                    );
                    let blocks = plan.blocks as usize;
                    let total = *begins.last().unwrap();
                    let mut most = 0;
                    for tile in 0..plan.tiles as usize {
                        let inside =
                            |begin: &&usize| **begin > tile * blocks && **begin < (tile + 1) * blocks;
                        most = most.max(begins.iter().filter(inside).count() + 1);
                    }
                    assert_eq!(most, plan.pieces as usize, "[{outputs}, {inputs}]");
                    assert!(most <= PIECE_LIMIT, "{most} pieces of [{outputs}, {inputs}]");
                    for unit in (0..total).step_by(1 + total / 500) {
                        let owner = ((unit + 1) * plan.workers as usize - 1) / total;
                        assert!(begins[owner] <= unit && unit < begins[owner + 1]);
                    }
                    assert!(u32::try_from(total * plan.workers as usize).is_ok());
                }
            }
        }
    }

    #[test]
    fn a_whole_plan_cuts_no_sum() {
        let plan = KPlan::whole((1000, 2048), 64);
        assert_eq!(
            (plan.tiles, plan.blocks, plan.workers, plan.pieces),
            (8, 32, 8, 1)
        );
        assert_eq!(KPlan::whole((1000, 2048), 128).blocks, 16);
    }
}
