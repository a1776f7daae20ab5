//! What a step looks like from inside an operation: row spaces, request tables and cache shapes.

use crate::{Backend, DeviceError};

/// Most alternatives that can be reported per sampled position.
pub const MAX_LOGPROBS: usize = 20;

/// Floats written per sampled row: log-probability of the chosen token, then (id, log-probability) pairs.
/// Ids travel as the bit pattern of an `i32`.
pub const SAMPLE_FLOATS: usize = 1 + 2 * MAX_LOGPROBS;

/// The rows of a set of tensors: how many the program was shaped for and how many carry data.
#[derive(Clone)]
pub struct Rows<B: Backend> {
    /// Rows the program is shaped for.
    pub bucket: usize,
    /// Device counter (one element): rows that carry data, packed at the front.
    pub live: B::Buffer<i32>,
}

impl<B: Backend> Rows<B> {
    /// A space of `bucket` rows, none of them live.
    pub fn new(backend: &B, bucket: usize) -> Result<Self, DeviceError> {
        Ok(Self {
            bucket,
            live: backend.buffer(1)?,
        })
    }

    /// The same rows under a program shaped for `bucket` of them.
    #[must_use]
    pub fn with_bucket(&self, bucket: usize) -> Self {
        Self {
            bucket,
            live: self.live.clone(),
        }
    }
}

/// Upper bounds of a step; tables and scratch are sized for them once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// Tokens of all requests together.
    pub tokens: usize,
    /// Plan rows of a step.
    pub requests: usize,
    /// Rows of logits.
    pub samples: usize,
    /// Blocks of one request.
    pub blocks_per_request: usize,
    /// Tokens of a block.
    pub block_size: usize,
}

/// The device-resident description of a step, read by the operations.
///
/// Tokens of one request are consecutive and in order. Everything here is contents, never shape.
#[derive(Clone)]
pub struct StepTables<B: Backend> {
    /// The bounds the tables were made for.
    pub limits: StepLimits,
    /// Token rows.
    pub tokens: Rows<B>,
    /// Request rows.
    pub requests: Rows<B>,
    /// Rows of logits.
    pub samples: Rows<B>,
    /// Per token: its id.
    pub ids: B::Buffer<i32>,
    /// Per token: its position in its request.
    pub positions: B::Buffer<i32>,
    /// Per token: the request row it belongs to.
    pub request_of: B::Buffer<i32>,
    /// Per request row: its first token row.
    pub first_token: B::Buffer<i32>,
    /// Per request row: how many tokens it has in this step.
    pub token_count: B::Buffer<i32>,
    /// Per request row: its slot, which is also the index of its recurrent state and its row of `block_table`. A
    /// request whose first token is at position 0 starts from the zero state.
    pub state_slot: B::Buffer<i32>,
    /// Per request row: records of the last step's drafts to fold into the state before the first token. The
    /// convolution window is read this many inputs further on.
    pub replay: B::Buffer<i32>,
    /// Per request row: how many of its last tokens are drafts. The others are certain and are folded into the
    /// state that is kept; drafts are run on a copy of it, and recorded.
    pub drafts: B::Buffer<i32>,
    /// Per request row: not 0 to look ahead. The records to replay and all tokens are run on a copy of the state;
    /// state and window stay as they are, and the tokens are recorded behind the replayed records.
    pub ahead: B::Buffer<i32>,
    /// Per request row: the number of folds, replayed ones counted, after which the state is saved; 0 for not at all.
    pub snapshot_after: B::Buffer<i32>,
    /// Per request row: the snapshot to write.
    pub snapshot_slot: B::Buffer<i32>,
    /// Per request row: one more than the snapshot to start from; 0 for none.
    pub restore: B::Buffer<i32>,
    /// Per slot: `blocks_per_request` block ids, in order of position.
    pub block_table: B::Buffer<i32>,
    /// Per row of logits: the token row it comes from.
    pub sample_token: B::Buffer<i32>,
    /// Per row of logits: the position of the token to be sampled, which keys the noise.
    pub sample_position: B::Buffer<i32>,
    /// Per row of logits: the request row it belongs to.
    pub sample_request: B::Buffer<i32>,
    /// Per row of logits: one more than the known token whose log-probability is wanted instead of a choice; 0
    /// to choose.
    pub sample_known: B::Buffer<i32>,
    /// Per row of logits: one more than the mask of its slot that confines the choice; 0 for none.
    pub sample_mask: B::Buffer<i32>,
    /// Per row of logits: a [`SamplingRow`] as [`SamplingRow::INTS`] numbers.
    pub sampling: B::Buffer<i32>,
}

