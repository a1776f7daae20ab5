//! The pool of blocks: reference counts and the lists of free ones.
//!
//! A block is in use (counted), free and empty, or free and cached: its content is still in the prefix index
//! and comes back to life on a hit. Fresh blocks are taken from the empty ones first, then from the cached ones,
//! least recently used first. Every operation is O(1) but [`BlockPool::reusable`] and [`BlockPool::check_integrity`].

use crate::list::{Links, List};
use paceline_types::BlockId;

/// Blocks by number, without their content.
#[derive(Debug)]
pub struct BlockPool {
    references: Vec<u32>,
    /// In the prefix index.
    cached: Vec<bool>,
    links: Links,
    empty: List,
    reusable: List,
}

/// A fresh block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocated {
    /// Which; it has one reference.
    pub block: BlockId,
    /// It was cached until now: the caller takes it out of the prefix index.
    pub evicted: bool,
}

impl BlockPool {
    /// A pool of empty blocks.
    pub fn new(blocks: usize) -> Self {
        let mut pool = Self {
            references: vec![0; blocks],
            cached: vec![false; blocks],
            links: Links::new(blocks),
            empty: List::new(),
            reusable: List::new(),
        };
        for block in 0..blocks as u32 {
            pool.empty.push_newest(&mut pool.links, block);
        }
        pool
    }

    /// Blocks in all.
    pub fn len(&self) -> usize {
        self.references.len()
    }

    /// Whether the pool has no blocks at all.
    pub fn is_empty(&self) -> bool {
        self.references.is_empty()
    }

    /// Blocks that [`allocate`](Self::allocate) could hand out now.
    pub fn free(&self) -> usize {
        self.empty.len() + self.reusable.len()
    }

    /// Free blocks whose content is still in the prefix index.
    pub fn cached_free(&self) -> usize {
        self.reusable.len()
    }

    /// References to a block.
    pub fn references(&self, block: BlockId) -> u32 {
        self.references[block.0 as usize]
    }

    /// Takes a fresh block, evicting the least recently used cached one if no empty one is left.
    pub fn allocate(&mut self) -> Option<Allocated> {
        let (block, evicted) = match self.empty.pop_oldest(&mut self.links) {
            Some(block) => (block, false),
            None => (self.reusable.pop_oldest(&mut self.links)?, true),
        };
        let index = block as usize;
        assert!(self.references[index] == 0, "block {block} was free and in use");
        assert!(
            self.cached[index] == evicted,
            "block {block} was in the wrong free list"
        );
        self.references[index] = 1;
        self.cached[index] = false;
        Some(Allocated {
            block: BlockId(block),
            evicted,
        })
    }

    /// The blocks that are free and cached, least recently used first. Linear in them.
    pub fn reusable(&self) -> impl Iterator<Item = BlockId> + use<> {
        self.reusable.items(&self.links).into_iter().map(BlockId)
    }

    /// Adds a reference to a block in use or cached.
    pub fn retain(&mut self, block: BlockId) {
        let index = block.0 as usize;
        if self.references[index] == 0 {
            assert!(self.cached[index], "block {} has no content to share", block.0);
            self.reusable.remove(&mut self.links, block.0);
        }
        self.references[index] += 1;
    }

    /// Takes a reference away; the last one frees the block, as the most recently used if it is cached.
    pub fn release(&mut self, block: BlockId) {
        let index = block.0 as usize;
        assert!(self.references[index] > 0, "block {} was released twice", block.0);
        self.references[index] -= 1;
        if self.references[index] == 0 {
            let list = if self.cached[index] {
                &mut self.reusable
            } else {
                &mut self.empty
            };
            list.push_newest(&mut self.links, block.0);
        }
    }

    /// Marks a free cached block as used just now; does nothing to a block in use.
    pub fn touch(&mut self, block: BlockId) {
        if self.references[block.0 as usize] == 0 {
            assert!(
                self.cached[block.0 as usize],
                "block {} has no content to touch",
                block.0
            );
            self.reusable.remove(&mut self.links, block.0);
            self.reusable.push_newest(&mut self.links, block.0);
        }
    }

    /// Notes that a block in use has entered the prefix index.
    pub fn enter_index(&mut self, block: BlockId) {
        let index = block.0 as usize;
        assert!(
            self.references[index] > 0,
            "block {} is indexed without an owner",
            block.0
        );
        assert!(!self.cached[index], "block {} is indexed twice", block.0);
        self.cached[index] = true;
    }

    /// Notes that a block has left the prefix index; a free one is empty from now on.
    pub fn leave_index(&mut self, block: BlockId) {
        let index = block.0 as usize;
        assert!(self.cached[index], "block {} is not indexed", block.0);
        self.cached[index] = false;
        if self.references[index] == 0 {
            self.reusable.remove(&mut self.links, block.0);
            self.empty.push_newest(&mut self.links, block.0);
        }
    }

