//! The blocks that a hit can use, as they follow from the changes of an index.
//!
//! A block can be used if it is found from the root and, where hits end at saved states, if it or a block behind it has
//! one. So a block has supports: its own (a saved state; without recurrent layers, itself) and each usable block right behind
//! it. It is usable while there is one; what appears or disappears with a support is a path towards the root.

use crate::event::{Events, Kind};
use paceline_cache::{Change, FeedLayout};
use paceline_types::TokenId;
use std::collections::HashMap;

/// A copy of the index, as a tree.
#[derive(Debug)]
pub struct UsableBlocks {
    recurrent: bool,
    blocks: HashMap<u64, Block>,
}

#[derive(Debug)]
struct Block {
    parent: Option<u64>,
    children: Vec<u64>,
    tokens: Box<[TokenId]>,
    saved: bool,
    supports: usize,
}

impl UsableBlocks {
    /// Nothing.
    pub fn new(layout: FeedLayout) -> Self {
        Self {
            recurrent: layout.recurrent,
            blocks: HashMap::new(),
        }
    }

    /// Takes in a change and appends what it means for usable blocks. Amortised cost: the blocks that it names, and a path.
    pub fn apply(&mut self, change: Change, tokens: &[TokenId], events: &mut Events) {
        match change {
            Change::Cleared => {
                self.blocks.clear();
                events.cleared();
            }
            Change::Stored { hash, parent } => self.store(hash, parent, tokens, events),
            Change::Removed { hash } => self.remove(hash, events),
            Change::Saved { hash } => self.save(hash, events),
            Change::Dropped { hash } => self.drop_state(hash, events),
        }
    }

    /// Appends events that make what is usable out of anything that was told before.
    pub fn describe(&self, events: &mut Events) {
        events.cleared();
        let roots = self.blocks.iter().filter(|(_, block)| block.parent.is_none());
        let mut ahead: Vec<u64> = roots.map(|(hash, _)| *hash).collect();
        let mut states = Vec::new();
        while let Some(hash) = ahead.pop() {
            let block = &self.blocks[&hash];
            if block.supports == 0 {
                continue;
            }
            events.stored(Kind::Attention, (hash, block.parent), &block.tokens);
            if block.saved {
                states.push(hash);
            }
            ahead.extend(&block.children);
        }
        for hash in states {
            self.tell_state(hash, events);
        }
    }

    /// The usable blocks, in no order, each with whether it has a saved state.
    pub fn usable(&self) -> impl Iterator<Item = (u64, bool)> {
        let usable = self.blocks.iter().filter(|(_, block)| block.supports > 0);
        usable.map(|(hash, block)| (*hash, block.saved))
    }

    fn store(&mut self, hash: u64, parent: Option<u64>, tokens: &[TokenId], events: &mut Events) {
        // A block behind one that is not there cannot be found.
        if self.blocks.contains_key(&hash) || parent.is_some_and(|parent| !self.blocks.contains_key(&parent))
        {
            return;
        }
        if let Some(before) = parent.and_then(|parent| self.blocks.get_mut(&parent)) {
            before.children.push(hash);
        }
        let block = Block {
            parent,
            children: Vec::new(),
            tokens: tokens.into(),
            saved: false,
            supports: 0,
        };
        self.blocks.insert(hash, block);
        if !self.recurrent {
            self.support(hash, events);
        }
    }

    fn save(&mut self, hash: u64, events: &mut Events) {
        // States of blocks that cannot be found are of no use.
        let Some(block) = self.blocks.get_mut(&hash).filter(|block| !block.saved) else {
            return;
        };
        block.saved = true;
        self.support(hash, events);
        self.tell_state(hash, events);
    }

    fn drop_state(&mut self, hash: u64, events: &mut Events) {
        let Some(block) = self.blocks.get_mut(&hash).filter(|block| block.saved) else {
            return;
        };
        block.saved = false;
        events.removed(Kind::State, hash);
        self.unsupport(Some(hash), events);
    }

    /// A block goes, and all behind it.
    fn remove(&mut self, hash: u64, events: &mut Events) {
        let Some(block) = self.blocks.get(&hash) else {
            return;
        };
        let (parent, usable) = (block.parent, block.supports > 0);
        let mut gone = vec![hash];
        let mut next = 0;
        while let Some(hash) = gone.get(next) {
            gone.extend(&self.blocks[hash].children);
            next += 1;
        }
        for hash in gone.iter().filter(|hash| self.blocks[hash].saved) {
            events.removed(Kind::State, *hash);
        }
        for hash in gone.into_iter().rev() {
            let block = self.blocks.remove(&hash);
            if block.is_some_and(|block| block.supports > 0) {
                events.removed(Kind::Attention, hash);
            }
        }
        if let Some(before) = parent.and_then(|parent| self.blocks.get_mut(&parent)) {
            before.children.retain(|child| *child != hash);
        }
        if usable {
            self.unsupport(parent, events);
        }
    }

    /// A block has a support more: it and those before it are usable.
    fn support(&mut self, hash: u64, events: &mut Events) {
        let mut path = Vec::new();
        let mut next = Some(hash);
        while let Some((hash, block)) = next.and_then(|hash| Some((hash, self.blocks.get_mut(&hash)?))) {
            block.supports += 1;
            if block.supports > 1 {
                break;
            }
            path.push(hash);
            next = block.parent;
        }
        for hash in path.into_iter().rev() {
            let block = &self.blocks[&hash];
            events.stored(Kind::Attention, (hash, block.parent), &block.tokens);
        }
    }

    /// A block has a support less: it and those before it go as far as that was their last one.
    fn unsupport(&mut self, mut next: Option<u64>, events: &mut Events) {
        while let Some((hash, block)) = next.and_then(|hash| Some((hash, self.blocks.get_mut(&hash)?))) {
            block.supports -= 1;
            if block.supports > 0 {
                break;
            }
            events.removed(Kind::Attention, hash);
            next = block.parent;
        }
    }

    fn tell_state(&self, hash: u64, events: &mut Events) {
        let block = &self.blocks[&hash];
        events.stored(Kind::State, (hash, block.parent), &block.tokens);
    }
}
