//! The index of prefixes: which block holds given tokens behind a given prefix.
//!
//! Blocks are found by a 64-bit hash chained from the root, keyed at random per process so that no request can aim
//! at a collision. The hash only finds a candidate: a hit compares the block's tokens and the identity of the
//! block before it, and so by induction the whole prefix and the salt. A collision is a miss, never a wrong hit.
//!
//! Identity is a serial number given when the content is indexed. When a block is evicted its serial dies, and
//! blocks behind it can no longer be reached; they age out of the pool, or make way when their content is
//! indexed again.

use crate::feed::{Change, Changes};
use paceline_types::{BlockId, SnapshotId, TokenId};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

/// A block of the index, named for as long as its content stays there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    hash: u64,
    serial: u64,
}

impl Node {
    /// The chained hash of the block.
    pub(crate) fn hash(self) -> u64 {
        self.hash
    }
}

/// What stands before a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    /// Nothing; only requests with the same salt share what follows.
    Root(u64),
    /// Another block.
    Block(Node),
}

impl Parent {
    /// The hash of the block before, if there is one.
    pub(crate) fn hash(self) -> Option<u64> {
        match self {
            Self::Root(_) => None,
            Self::Block(node) => Some(node.hash),
        }
    }
}

/// How a block entered the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// It is the one that later lookups find. The block named here held the place of an unreachable one and
    /// is out of the index.
    New {
        /// The block's name.
        node: Node,
        /// A block that left the index, and the state that was attached to it.
        replaced: Option<(BlockId, Option<SnapshotId>)>,
    },
    /// The same content is there already, in the named block.
    Duplicate {
        /// Its name.
        node: Node,
        /// Its block.
        block: BlockId,
    },
    /// It stays out: its parent has left the index, or its hash is taken by other tokens.
    Private,
}

#[derive(Debug)]
struct Entry {
    node: Node,
    parent: Parent,
    snapshot: Option<SnapshotId>,
}

/// The index, by block.
#[derive(Debug)]
pub struct PrefixIndex {
    key: RandomState,
    /// All ones, but for tests that want collisions.
    mask: u64,
    block_size: usize,
    by_hash: HashMap<u64, BlockId>,
    entries: Vec<Option<Entry>>,
    /// The tokens of every block, side by side.
    tokens: Vec<TokenId>,
    next_serial: u64,
}

impl PrefixIndex {
    /// An empty index over a pool's blocks.
    pub fn new(blocks: usize, block_size: usize) -> Self {
        Self {
            key: RandomState::new(),
            mask: u64::MAX,
            block_size,
            by_hash: HashMap::new(),
            entries: (0..blocks).map(|_| None).collect(),
            tokens: vec![0; blocks * block_size],
            next_serial: 0,
        }
    }

    /// The indexed block that holds these tokens behind `parent`.
    pub fn find(&self, parent: Parent, tokens: &[TokenId]) -> Option<(Node, BlockId)> {
        let block = *self.by_hash.get(&self.hash(parent, tokens))?;
        let entry = self.entry(block);
        (entry.parent == parent && self.tokens_of(block) == tokens).then_some((entry.node, block))
    }

    /// Enters a block that holds these tokens behind `parent`.
    pub fn publish(&mut self, parent: Parent, tokens: &[TokenId], block: BlockId) -> Published {
        assert!(tokens.len() == self.block_size, "only full blocks are indexed");
        assert!(
            self.entries[block.0 as usize].is_none(),
            "block {} is indexed twice",
            block.0
        );
        if !self.reachable(parent) {
            return Published::Private;
        }
        let hash = self.hash(parent, tokens);
        let mut replaced = None;
        if let Some(&holder) = self.by_hash.get(&hash) {
            let entry = self.entry(holder);
            if entry.parent == parent && self.tokens_of(holder) == tokens {
                return Published::Duplicate {
                    node: entry.node,
                    block: holder,
                };
            }
            if self.reachable(entry.parent) {
                return Published::Private;
            }
            replaced = Some((holder, self.remove(holder).1));
        }
        let node = Node {
            hash,
            serial: self.next_serial,
        };
        self.next_serial += 1;
        let at = block.0 as usize * self.block_size;
        self.tokens[at..at + self.block_size].copy_from_slice(tokens);
        self.by_hash.insert(hash, block);
        self.entries[block.0 as usize] = Some(Entry {
            node,
            parent,
            snapshot: None,
        });
        Published::New { node, replaced }
    }

    /// Takes a block out; returns its name and the state that was attached to it.
    pub fn remove(&mut self, block: BlockId) -> (Node, Option<SnapshotId>) {
        let entry = self.entries[block.0 as usize].take();
        let entry = entry.unwrap_or_else(|| panic!("block {} is not in the index", block.0));
        let removed = self.by_hash.remove(&entry.node.hash);
        assert!(
            removed == Some(block),
            "the index and its hash table disagree on block {}",
            block.0
        );
        (entry.node, entry.snapshot)
    }

