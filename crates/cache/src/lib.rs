//! The caches of the engine as the host sees them: which blocks and saved states are whose, and what they hold.
//!
//! Pure bookkeeping on plain ids; no device, no IO. [`Caches`] is the way in: it composes the pool of blocks
//! ([`BlockPool`]), the index of prefixes ([`PrefixIndex`]) and the pool of saved states ([`SnapshotPool`]),
//! and hands out owners that give their part back when dropped.

mod blocks;
mod feed;
mod handles;
mod hybrid;
mod list;
mod prefix;
mod snapshots;
mod tokens;

pub use blocks::{Allocated, BlockPool};
pub use feed::{CacheFeed, Change, Changes, FeedLayout};
pub use handles::{Blocks, Reservation, Restore};
pub use hybrid::{CacheConfig, CacheUse, Caches, Chain, Hit};
pub use prefix::{Node, Parent, PrefixIndex, Published};
pub use snapshots::{Reserved, SnapshotPool};
pub use tokens::TokenList;
