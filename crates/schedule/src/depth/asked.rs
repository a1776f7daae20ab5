//! Which sources a request's plan rows in flight may have drafts from.

/// The sources that were asked for drafts, for the newest plan row to come and for those in flight.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    next: [bool; 2],
    /// By source: a bit per plan row, the newest lowest.
    rows: [u32; 2],
    len: u32,
}

impl Asked {
    /// A plan row is planned that verifies drafts, or none, with others wanted behind it.
    pub(super) fn plan(&mut self, verifies: bool, depths: [usize; 2]) {
        for (source, depth) in depths.into_iter().enumerate() {
            self.rows[source] = self.rows[source] << 1 | u32::from(self.next[source] && verifies);
            self.next[source] = depth > 0;
        }
        self.len += 1;
    }

    /// The oldest plan row is done: the sources that might have had drafts for it.
    pub(super) fn done(&mut self) -> [bool; 2] {
        self.len = self.len.saturating_sub(1);
        self.rows.map(|row| row >> self.len & 1 == 1)
    }

    /// Of the plan row planned last there will be nothing to hear.
    pub(super) fn expect_none(&mut self) {
        self.len = 0;
    }
}
