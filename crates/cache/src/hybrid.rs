//! The caches together: blocks, the index of prefixes and saved states, kept consistent with one another.
//!
//! For a model with attention alone a hit is the longest chain of indexed blocks. A model with recurrent state
//! can only start where the state was saved too: at the last saved state on the chain. Where the chain goes on
//! beyond it, its end is reported as a branch point: two requests share the text up to there, so the next one will
//! probably want a state there.

use crate::blocks::BlockPool;
use crate::feed::{CacheFeed, Change, Changes, FeedLayout};
use crate::handles::{Blocks, Reservation, Restore, Shared};
use crate::prefix::{Node, Parent, PrefixIndex, Published};
use crate::snapshots::SnapshotPool;
use crate::tokens::TokenList;
use paceline_types::{BlockId, SnapshotId, TokenId};

/// Sizes of the caches.
#[derive(Clone, Copy, Debug)]
pub struct CacheConfig {
    /// Tokens per block.
    pub block_size: usize,
    /// Blocks of the whole cache, shared by all requests.
    pub num_blocks: usize,
    /// For models with recurrent state: places for saved states. See [`SnapshotPool::places`].
    pub snapshots: Option<usize>,
}

/// The caches; a handle that can be cloned.
#[derive(Clone, Debug)]
pub struct Caches {
    shared: Shared,
    config: CacheConfig,
}

/// The plain data behind the handle.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) blocks: BlockPool,
    pub(crate) prefix: PrefixIndex,
    pub(crate) snapshots: SnapshotPool,
    /// Where changes of the index are told, if anywhere.
    feed: Option<CacheFeed>,
}

/// Where a request stands in the index: the blocks it has found or published, from the root on.
#[derive(Debug)]
pub struct Chain {
    salt: u64,
    nodes: Vec<Node>,
    /// A block could not be published, so nothing behind it can be.
    broken: bool,
}

impl Chain {
    /// Blocks on the chain.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether nothing was found or published.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Whether the chain has ended for good: its next block was not accepted by the index.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// The block that ends after `blocks` blocks.
    pub fn node(&self, blocks: usize) -> Option<Node> {
        self.nodes.get(blocks.checked_sub(1)?).copied()
    }

    fn end(&self) -> Parent {
        self.nodes
            .last()
            .map_or(Parent::Root(self.salt), |node| Parent::Block(*node))
    }
}

/// What the caches hold of a request's text.
#[derive(Debug)]
pub struct Hit {
    /// The blocks of the first `cached_tokens` positions.
    pub blocks: Blocks,
    /// Their names, to publish behind.
    pub chain: Chain,
    /// Positions that need not be run; whole blocks, and never the last token.
    pub cached_tokens: usize,
    /// The state at `cached_tokens`.
    pub restore: Option<Restore>,
    /// The end of the shared text, where blocks were found beyond the last saved state.
    pub branch_point: Option<usize>,
}

/// How full the caches are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheUse {
    /// Blocks that could be handed out now, cached ones among them.
    pub free_blocks: usize,
    /// Free blocks whose content is still indexed.
    pub cached_free_blocks: usize,
    /// Places neither reserved nor holding a state.
    pub free_snapshots: usize,
    /// Places reserved.
    pub reserved_snapshots: usize,
}

impl Caches {
    /// Empty caches.
    pub fn new(config: CacheConfig) -> Self {
        assert!(config.block_size > 0, "a block holds tokens");
        let store = Store {
            blocks: BlockPool::new(config.num_blocks),
            prefix: PrefixIndex::new(config.num_blocks, config.block_size),
            snapshots: SnapshotPool::new(config.snapshots.unwrap_or(0)),
            feed: None,
        };
        Self {
            shared: Shared::new(store),
            config,
        }
    }

    /// Tells a feed of every change of the index from now on. Panics unless the index is empty and the feed is new.
    pub fn tell(&self, feed: CacheFeed) {
        let mut store = self.shared.lock();
        assert!(store.prefix.is_empty(), "a feed begins with an empty index");
        let layout = FeedLayout {
            block_size: self.config.block_size,
            recurrent: self.config.snapshots.is_some(),
        };
        feed.attach(layout, store.blocks.len(), store.snapshots.len());
        store.feed = Some(feed);
    }