    /// Whether a block is in the prefix index.
    pub fn is_indexed(&self, block: BlockId) -> bool {
        self.cached[block.0 as usize]
    }

    /// Panics unless every block is in exactly one state and the lists and counts agree. Linear in the pool.
    pub fn check_integrity(&self) {
        let mut free = vec![false; self.len()];
        for (list, cached) in [(&self.empty, false), (&self.reusable, true)] {
            for block in list.items(&self.links) {
                let index = block as usize;
                assert!(!free[index], "block {block} is in two lists");
                assert!(self.cached[index] == cached, "block {block} is in the wrong list");
                free[index] = true;
            }
        }
        for (block, free) in free.iter().enumerate() {
            let in_use = self.references[block] > 0;
            assert!(
                in_use != *free,
                "block {block}: in use {in_use}, in a free list {free}"
            );
        }
    }

    #[cfg(test)]
    fn link_writes(&self) -> u64 {
        self.links.writes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[derive(Clone, Debug)]
    enum Op {
        Allocate,
        Retain(usize),
        Release(usize),
        Enter(usize),
        Leave(usize),
        Touch(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            3 => Just(Op::Allocate),
            1 => (0..64usize).prop_map(Op::Retain),
            3 => (0..64usize).prop_map(Op::Release),
            2 => (0..64usize).prop_map(Op::Enter),
            1 => (0..64usize).prop_map(Op::Leave),
            1 => (0..64usize).prop_map(Op::Touch),
        ]
    }

    /// The pool as a scan over everything.
    #[derive(Default)]
    struct Naive {
        references: Vec<u32>,
        cached: Vec<bool>,
        empty: VecDeque<u32>,
        reusable: VecDeque<u32>,
    }

    impl Naive {
        fn apply(&mut self, op: &Op, pool: &mut BlockPool) {
            let n = self.references.len();
            let pick = |i: usize| (i % n, BlockId((i % n) as u32));
            match *op {
                Op::Allocate => {
                    let from_empty = self.empty.pop_front();
                    let evicted = from_empty.is_none();
                    let block = from_empty.or_else(|| self.reusable.pop_front());
                    if let Some(block) = block {
                        self.references[block as usize] = 1;
                        self.cached[block as usize] = false;
                    }
                    let block = block.map(BlockId);
                    assert_eq!(pool.allocate(), block.map(|block| Allocated { block, evicted }));
                }
                Op::Retain(i) => {
                    let (i, block) = pick(i);
                    if self.references[i] > 0 || self.cached[i] {
                        self.reusable.retain(|b| *b != block.0);
                        self.references[i] += 1;
                        pool.retain(block);
                    }
                }
                Op::Release(i) => {
                    let (i, block) = pick(i);
                    if self.references[i] > 0 {
                        self.references[i] -= 1;
                        if self.references[i] == 0 {
                            let list = if self.cached[i] {
                                &mut self.reusable
                            } else {
                                &mut self.empty
                            };
                            list.push_back(block.0);
                        }
                        pool.release(block);
                    }
                }
                Op::Enter(i) => {
                    let (i, block) = pick(i);
                    if self.references[i] > 0 && !self.cached[i] {
                        self.cached[i] = true;
                        pool.enter_index(block);
                    }
                }
                Op::Leave(i) => {
                    let (i, block) = pick(i);
                    if self.cached[i] {
                        self.cached[i] = false;
                        if self.references[i] == 0 {
                            self.reusable.retain(|b| *b != block.0);
                            self.empty.push_back(block.0);
                        }
                        pool.leave_index(block);
                    }
                }
                Op::Touch(i) => {
                    let (i, block) = pick(i);
                    if self.cached[i] {
                        if self.references[i] == 0 {
                            self.reusable.retain(|b| *b != block.0);
                            self.reusable.push_back(block.0);
                        }
                        pool.touch(block);
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn the_pool_agrees_with_a_naive_one(n in 1..12usize, ops in prop::collection::vec(op(), 0..200)) {
            let mut pool = BlockPool::new(n);
            let mut naive = Naive {
                references: vec![0; n],
                cached: vec![false; n],
                empty: (0..n as u32).collect(),
                reusable: VecDeque::new(),
            };
            for op in &ops {
                let writes = pool.link_writes();
                naive.apply(op, &mut pool);
                // At most one leaving and one joining, whatever the size of the pool.
                prop_assert!(pool.link_writes() - writes <= 7, "{op:?} is not O(1)");
                pool.check_integrity();
                prop_assert_eq!(pool.free(), naive.empty.len() + naive.reusable.len());
                prop_assert_eq!(pool.cached_free(), naive.reusable.len());
                prop_assert_eq!(&pool.references, &naive.references);
            }
        }
    }

    #[test]
    #[should_panic(expected = "released twice")]
    fn a_block_released_twice_stops_the_engine() {
        let mut pool = BlockPool::new(1);
        let block = pool.allocate().unwrap().block;
        pool.release(block);
        pool.release(block);
    }
}