    /// Lets another block with the same content take one's place under the same name; returns the state
    /// that goes with it.
    pub fn replace(&mut self, old: BlockId, new: BlockId) -> Option<SnapshotId> {
        assert!(
            self.entries[new.0 as usize].is_none(),
            "block {} is indexed twice",
            new.0
        );
        let entry = self.entries[old.0 as usize].take();
        let entry = entry.unwrap_or_else(|| panic!("block {} is not in the index", old.0));
        let snapshot = entry.snapshot;
        self.by_hash.insert(entry.node.hash, new);
        self.entries[new.0 as usize] = Some(entry);
        let (from, to) = (old.0 as usize * self.block_size, new.0 as usize * self.block_size);
        self.tokens.copy_within(from..from + self.block_size, to);
        snapshot
    }

    /// The block with this name, if it is still indexed.
    pub fn block_of(&self, node: Node) -> Option<BlockId> {
        let block = *self.by_hash.get(&node.hash)?;
        (self.entry(block).node == node).then_some(block)
    }

    /// The hash of an indexed block.
    pub(crate) fn hash_of(&self, block: BlockId) -> u64 {
        self.entry(block).node.hash
    }

    /// The whole index as changes: every block that can be found, each behind the one before it, and the saved states.
    /// Linear in the pool.
    pub(crate) fn describe(&self) -> Changes {
        let mut whole = Changes::default();
        whole.push(Change::Cleared, &[]);
        // Whether a block can be found, where that is known.
        let mut found: Vec<Option<bool>> = vec![None; self.entries.len()];
        let mut path = Vec::new();
        for start in 0..self.entries.len() as u32 {
            let mut next = Some(BlockId(start));
            let reachable = loop {
                let Some(block) = next else { break true };
                if let Some(known) = found[block.0 as usize] {
                    break known;
                }
                let Some(entry) = &self.entries[block.0 as usize] else {
                    break false;
                };
                path.push(block);
                next = match entry.parent {
                    Parent::Root(_) => None,
                    Parent::Block(node) => match self.block_of(node) {
                        Some(before) => Some(before),
                        None => break false,
                    },
                };
            };
            for block in path.drain(..).rev() {
                found[block.0 as usize] = Some(reachable);
                if reachable {
                    self.describe_block(block, &mut whole);
                }
            }
        }
        whole
    }

    /// The state attached to an indexed block.
    pub fn snapshot(&self, block: BlockId) -> Option<SnapshotId> {
        self.entry(block).snapshot
    }

    /// Attaches a state to an indexed block, or takes it away.
    pub fn set_snapshot(&mut self, block: BlockId, snapshot: Option<SnapshotId>) {
        let entry = self.entries[block.0 as usize].as_mut();
        let entry = entry.unwrap_or_else(|| panic!("block {} is not in the index", block.0));
        assert!(
            entry.snapshot.is_none() || snapshot.is_none(),
            "block {} has a state already",
            block.0
        );
        entry.snapshot = snapshot;
    }

    /// Indexed blocks.
    pub fn len(&self) -> usize {
        self.by_hash.len()
    }

    /// Whether nothing is indexed.
    pub fn is_empty(&self) -> bool {
        self.by_hash.is_empty()
    }

    /// Panics unless the table of hashes and the entries agree; returns each indexed block with its state.
    /// Linear in the pool.
    pub fn check_integrity(&self) -> Vec<(BlockId, Option<SnapshotId>)> {
        let mut indexed = Vec::new();
        for (block, entry) in self.entries.iter().enumerate() {
            let Some(entry) = entry else { continue };
            let block = BlockId(block as u32);
            assert!(
                self.by_hash.get(&entry.node.hash) == Some(&block),
                "block {} cannot be found by its hash",
                block.0
            );
            assert!(
                self.hash(entry.parent, self.tokens_of(block)) == entry.node.hash,
                "block {} has changed its content",
                block.0
            );
            indexed.push((block, entry.snapshot));
        }
        assert!(
            indexed.len() == self.by_hash.len(),
            "the table of hashes holds blocks without entries"
        );
        indexed
    }

    fn describe_block(&self, block: BlockId, whole: &mut Changes) {
        let Entry {
            node,
            parent,
            snapshot,
        } = self.entry(block);
        let (hash, parent) = (node.hash, parent.hash());
        whole.push(Change::Stored { hash, parent }, self.tokens_of(block));
        if snapshot.is_some() {
            whole.push(Change::Saved { hash }, &[]);
        }
    }

    fn entry(&self, block: BlockId) -> &Entry {
        self.entries[block.0 as usize]
            .as_ref()
            .unwrap_or_else(|| panic!("block {} is not in the index", block.0))
    }