    /// The whole index: every block that can be found, behind the one before it, and the saved states. Linear.
    pub fn describe(&self) -> Changes {
        self.shared.lock().prefix.describe()
    }

    /// Finds what is cached of a text, up to `limit` tokens and never its last one. Changes the order of use.
    /// Cost: the length of the cached part.
    pub fn lookup(&self, tokens: TokenList<'_>, salt: u64, limit: usize) -> Hit {
        let size = self.config.block_size;
        let limit = limit.min(tokens.len().saturating_sub(1)) / size;
        let mut chain = Chain {
            salt,
            nodes: Vec::new(),
            broken: false,
        };
        let mut blocks = Blocks::new(self.shared.clone());
        let mut saved = None;
        let mut store = self.shared.lock();
        let mut found = Vec::new();
        let mut text = Vec::with_capacity(size);
        while chain.len() < limit {
            text.clear();
            tokens.append_to(chain.len() * size..(chain.len() + 1) * size, &mut text);
            let Some((node, block)) = store.prefix.find(chain.end(), &text) else {
                break;
            };
            chain.nodes.push(node);
            found.push(block);
            if let Some(snapshot) = store.prefix.snapshot(block) {
                saved = Some((chain.len(), snapshot));
            }
        }
        let reached = chain.len();
        let usable = if self.config.snapshots.is_some() {
            saved.map_or(0, |(at, _)| at)
        } else {
            reached
        };
        // From the end, so that the start of a chain is always the more recently used.
        for block in found[usable..].iter().rev() {
            store.blocks.touch(*block);
        }
        for block in &found[..usable] {
            store.blocks.retain(*block);
            blocks.push(*block);
        }
        chain.nodes.truncate(usable);
        let restore = saved.filter(|_| self.config.snapshots.is_some()).map(|(_, id)| {
            store.snapshots.pin(id);
            Restore::new(id, self.shared.clone())
        });
        Hit {
            blocks,
            chain,
            cached_tokens: usable * size,
            restore,
            branch_point: (reached > usable).then_some(reached * size),
        }
    }

    /// Adds `count` fresh blocks, or none at all if fewer are free.
    #[must_use]
    pub fn extend(&self, blocks: &mut Blocks, count: usize) -> bool {
        let mut store = self.shared.lock();
        if store.blocks.free() < count {
            return false;
        }
        for _ in 0..count {
            blocks.push(store.take_fresh());
        }
        true
    }

    /// Publishes the next block of a chain: `block`, in use, holds these tokens and they are certain.
    pub fn publish(&self, chain: &mut Chain, tokens: &[TokenId], block: BlockId) {
        if chain.broken {
            return;
        }
        let mut store = self.shared.lock();
        match store.publish(chain.end(), tokens, block) {
            Some(node) => chain.nodes.push(node),
            None => chain.broken = true,
        }
    }

    /// Reserves a place for a state, if one is free or can be made free.
    pub fn reserve_snapshot(&self) -> Option<Reservation> {
        let mut store = self.shared.lock();
        let reserved = store.snapshots.reserve()?;
        if let Some(block) = reserved.evicted_from {
            store.prefix.set_snapshot(block, None);
            let hash = store.prefix.hash_of(block);
            store.note(|| Change::Dropped { hash }, &[]);
        }
        Some(Reservation::new(reserved.id, self.shared.clone()))
    }

    /// Attaches a written state to the block whose end it belongs to. Gives the place back, and returns false,
    /// if the block has left the index or has a state already.
    pub fn publish_snapshot(&self, reservation: Reservation, node: Node) -> bool {
        let mut store = self.shared.lock();
        let Some(block) = store.prefix.block_of(node) else {
            drop(store);
            return false;
        };
        if store.prefix.snapshot(block).is_some() {
            drop(store);
            return false;
        }
        store.prefix.set_snapshot(block, Some(reservation.id()));
        store.snapshots.publish(reservation.id(), block);
        store.note(|| Change::Saved { hash: node.hash() }, &[]);
        drop(store);
        reservation.close();
        true
    }

