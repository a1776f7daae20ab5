//! A request's part of the device, from admission to release.

use super::saves::Saves;
use paceline_cache::{Blocks, Chain, Restore};
use paceline_types::{BlockId, DraftBudget, SlotId};

/// What a running request holds and how far it is planned.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) slot: SlotId,
    pub(crate) generation: u32,
    pub(crate) blocks: Blocks,
    /// Blocks that the device has been told of.
    pub(crate) sent: usize,
    pub(crate) chain: Chain,
    /// The state to start from, until the device has been told.
    pub(crate) restore: Option<Restore>,
    /// The device has been told of the admission.
    pub(crate) announced: bool,
    pub(crate) cached: usize,
    /// Tokens known at admission: prefill ends here.
    pub(crate) target: usize,
    /// Of these, tokens cached or planned.
    pub(crate) planned: usize,
    pub(crate) bounds: Bounds,
    /// Drafts wanted behind the newest planned plan row.
    pub(crate) proposed: DraftBudget,
    pub(crate) saves: Saves,
    /// Which of all decode rows its last one was: where masks are scarce, the one longest past comes first.
    pub(crate) mask_turn: u64,
}

/// Bounds of the number of known tokens once all planned plan rows are done. Plan rows that yield none of them, the
/// pieces of a prompt but the last, do not count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Every plan row yields one token.
    pub(crate) low: usize,
    /// Every draft is accepted.
    pub(crate) high: usize,
    /// Tokens up to which grid positions of the recurrent state have been passed at least: those known before the newest
    /// plan row.
    pub(crate) folded: usize,
    /// Planned and not done.
    rows: usize,
}

impl Bounds {
    pub(crate) fn new(known: usize) -> Self {
        Self {
            low: known,
            high: known,
            folded: known,
            rows: 0,
        }
    }

    pub(crate) fn plan(&mut self, drafts: usize) {
        self.folded = self.low;
        self.low += 1;
        self.high += 1 + drafts;
        self.rows += 1;
    }

    /// Whether a plan row that yields tokens is planned and not done.
    pub(crate) fn in_flight(&self) -> bool {
        self.rows > 0
    }

    /// The oldest planned plan row has yielded this many tokens.
    pub(crate) fn settle(&mut self, drafts: usize, tokens: usize) {
        self.rows -= 1;
        self.low += tokens - 1;
        self.high -= 1 + drafts - tokens;
        if self.rows > 0 {
            self.folded += tokens - 1;
        } else {
            assert!(self.low == self.high, "bounds {self:?} do not meet");
        }
    }
}

impl Running {
    /// Whether some known tokens are neither cached nor planned.
    pub(crate) fn prefilling(&self) -> bool {
        self.planned < self.target
    }

    /// The blocks that the device does not know yet, with their places in the table.
    pub(crate) fn unsent_blocks(&mut self) -> Vec<(u32, BlockId)> {
        let from = std::mem::replace(&mut self.sent, self.blocks.len());
        if from == self.sent {
            return Vec::new();
        }
        (from as u32..).zip(self.blocks[from..].iter().copied()).collect()
    }
}
