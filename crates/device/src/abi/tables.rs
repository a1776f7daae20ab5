//! The rows of a step, as its operations read them.

use super::Wide;

words! {
    /// A token of a step.
    pub struct TokenRow {
        /// Its id.
        pub id: i32,
        /// Its position in its request.
        pub position: i32,
        /// The request row it belongs to.
        pub request: i32,
    }
}

words! {
    /// A request's part in a step.
    pub struct RequestRow {
        /// Its first token row.
        pub first_token: i32,
        /// Tokens that it has in this step.
        pub token_count: i32,
        /// Its slot, which is also the index of its recurrent state and its row of the block table.
        pub slot: i32,
        /// How many of its last tokens are drafts, which may be taken back.
        pub drafts: i32,
        /// The position at which its recurrent state stands, a multiple of [`paceline_types::STATE_GRID`] at or before its
        /// first token. At position 0 the state is zero, whatever the cache holds.
        pub state_at: i32,
        /// The position at which the state is left; another multiple, or the same one where nothing is to be kept. Every
        /// multiple on the way is stored; what lies behind is computed without storing a state.
        pub state_end: i32,
        /// The position whose state is saved, a multiple behind `state_at` and up to `state_end`; 0 for none.
        pub snapshot_at: i32,
        /// The snapshot to write; not the one that it starts from, which parts of a device may still read.
        pub snapshot: i32,
        /// One more than the snapshot that holds the state at its first token; 0 for none.
        pub restore: i32,
    }
}

impl RequestRow {
    /// Its token rows.
    pub fn tokens(&self) -> std::ops::Range<usize> {
        self.first_token as usize..(self.first_token + self.token_count) as usize
    }
}

words! {
    /// A row of logits.
    pub struct LogitsRow {
        /// The token row it comes from.
        pub token: i32,
        /// The position of the token to be sampled, which keys the noise.
        pub position: i32,
        /// The request row it belongs to.
        pub request: i32,
        /// One more than the known token whose log-probability is wanted instead of a choice; 0 to choose.
        pub known: i32,
        /// One more than the mask of the plan that confines the choice; 0 for none.
        pub mask: i32,
        /// How to choose.
        pub sampling: SamplingRow,
    }
}

words! {
    /// Sampling parameters as the device reads them.
    pub struct SamplingRow {
        /// 0 takes the most likely token.
        pub temperature: f32,
        /// See [`paceline_types::SamplingParams`].
        pub top_p: f32,
        /// 0 keeps all.
        pub top_k: u32,
        /// 0 keeps all.
        pub min_p: f32,
        /// Key of the noise.
        pub seed: Wide,
        /// Alternatives to report, at most [`MAX_LOGPROBS`](super::MAX_LOGPROBS); -1 for no log-probabilities at all.
        pub logprobs: i32,
    }
}
