//! Operations over a sequence, as a model calls them.

use super::timing::{OpTiming, seconds};
use paceline_device::abi::{RequestRow, TokenRow};
use paceline_device::{
    Attention, Backend, DeltaRule, DeviceError, HeadMap, KeyValueStore, KvShape, StateShape, StateSpace,
    StepLimits, StepTables,
};
use paceline_types::{STATE_GRID, on_state_grid};

const BLOCK_SIZE: usize = 16;
const FLOAT: usize = size_of::<f32>();

/// An operation and its size: `tokens` new ones of one request that ends at position `context`.
#[derive(Clone, Copy, Debug)]
pub(super) enum SequenceOp {
    Norm { tokens: usize },
    Attention { tokens: usize, context: usize },
    DeltaRule { tokens: usize },
    StateSpace { tokens: usize },
}

/// Sizes of a model of some four billion parameters.
const HIDDEN: usize = 2048;
const HEADS: usize = 16;
const KV_HEADS: usize = 4;
const HEAD_DIM: usize = 128;
const STATE_HEADS: usize = 32;
const STATE_DIM: usize = 128;

impl SequenceOp {
    /// Those to time.
    pub(super) fn all(quick: bool) -> Vec<Self> {
        let decode = [
            Self::Norm { tokens: 1 },
            Self::Attention {
                tokens: 1,
                context: 1024,
            },
            Self::DeltaRule { tokens: 1 },
            Self::StateSpace { tokens: 1 },
        ];
        let prefill = [
            Self::Norm { tokens: 256 },
            Self::Attention {
                tokens: 1,
                context: 8192,
            },
            Self::Attention {
                tokens: 256,
                context: 1024,
            },
            Self::DeltaRule { tokens: 256 },
            Self::StateSpace { tokens: 256 },
        ];
        let prefill = prefill.into_iter().filter(|_| !quick);
        decode.into_iter().chain(prefill).collect()
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Norm { .. } => "rms norm",
            Self::Attention { .. } => "attention",
            Self::DeltaRule { .. } => "delta rule",
            Self::StateSpace { .. } => "state space",
        }
    }

    pub(super) fn size(self) -> String {
        match self {
            Self::Norm { tokens } => format!("{tokens} x {HIDDEN}"),
            Self::Attention { tokens, context } => {
                format!("{tokens} x {HEADS}/{KV_HEADS} heads over {context}")
            }
            Self::DeltaRule { tokens } | Self::StateSpace { tokens } => {
                format!("{tokens} x {STATE_HEADS} x [{STATE_DIM}, {STATE_DIM}]")
            }
        }
    }

    /// Times calls through the stream until the median is steady.
    pub(super) fn measure<B: Backend>(self, backend: &B) -> Result<OpTiming, DeviceError> {
        let (tokens, context) = match self {
            Self::Attention { tokens, context } => (tokens, context),
            Self::Norm { tokens } => (tokens, tokens),
            // From the middle of what lies between two grid positions.
            Self::DeltaRule { tokens } | Self::StateSpace { tokens } => (tokens, tokens + 3 * STATE_GRID / 2),
        };
        let bench = Bench {
            backend,
            step: step(backend, tokens, context)?,
        };
        let seconds = match self {
            Self::Norm { .. } => bench.norm(),
            Self::Attention { context, .. } => bench.attention(context),
            Self::DeltaRule { .. } => bench.delta_rule(),
            Self::StateSpace { .. } => bench.state_space(),
        }?;
        let (flops, bytes) = self.work();
        Ok(OpTiming {
            name: self.name().to_owned(),
            size: self.size(),
            seconds,
            flops: flops as f64,
            bytes: bytes as f64,
        })
    }

    /// Arithmetic operations and bytes of one call.
    fn work(self) -> (usize, usize) {
        let state = STATE_HEADS * STATE_DIM * STATE_DIM;
        match self {
            Self::Norm { tokens } => (4 * tokens * HIDDEN, 2 * tokens * HIDDEN * FLOAT),
            Self::Attention { tokens, context } => {
                let visible: usize = (context - tokens + 1..=context).sum();
                let cache = 2 * context * KV_HEADS * HEAD_DIM * FLOAT;
                let queries = 2 * tokens * HEADS * HEAD_DIM * FLOAT;
                (4 * visible * HEADS * HEAD_DIM, cache + queries)
            }
            // Read twice or once, and folded; the state comes, and goes where a grid position is reached.
            Self::DeltaRule { tokens } => (6 * tokens * state, passes(tokens) * state * FLOAT),
            Self::StateSpace { tokens } => (4 * tokens * state, passes(tokens) * state * FLOAT),
        }
    }
}

/// Times that a step over `tokens` tokens from a grid position moves the state.
fn passes(tokens: usize) -> usize {
    1 + usize::from(tokens >= STATE_GRID)
}

struct Bench<'a, B: Backend> {
    backend: &'a B,
    step: StepTables<B>,
}

