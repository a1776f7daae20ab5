//! What a step looks like from inside an operation: row spaces, request tables and cache shapes.

use crate::abi::{LogitsRow, RequestRow, TokenRow};
use crate::{Backend, DeviceError};
use paceline_types::STATE_GRID;

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
/// Tokens of one request are consecutive and in order. What buffers hold is contents, never shape.
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
    /// What is run.
    pub token_rows: B::Buffer<TokenRow>,
    /// Whose it is.
    pub request_rows: B::Buffer<RequestRow>,
    /// What is chosen.
    pub logits_rows: B::Buffer<LogitsRow>,
    /// Per slot: `blocks_per_request` block ids, in order of position.
    pub block_table: B::Buffer<i32>,
    /// Whether a request may have any number of tokens: without, it has its newest one and drafts. A part of the shape.
    pub prompts: bool,
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
            token_rows: backend.buffer(tokens)?,
            request_rows: backend.buffer(requests)?,
            logits_rows: backend.buffer(samples)?,
            block_table: backend.buffer(requests * blocks_per_request)?,
            prompts: true,
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

    /// The same tables under a program with prompts, or one in which every request has its newest token and drafts.
    #[must_use]
    pub fn with_prompts(mut self, prompts: bool) -> Self {
        self.prompts = prompts;
        self
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

/// States of one recurrent layer: for each slot one matrix per head, the entries since, and convolution inputs.
///
/// A matrix stands at a multiple of [`STATE_GRID`]. What a token adds to it is an *entry*: a key per group, a value
/// per head and the log of the decay per head. Entries and raw convolution inputs are rings by position, so that taking
/// tokens back is a matter of lengths. A slot's state is at most `STATE_GRID - 1` tokens behind what is certain, of a
/// window of `1 + drafts` tokens all may hold, and a draft model looks ahead by `drafts` more from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateShape {
    /// Requests that can hold a state.
    pub slots: usize,
    /// Channels of the convolution.
    pub conv_channels: usize,
    /// Taps of the convolution.
    pub conv_width: usize,
    /// State matrices.
    pub heads: usize,
    /// Keys that the heads share: key heads (delta rule) or groups (Mamba2).
    pub groups: usize,
    /// Rows of a state matrix: key dimension (delta rule) or state size (Mamba2).
    pub rows: usize,
    /// Columns of a state matrix: value dimension (delta rule) or head dimension (Mamba2).
    pub columns: usize,
    /// Most draft tokens of a plan row.
    pub drafts: usize,
    /// Saved states.
    pub snapshots: usize,
}

impl StateShape {
    /// Elements of one slot's matrices.
    pub const fn matrix_elements(&self) -> usize {
        self.heads * self.rows * self.columns
    }

    /// Entries of one slot.
    pub const fn entries(&self) -> usize {
        STATE_GRID + 2 * self.drafts
    }

    /// Elements of one entry.
    pub const fn entry_elements(&self) -> usize {
        self.groups * self.rows + self.heads * (self.columns + 1)
    }

    /// Convolution inputs of one slot.
    pub const fn conv_inputs(&self) -> usize {
        2 * self.drafts + self.conv_width
    }

    /// Elements of the convolution inputs before a token. These and the matrices are what a snapshot holds.
    pub const fn window_elements(&self) -> usize {
        (self.conv_width - 1) * self.conv_channels
    }
}
