//! A step's record: everything the host learns of it, in one array of words.

use super::{Wide, take};
use paceline_types::MAX_DRAFTS;

/// Most alternatives that can be reported per sampled position.
pub const MAX_LOGPROBS: usize = 20;

words! {
    /// The front of a record. The sections follow it in the order of their counts.
    pub struct RecordHeader {
        /// The step's number, as the device counts it.
        pub step: Wide,
        /// 0, or one of the constants below: what the device found wrong. What else the record says does not count then.
        pub error: i32,
        /// Draft forwards of the neural drafter that had plan rows.
        pub draft_forwards: i32,
        /// Clock of the device at the start of the step, in nanoseconds.
        pub begin: Wide,
        /// Clock when drafting began.
        pub drafting: Wide,
        /// Clock at the end of the step.
        pub end: Wide,
        /// [`RecordRow`]s: one per plan row.
        pub rows: u32,
        /// [`Logprobs`]: one per row of logits whose request asks for them.
        pub logprobs: u32,
        /// [`DraftsMade`]: one per plan row that shows its drafts.
        pub drafts: u32,
        /// Vectors: one per plan row that completes one.
        pub embeddings: u32,
        /// Elements of a vector.
        pub embedding_width: u32,
    }

    /// The plan found in the step's place of the ring was that of another step.
    const WRONG_STEP = 1;
    /// The plan's sections do not fit its place, or its plan rows not the program.
    const BAD_PLAN = 2;
    /// A token id is outside the vocabulary.
    const BAD_TOKEN = 3;
    /// A block, or a place in a block table, that there is not.
    const BAD_BLOCK = 4;
    /// A slot or a snapshot that there is not.
    const BAD_SLOT = 5;
    /// Logits are NaN or infinite.
    const NOT_FINITE = 6;
}

words! {
    /// What became of a plan row.
    pub struct RecordRow {
        /// Tokens that became part of the text.
        pub count: i32,
        /// 0, [`STOPPED`](Self::STOPPED) or [`FULL`](Self::FULL).
        pub ended: i32,
        /// Not 0 if the planned snapshot was written.
        pub snapshot: i32,
        /// Drafts verified.
        pub drafted: i32,
        /// Where these came from, as in [`Slot::source`](super::Slot::source).
        pub source: i32,
        /// The first of its log-probabilities, if its request asks for them.
        pub first_logprobs: i32,
        /// The tokens, the rest -1.
        pub tokens: [i32; MAX_DRAFTS + 1],
    }

    /// The request ended with a stop token.
    const STOPPED = 1;
    /// The request is as long as it may be.
    const FULL = 2;
}

words! {
    /// A token and its log-probability.
    pub struct Alternative {
        /// The token.
        pub token: i32,
        /// Its log-probability.
        pub logprob: f32,
    }
}

words! {
    /// Log-probabilities at one sampled position.
    pub struct Logprobs {
        /// Of the token that was chosen, or of the known one.
        pub chosen: f32,
        /// The most likely tokens, best first, as many as were asked for.
        pub top: [Alternative; MAX_LOGPROBS],
    }
}

words! {
    /// The drafts that a slot holds behind a step.
    pub struct DraftsMade {
        /// How many there are.
        pub count: i32,
        /// Where they came from, as in [`Slot::source`](super::Slot::source).
        pub source: i32,
        /// The drafts.
        pub tokens: [i32; MAX_DRAFTS],
    }
}

/// A record as the host reads it.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// What follows, in numbers, and what there is to know of the step as a whole.
    pub header: &'a RecordHeader,
    /// Per plan row.
    pub rows: &'a [RecordRow],
    /// Packed, in the order of the rows of logits.
    pub logprobs: &'a [Logprobs],
    /// Packed, in the order of the plan rows.
    pub drafts: &'a [DraftsMade],
    embeddings: &'a [f32],
}

impl<'a> Record<'a> {
    /// The record at the front of `words`; `None` if they end before it does.
    pub fn parse(mut words: &'a [i32]) -> Option<Self> {
        let header = take::<RecordHeader>(&mut words, 1)?.first()?;
        Some(Self {
            header,
            rows: take(&mut words, header.rows)?,
            logprobs: take(&mut words, header.logprobs)?,
            drafts: take(&mut words, header.drafts)?,
            embeddings: take(&mut words, header.embeddings.checked_mul(header.embedding_width)?)?,
        })
    }

    /// The vectors, in the order of the plan rows.
    pub fn embeddings(&self) -> impl Iterator<Item = &'a [f32]> + use<'a> {
        self.embeddings
            .chunks_exact((self.header.embedding_width as usize).max(1))
    }
}

impl RecordHeader {
    /// Words of the whole record.
    pub fn words(&self) -> usize {
        Self::WORDS
            + self.rows as usize * RecordRow::WORDS
            + self.logprobs as usize * Logprobs::WORDS
            + self.drafts as usize * DraftsMade::WORDS
            + self.embeddings as usize * self.embedding_width as usize
    }
}

/// How large a record can get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordLimits {
    /// Plan rows of a step.
    pub rows: usize,
    /// Rows of logits.
    pub samples: usize,
    /// Elements of a vector; 0 if no text becomes one.
    pub embedding_width: usize,
}

impl RecordLimits {
    /// Words of the largest record.
    pub const fn words(&self) -> usize {
        RecordHeader::WORDS
            + self.rows * (RecordRow::WORDS + DraftsMade::WORDS + self.embedding_width)
            + self.samples * Logprobs::WORDS
    }
}