    /// Forgets every text that no request holds, so that its blocks are empty. Linear in what is forgotten.
    pub fn forget(&self) {
        let mut store = self.shared.lock();
        for block in store.blocks.reusable() {
            store.blocks.leave_index(block);
            store.forget(block);
        }
    }

    /// Blocks that [`extend`](Self::extend) could add now.
    pub fn free_blocks(&self) -> usize {
        self.shared.lock().blocks.free()
    }

    /// How full the caches are.
    pub fn usage(&self) -> CacheUse {
        let store = self.shared.lock();
        CacheUse {
            free_blocks: store.blocks.free(),
            cached_free_blocks: store.blocks.cached_free(),
            free_snapshots: store.snapshots.free(),
            reserved_snapshots: store.snapshots.reserved(),
        }
    }

    /// Panics unless all parts are consistent in themselves and with one another. Linear in the caches.
    pub fn check_integrity(&self) {
        let store = self.shared.lock();
        store.blocks.check_integrity();
        let indexed = store.prefix.check_integrity();
        let mut known = vec![false; store.blocks.len()];
        let mut attached = Vec::new();
        for (block, snapshot) in indexed {
            known[block.0 as usize] = true;
            attached.extend(snapshot.map(|id| (block, id)));
        }
        for (block, known) in known.iter().enumerate() {
            let marked = store.blocks.is_indexed(BlockId(block as u32));
            assert!(
                marked == *known,
                "block {block}: in the index {known}, marked {marked}"
            );
        }
        store.snapshots.check_integrity(&attached);
    }
}

impl Store {
    fn take_fresh(&mut self) -> BlockId {
        let Some(fresh) = self.blocks.allocate() else {
            panic!("a free block was counted and is not there");
        };
        if fresh.evicted {
            self.forget(fresh.block);
        }
        fresh.block
    }

    /// Takes a block out of the index.
    fn forget(&mut self, block: BlockId) {
        let (node, snapshot) = self.prefix.remove(block);
        self.detach(snapshot);
        self.note(|| Change::Removed { hash: node.hash() }, &[]);
    }

    fn publish(&mut self, parent: Parent, tokens: &[TokenId], block: BlockId) -> Option<Node> {
        match self.prefix.publish(parent, tokens, block) {
            Published::New { node, replaced } => {
                if let Some((gone, snapshot)) = replaced {
                    self.blocks.leave_index(gone);
                    self.detach(snapshot);
                }
                self.blocks.enter_index(block);
                self.note(|| stored(node, parent), tokens);
                Some(node)
            }
            Published::Duplicate { node, block: holder } => {
                // The block in use takes over from one that no request holds: it will live longer, and the other
                // is free for new content at once. If both are in use, ours stays private.
                if self.blocks.references(holder) == 0 {
                    if let Some(snapshot) = self.prefix.replace(holder, block) {
                        self.snapshots.moved(snapshot, block);
                    }
                    self.blocks.leave_index(holder);
                    self.blocks.enter_index(block);
                }
                Some(node)
            }
            Published::Private => None,
        }
    }

    /// Tells the feed, if there is one, of a change that the index has by now. A block that makes way for another of its
    /// name is none: it could not be found any more.
    #[inline]
    fn note(&self, change: impl FnOnce() -> Change, tokens: &[TokenId]) {
        if let Some(feed) = &self.feed
            && !feed.push(change(), tokens)
        {
            feed.replace(self.prefix.describe());
        }
    }

    fn detach(&mut self, snapshot: Option<SnapshotId>) {
        if let Some(snapshot) = snapshot {
            self.snapshots.detach(snapshot);
        }
    }
}

fn stored(node: Node, parent: Parent) -> Change {
    Change::Stored {
        hash: node.hash(),
        parent: parent.hash(),
    }
}
