//! Events, and lists of them in which neighbours that belong together are one.

use paceline_types::TokenId;

/// Blocks of one event at most, so that a batch stays small enough to be sent while others wait.
const MAX_BLOCKS: usize = 256;

/// What a block stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Keys and values of its tokens.
    Attention,
    /// The recurrent state at its end.
    State,
}

/// Something that happened to blocks that a hit can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// None of what was told so far counts any more.
    Cleared,
    /// Blocks that follow each other can be used from now on.
    Stored {
        /// What they are.
        kind: Kind,
        /// Their names.
        hashes: Vec<u64>,
        /// The block before the first of them.
        parent: Option<u64>,
        /// The tokens of all of them.
        tokens: Vec<TokenId>,
    },
    /// Blocks that can no longer be used.
    Removed {
        /// What they are.
        kind: Kind,
        /// Their names; a block comes before its parent.
        hashes: Vec<u64>,
    },
}

/// Events in order.
#[derive(Debug, Default)]
pub struct Events(Vec<Event>);

impl Events {
    /// All of them.
    pub fn as_slice(&self) -> &[Event] {
        &self.0
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Everything is void; what was to be told before it need not be told.
    pub(crate) fn cleared(&mut self) {
        self.0.clear();
        self.0.push(Event::Cleared);
    }

    /// A block was stored. It joins the event before if it follows that one's last block.
    pub(crate) fn stored(&mut self, kind: Kind, (hash, parent): (u64, Option<u64>), block: &[TokenId]) {
        if let Some(Event::Stored {
            kind: last,
            hashes,
            tokens,
            ..
        }) = self.0.last_mut()
            && *last == kind
            && parent.is_some()
            && hashes.last().copied() == parent
            && hashes.len() < MAX_BLOCKS
        {
            hashes.push(hash);
            tokens.extend_from_slice(block);
            return;
        }
        self.0.push(Event::Stored {
            kind,
            hashes: vec![hash],
            parent,
            tokens: block.to_vec(),
        });
    }

    /// A block was removed.
    pub(crate) fn removed(&mut self, kind: Kind, hash: u64) {
        if let Some(Event::Removed { kind: last, hashes }) = self.0.last_mut()
            && *last == kind
            && hashes.len() < MAX_BLOCKS
        {
            hashes.push(hash);
            return;
        }
        self.0.push(Event::Removed {
            kind,
            hashes: vec![hash],
        });
    }
}

impl Event {
    /// Blocks that it names.
    pub fn blocks(&self) -> usize {
        match self {
            Self::Cleared => 0,
            Self::Stored { hashes, .. } | Self::Removed { hashes, .. } => hashes.len(),
        }
    }
}