    fn tokens_of(&self, block: BlockId) -> &[TokenId] {
        let at = block.0 as usize * self.block_size;
        &self.tokens[at..at + self.block_size]
    }

    fn reachable(&self, parent: Parent) -> bool {
        match parent {
            Parent::Root(_) => true,
            Parent::Block(node) => self.block_of(node).is_some(),
        }
    }

    fn hash(&self, parent: Parent, tokens: &[TokenId]) -> u64 {
        let before = match parent {
            Parent::Root(salt) => (false, salt),
            Parent::Block(node) => (true, node.hash),
        };
        self.key.hash_one((before, tokens)) & self.mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Op {
        /// Publishes a block with a token behind another block (or the root).
        Publish {
            block: usize,
            parent: usize,
            token: TokenId,
        },
        Remove(usize),
        Replace {
            old: usize,
            new: usize,
        },
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (0..16usize, 0..20usize, 0..4u32)
                .prop_map(|(block, parent, token)| Op::Publish { block, parent, token }),
            1 => (0..16usize).prop_map(Op::Remove),
            1 => (0..16usize, 0..16usize).prop_map(|(old, new)| Op::Replace { old, new }),
        ]
    }

    fn block(i: usize) -> BlockId {
        BlockId(i as u32)
    }

    /// Follows a text through the index.
    fn follow(index: &PrefixIndex, salt: u64, text: &[TokenId]) -> Vec<BlockId> {
        let mut parent = Parent::Root(salt);
        let mut found = Vec::new();
        for token in text.chunks_exact(1) {
            let Some((node, block)) = index.find(parent, token) else {
                break;
            };
            parent = Parent::Block(node);
            found.push(block);
        }
        found
    }

    proptest! {
        /// With a hash of two bits nearly everything collides; a found block still holds exactly the text asked for.
        #[test]
        fn a_collision_never_serves_another_text(
            bits in 0..4u32,
            ops in prop::collection::vec(op(), 0..60),
        ) {
            let mut index = PrefixIndex::new(16, 1);
            index.mask = (1 << bits) - 1;
            // The full text behind each indexed block, and its name.
            let mut texts: Vec<Option<(Vec<TokenId>, Node)>> = vec![None; 16];
            for op in ops {
                match op {
                    Op::Publish { block: p, parent, token } if texts[p].is_none() => {
                        let (before, mut text) = match texts.get(parent).cloned().flatten() {
                            Some((text, node)) => (Parent::Block(node), text),
                            None => (Parent::Root(7), Vec::new()),
                        };
                        text.push(token);
                        match index.publish(before, &[token], block(p)) {
                            Published::New { node, replaced } => {
                                if let Some((gone, _)) = replaced {
                                    texts[gone.0 as usize] = None;
                                }
                                texts[p] = Some((text, node));
                            }
                            Published::Duplicate { node, block } => {
                                let held = texts[block.0 as usize].as_ref().unwrap();
                                prop_assert_eq!(&held.0, &text);
                                prop_assert_eq!(held.1, node);
                            }
                            Published::Private => {}
                        }
                    }
                    Op::Remove(p) if texts[p].is_some() => {
                        index.remove(block(p));
                        texts[p] = None;
                    }
                    Op::Replace { old, new } if texts[old].is_some() && texts[new].is_none() => {
                        index.replace(block(old), block(new));
                        texts[new] = texts[old].take();
                    }
                    _ => {}
                }
                index.check_integrity();
                prop_assert_eq!(index.len(), texts.iter().flatten().count());
                for (text, _) in texts.iter().flatten() {
                    let found = follow(&index, 7, text);
                    for (i, block) in found.iter().enumerate() {
                        let held = texts[block.0 as usize].as_ref().unwrap();
                        prop_assert_eq!(&held.0[..], &text[..=i]);
                    }
                    prop_assert!(follow(&index, 8, text).is_empty(), "another salt hit");
                }
            }
        }
    }

    #[test]
    fn content_behind_a_vanished_parent_makes_way_when_it_comes_again() {
        let mut index = PrefixIndex::new(4, 1);
        let Published::New { node: first, .. } = index.publish(Parent::Root(0), &[1], block(0)) else {
            panic!()
        };
        assert!(matches!(
            index.publish(Parent::Block(first), &[2], block(1)),
            Published::New { .. }
        ));
        index.remove(block(0));
        assert_eq!(
            index.publish(Parent::Block(first), &[3], block(3)),
            Published::Private
        );
        let Published::New { node: again, .. } = index.publish(Parent::Root(0), &[1], block(2)) else {
            panic!()
        };
        assert_eq!(index.find(Parent::Block(again), &[2]), None);
        let outcome = index.publish(Parent::Block(again), &[2], block(3));
        assert!(matches!(
            outcome,
            Published::New {
                replaced: Some((BlockId(1), None)),
                ..
            }
        ));
    }
}