impl<B: Backend> StepTables<B> {
    /// Tables for steps within `limits`, all empty.
    pub fn new(backend: &B, limits: StepLimits) -> Result<Self, DeviceError> {
        let StepLimits {
            tokens,
            requests,
            samples,
            blocks_per_request,
            ..
        } = limits;
        Ok(Self {
            limits,
            tokens: Rows::new(backend, tokens)?,
            requests: Rows::new(backend, requests)?,
            samples: Rows::new(backend, samples)?,
            ids: backend.buffer(tokens)?,
            positions: backend.buffer(tokens)?,
            request_of: backend.buffer(tokens)?,
            first_token: backend.buffer(requests)?,
            token_count: backend.buffer(requests)?,
            state_slot: backend.buffer(requests)?,
            replay: backend.buffer(requests)?,
            drafts: backend.buffer(requests)?,
            ahead: backend.buffer(requests)?,
            snapshot_after: backend.buffer(requests)?,
            snapshot_slot: backend.buffer(requests)?,
            restore: backend.buffer(requests)?,
            block_table: backend.buffer(requests * blocks_per_request)?,
            sample_token: backend.buffer(samples)?,
            sample_position: backend.buffer(samples)?,
            sample_request: backend.buffer(samples)?,
            sample_known: backend.buffer(samples)?,
            sample_mask: backend.buffer(samples)?,
            sampling: backend.buffer(samples * SamplingRow::INTS)?,
        })
    }

    /// The same tables under a program shaped for fewer tokens, requests and rows of logits.
    #[must_use]
    pub fn with_buckets(&self, tokens: usize, requests: usize, samples: usize) -> Self {
        let mut tables = self.clone();
        tables.tokens = self.tokens.with_bucket(tokens);
        tables.requests = self.requests.with_bucket(requests);
        tables.samples = self.samples.with_bucket(samples);
        tables
    }
}

/// Sampling parameters of one row of logits as the device reads them.
#[derive(Clone, Copy, Debug, PartialEq)]
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
    pub seed: u64,
    /// Alternatives to report, at most [`MAX_LOGPROBS`]; -1 for no log-probabilities at all.
    pub logprobs: i32,
}

impl SamplingRow {
    /// Numbers per row.
    pub const INTS: usize = 7;

    /// The row as the device stores it: floats by their bits.
    pub fn encode(&self) -> [i32; Self::INTS] {
        [
            self.temperature.to_bits() as i32,
            self.top_p.to_bits() as i32,
            self.top_k as i32,
            self.min_p.to_bits() as i32,
            self.seed as u32 as i32,
            (self.seed >> 32) as u32 as i32,
            self.logprobs,
        ]
    }

    /// The inverse of [`encode`](Self::encode).
    pub fn decode(row: &[i32]) -> Self {
        Self {
            temperature: f32::from_bits(row[0] as u32),
            top_p: f32::from_bits(row[1] as u32),
            top_k: row[2] as u32,
            min_p: f32::from_bits(row[3] as u32),
            seed: u64::from(row[4] as u32) | (u64::from(row[5] as u32) << 32),
            logprobs: row[6],
        }
    }
}

/// Blocks of one attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Blocks of the whole cache, shared by all requests.
    pub blocks: usize,
    /// Tokens of a block.
    pub block_size: usize,
    /// Key and value heads.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

/// States of one recurrent layer: a convolution window and one matrix per head, for each slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateShape {
    /// Requests that can hold a state.
    pub slots: usize,
    /// Channels of the convolution.
    pub conv_channels: usize,
    /// Taps of the convolution; the window holds one input fewer.
    pub conv_width: usize,
    /// State matrices.
    pub heads: usize,
    /// Rows of a state matrix: key dimension (delta rule) or head dimension (Mamba2).
    pub rows: usize,
    /// Columns of a state matrix: value dimension (delta rule) or state size (Mamba2).
    pub columns: usize,
    /// Most draft tokens of a plan row: the inputs of that number of tokens are recorded per slot, and windows are that much longer.
    pub drafts: usize,
    /// Saved states.
    pub snapshots: usize,
}

impl StateShape {
    /// Elements of one slot's matrices.
    pub const fn matrix_elements(&self) -> usize {
        self.heads * self.rows * self.columns
    }

    /// Elements recorded per draft: what it takes to fold a token into the matrices. An upper bound that holds for
    /// both recurrences: keys and values of every head, and two numbers per head.
    pub const fn record_elements(&self) -> usize {
        self.heads * (self.rows + self.columns + 2)
    }

    /// Elements of one slot's convolution window.
    pub const fn window_elements(&self) -> usize {
        (self.conv_width - 1) * self.conv_channels
    }
}
