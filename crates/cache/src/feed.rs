//! What changes in the prefix index, for a reader outside of the engine.
//!
//! The owner of the index appends; a reader takes all there is, whenever it likes. Nobody waits: a queue that is full is
//! replaced by a description of the whole index, which is at most a quarter of it, so that the reader always gets a
//! consistent story and the owner pays a bounded number of instructions per change.

use paceline_types::TokenId;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Changes that a queue holds at least before it is replaced.
const MIN_CHANGES: usize = 1 << 16;

/// One change of the index. Blocks are named by their hash, which covers their tokens, all before them and the salt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Everything known so far is void; what follows describes the whole index.
    Cleared,
    /// A block entered the index behind `parent`, or at the root. Its tokens are the next ones of [`Changes`].
    Stored {
        /// The block.
        hash: u64,
        /// The block before it, which is in the index.
        parent: Option<u64>,
    },
    /// A block left the index. Those behind it can no longer be found.
    Removed {
        /// The block.
        hash: u64,
    },
    /// The recurrent state at a block's end was saved.
    Saved {
        /// The block.
        hash: u64,
    },
    /// The state at a block's end made way for another.
    Dropped {
        /// The block.
        hash: u64,
    },
}

/// Changes in order, with the tokens of the stored blocks side by side.
#[derive(Debug, Default)]
pub struct Changes {
    list: Vec<Change>,
    tokens: Vec<TokenId>,
}

impl Changes {
    /// Changes in all.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Appends a change; `tokens` are those of a stored block.
    pub fn push(&mut self, change: Change, tokens: &[TokenId]) {
        self.list.push(change);
        self.tokens.extend_from_slice(tokens);
    }

    /// Forgets all of them and keeps the memory.
    pub fn clear(&mut self) {
        self.list.clear();
        self.tokens.clear();
    }

    /// Each change, with its tokens if it stores a block.
    pub fn iter(&self, block_size: usize) -> impl Iterator<Item = (Change, &[TokenId])> {
        let mut blocks = self.tokens.chunks_exact(block_size);
        self.list.iter().map(move |change| {
            let tokens = match change {
                Change::Stored { .. } => blocks.next().unwrap_or_default(),
                _ => &[],
            };
            (*change, tokens)
        })
    }
}

/// What a reader has to know of the caches behind a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedLayout {
    /// Tokens of a block.
    pub block_size: usize,
    /// Whether a hit ends at a saved state, so that blocks behind the last one are of no use.
    pub recurrent: bool,
}

/// The queue between the owner of an index and a reader; a handle that can be cloned.
#[derive(Clone)]
pub struct CacheFeed(Arc<Inner>);

struct Inner {
    queue: Mutex<Queue>,
    layout: OnceLock<FeedLayout>,
    wake: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct Queue {
    changes: Changes,
    capacity: usize,
}

impl CacheFeed {
    /// A feed that calls `wake` when there is something to take and was nothing before. It is called by the engine's
    /// thread, and must not wait.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner {
            queue: Mutex::default(),
            layout: OnceLock::new(),
            wake: Box::new(wake),
        }))
    }

    /// The caches behind it, once there are some.
    pub fn layout(&self) -> Option<FeedLayout> {
        self.0.layout.get().copied()
    }

    /// Takes all changes in place of those in `taken`, whose memory the queue goes on with.
    pub fn take(&self, taken: &mut Changes) {
        taken.clear();
        std::mem::swap(&mut self.lock().changes, taken);
    }

    /// Has room for a description of `blocks` and `snapshots` from now on. Panics if it belongs to caches already.
    pub(crate) fn attach(&self, layout: FeedLayout, blocks: usize, snapshots: usize) {
        let first = self.0.layout.set(layout).is_ok();
        assert!(first, "a feed is of one engine");
        self.lock().capacity = MIN_CHANGES.max(4 * (1 + blocks + snapshots));
    }

    /// Appends a change; false, and nothing is appended, if the queue is full.
    pub(crate) fn push(&self, change: Change, tokens: &[TokenId]) -> bool {
        let mut queue = self.lock();
        if queue.changes.len() >= queue.capacity {
            return false;
        }
        let first = queue.changes.is_empty();
        queue.changes.push(change, tokens);
        drop(queue);
        if first {
            (self.0.wake)();
        }
        true
    }

    /// Puts a description of the whole index in place of all that was not taken.
    pub(crate) fn replace(&self, whole: Changes) {
        self.lock().changes = whole;
        (self.0.wake)();
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for CacheFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CacheFeed").field(&self.0.layout.get()).finish()
    }
}