impl<B: Backend> Bench<'_, B> {
    fn tensor(&self, columns: usize) -> Result<B::Tensor, DeviceError> {
        self.backend.tensor(&self.step.tokens, columns)
    }

    fn norm(&self) -> Result<f64, DeviceError> {
        let (x, mut out) = (self.tensor(HIDDEN)?, self.tensor(HIDDEN)?);
        let weight = self.backend.buffer_from(&vec![1.0; HIDDEN])?;
        seconds(self.backend, || {
            self.backend.rms_norm(&x, &weight, 1e-6, &mut out);
        })
    }

    fn attention(&self, context: usize) -> Result<f64, DeviceError> {
        let (q, mut out) = (self.tensor(HEADS * HEAD_DIM)?, self.tensor(HEADS * HEAD_DIM)?);
        let cache = self.backend.kv_cache(KvShape {
            blocks: context.div_ceil(BLOCK_SIZE),
            block_size: BLOCK_SIZE,
            heads: KV_HEADS,
            head_dim: HEAD_DIM,
        })?;
        self.fill(&cache, context)?;
        seconds(self.backend, || {
            self.backend.attention(Attention {
                q: &q,
                gate: None,
                cache: &cache,
                scale: 0.1,
                out: &mut out,
                step: &self.step,
            });
        })
    }

    /// Pages that were never written are all one page to the system, and read too fast.
    fn fill(&self, cache: &B::KvCache, context: usize) -> Result<(), DeviceError> {
        let whole = Bench {
            backend: self.backend,
            step: step(self.backend, context, context)?,
        };
        let (mut q, width) = (whole.tensor(HEADS * HEAD_DIM)?, KV_HEADS * HEAD_DIM);
        let (k, v) = (whole.tensor(width)?, whole.tensor(width)?);
        self.backend.store_kv(KeyValueStore {
            q: &mut q,
            k: &k,
            v: &v,
            norms: None,
            angles: None,
            cache,
            step: &whole.step,
        });
        Ok(())
    }

    fn delta_rule(&self) -> Result<f64, DeviceError> {
        let width = STATE_HEADS * STATE_DIM;
        let (q, k, v) = (self.tensor(width)?, self.tensor(width)?, self.tensor(width)?);
        let (a, b) = (self.tensor(STATE_HEADS)?, self.tensor(STATE_HEADS)?);
        let per_head = self.backend.buffer_from(&[-1.0; STATE_HEADS])?;
        let (cache, mut out) = (
            self.backend.state_cache(state_shape(3 * width, STATE_HEADS))?,
            self.tensor(width)?,
        );
        seconds(self.backend, || {
            self.backend.delta_rule(DeltaRule {
                q: &q,
                k: &k,
                v: &v,
                a: &a,
                b: &b,
                decay: &per_head,
                dt_bias: &per_head,
                head_map: HeadMap::Grouped,
                cache: &cache,
                out: &mut out,
                step: &self.step,
            });
        })
    }

    fn state_space(&self) -> Result<f64, DeviceError> {
        let width = STATE_HEADS * STATE_DIM;
        let (x, dt) = (self.tensor(width)?, self.tensor(STATE_HEADS)?);
        let (b, c) = (self.tensor(STATE_DIM)?, self.tensor(STATE_DIM)?);
        let per_head = self.backend.buffer_from(&[-1.0; STATE_HEADS])?;
        let channels = width + 2 * STATE_DIM;
        let (cache, mut out) = (
            self.backend.state_cache(state_shape(channels, 1))?,
            self.tensor(width)?,
        );
        seconds(self.backend, || {
            self.backend.state_space(StateSpace {
                x: &x,
                b: &b,
                c: &c,
                dt: &dt,
                decay: &per_head,
                skip: &per_head,
                dt_bias: &per_head,
                dt_limits: (0.0, f32::INFINITY),
                cache: &cache,
                out: &mut out,
                step: &self.step,
            });
        })
    }
}

fn state_shape(conv_channels: usize, groups: usize) -> StateShape {
    StateShape {
        slots: 1,
        conv_channels,
        conv_width: 4,
        heads: STATE_HEADS,
        groups,
        rows: STATE_DIM,
        columns: STATE_DIM,
        drafts: 0,
        snapshots: 0,
    }
}

/// A step with the last `tokens` of one request of `context` tokens.
fn step<B: Backend>(backend: &B, tokens: usize, context: usize) -> Result<StepTables<B>, DeviceError> {
    let blocks = context.div_ceil(BLOCK_SIZE);
    let step = StepTables::new(
        backend,
        StepLimits {
            tokens,
            requests: 1,
            samples: 1,
            blocks_per_request: blocks,
            block_size: BLOCK_SIZE,
        },
    )?;
    let rows: Vec<TokenRow> = (context - tokens..context)
        .map(|position| TokenRow {
            position: position as i32,
            ..TokenRow::default()
        })
        .collect();
    let request = RequestRow {
        token_count: tokens as i32,
        state_at: on_state_grid(context - tokens) as i32,
        state_end: on_state_grid(context) as i32,
        ..RequestRow::default()
    };
    let block_table: Vec<i32> = (0..blocks as i32).collect();
    backend.write(&step.tokens.live, &[tokens as i32]);
    backend.write(&step.requests.live, &[1]);
    backend.write(&step.token_rows, &rows);
    backend.write(&step.request_rows, &[request]);
    backend.write(&step.block_table, &block_table);
    Ok(step)
}
