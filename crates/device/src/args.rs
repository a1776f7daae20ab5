//! Arguments of the operations that need more than a few.

use crate::abi::Logprobs;
use crate::{Backend, SlotTable, StepTables};

/// A matrix product: `out = (x · wᵀ + bias) · scale`.
pub struct Product<'a, B: Backend> {
    /// `[T, inputs]`.
    pub x: &'a B::Tensor,
    /// `[outputs, inputs]`.
    pub w: &'a B::Weight,
    /// Bias and scale.
    pub epilogue: Epilogue<'a, B>,
    /// `[T, outputs]`.
    pub out: &'a mut B::Tensor,
}

/// What happens to the outputs of a matrix product.
pub struct Epilogue<'a, B: Backend> {
    /// Added per output.
    pub bias: Option<&'a B::Buffer<f32>>,
    /// Multiplied per output, after the bias.
    pub scale: Option<&'a B::Buffer<f32>>,
}

impl<B: Backend> Epilogue<'_, B> {
    /// Neither bias nor scale.
    pub const NONE: Self = Self {
        bias: None,
        scale: None,
    };
}

/// How what is added to the residual stream ends in a norm: `residual += delta · scale; out = rms_norm(residual)`.
pub struct ResidualNorm<'a, B: Backend> {
    /// The residual stream, updated in place.
    pub residual: &'a mut B::Tensor,
    /// Multiplies what is added.
    pub scale: f32,
    /// Norm weight, per column.
    pub weight: &'a B::Buffer<f32>,
    /// Added to the mean square.
    pub eps: f32,
    /// The normalised residual.
    pub out: &'a mut B::Tensor,
}

/// Feed-forward activations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `silu(gate · gate_scale) · up`.
    SiluGated {
        /// Multiplies the gate before the activation; 1 in most models.
        gate_scale: f32,
    },
    /// `relu(x)²`, no gate.
    ReluSquared,
}

impl Activation {
    /// Columns of the input per column of the output.
    pub const fn fan_in(self) -> usize {
        match self {
            Self::SiluGated { .. } => 2,
            Self::ReluSquared => 1,
        }
    }
}

/// Per-head RMS norms of queries and keys, weights `[head_dim]`.
pub struct HeadNorms<'a, B: Backend> {
    /// For queries.
    pub q: &'a B::Buffer<f32>,
    /// For keys.
    pub k: &'a B::Buffer<f32>,
    /// Added to the mean square.
    pub eps: f32,
}

/// Arguments of [`Backend::store_kv`].
pub struct KeyValueStore<'a, B: Backend> {
    /// Queries `[T, heads · head_dim]`, normalised and rotated in place.
    pub q: &'a mut B::Tensor,
    /// Keys `[T, kv_heads · head_dim]` before norm and rotation.
    pub k: &'a B::Tensor,
    /// Values, same shape.
    pub v: &'a B::Tensor,
    /// Norms of each query and key head, before rotation.
    pub norms: Option<HeadNorms<'a, B>>,
    /// Output of [`Backend::rope_angles`]: `[T, 2·n]` rotates element `i` with `i + n` for `i < n` in each head
    /// and leaves elements from `2·n` on alone. `None` for models without positions.
    pub angles: Option<&'a B::Tensor>,
    /// Where keys and values go.
    pub cache: &'a B::KvCache,
    /// The step.
    pub step: &'a StepTables<B>,
}

/// Arguments of [`Backend::attention`].
pub struct Attention<'a, B: Backend> {
    /// Queries as [`Backend::store_kv`] left them.
    pub q: &'a B::Tensor,
    /// Multiplies the output as `sigmoid(gate)`, elementwise.
    pub gate: Option<&'a B::Tensor>,
    /// Keys and values of all positions up to and including the token's own.
    pub cache: &'a B::KvCache,
    /// Multiplies the scores.
    pub scale: f32,
    /// `[T, heads · head_dim]`.
    pub out: &'a mut B::Tensor,
    /// The step.
    pub step: &'a StepTables<B>,
}

/// Arguments of [`Backend::causal_conv`].
pub struct CausalConv<'a, B: Backend> {
    /// Inputs `[T, channels]`.
    pub x: &'a B::Tensor,
    /// Taps `[channels, width]`, the last one meets the current token.
    pub weight: &'a B::Buffer<f32>,
    /// Per channel.
    pub bias: Option<&'a B::Buffer<f32>>,
    /// Holds the inputs before the step.
    pub cache: &'a B::StateCache,
    /// `[T, channels]`, after SiLU.
    pub out: &'a mut B::Tensor,
    /// The step.
    pub step: &'a StepTables<B>,
}

/// How value heads share key heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadMap {
    /// Value head `j` reads key head `j / (value_heads / key_heads)`.
    Grouped,
    /// Value head `j` reads key head `j % key_heads`.
    Tiled,
}

/// Arguments of [`Backend::delta_rule`].
///
/// Per value head with state `S[dk, dv]`, in order of position, all in f32:
/// `S ← exp(g)·S; u = β·(v − Sᵀk); S ← S + k·uᵀ; o = Sᵀq`, where `q` and `k` are scaled to unit length
/// (`x·rsqrt(Σx² + 1e-6)`), `q` is multiplied by `dk^-½`, `β = sigmoid(b)` and
/// `g = decay·softplus(a + dt_bias)`.
///
/// It is evaluated on the grid: with `S` at the multiple of [`STATE_GRID`](paceline_types::STATE_GRID) at or before
/// position `t`, and `d(s,t)` the sum of `g` over `s < r ≤ t`, added from `t` downwards (`d(t)` from the multiple on),
/// ```text
/// u_t = β_t·(v_t − e^{d(t)}·Sᵀk_t − Σ_{s<t} e^{d(s,t)}·(k_s·k_t)·u_s)
/// o_t = e^{d(t)}·Sᵀq_t + Σ_{s≤t} e^{d(s,t)}·(k_s·q_t)·u_s
/// S at the next multiple = e^{d(15)}·S + Σ_s e^{d(s,15)}·k_s·u_sᵀ
/// ```
/// with sums over `s` ascending. Positions alone say which form a token is evaluated in, so no cut of a sequence into
/// steps changes a bit.
pub struct DeltaRule<'a, B: Backend> {
    /// `[T, key_heads·dk]`.
    pub q: &'a B::Tensor,
    /// `[T, key_heads·dk]`.
    pub k: &'a B::Tensor,
    /// `[T, value_heads·dv]`.
    pub v: &'a B::Tensor,
    /// `[T, value_heads]`, before softplus.
    pub a: &'a B::Tensor,
    /// `[T, value_heads]`, before the sigmoid.
    pub b: &'a B::Tensor,
    /// `-exp(A_log)` per value head.
    pub decay: &'a B::Buffer<f32>,
    /// Per value head.
    pub dt_bias: &'a B::Buffer<f32>,
    /// Which key head a value head reads.
    pub head_map: HeadMap,
    /// The states; their shape gives `value_heads`, `dk` and `dv`.
    pub cache: &'a B::StateCache,
    /// `[T, value_heads·dv]`.
    pub out: &'a mut B::Tensor,
    /// The step.
    pub step: &'a StepTables<B>,
}

/// Arguments of [`Backend::state_space`].
///
/// Per head with state `S[n, p]`, in order of position, all in f32: `dt = softplus(dt + dt_bias)` clamped to
/// `dt_limits`; `S ← exp(dt·decay)·S + B·(dt·x)ᵀ; y = Sᵀ·C + D·x`. Head `j` reads group `j / (heads / groups)`.
///
/// It is evaluated on the grid as [`DeltaRule`] is, with `B` for `k`, `C` for `q`, `dt·decay` for `g` and `u = dt·x`.
pub struct StateSpace<'a, B: Backend> {
    /// `[T, heads·p]`.
    pub x: &'a B::Tensor,
    /// `[T, groups·n]`.
    pub b: &'a B::Tensor,
    /// `[T, groups·n]`.
    pub c: &'a B::Tensor,
    /// `[T, heads]`.
    pub dt: &'a B::Tensor,
    /// `-exp(A_log)` per head.
    pub decay: &'a B::Buffer<f32>,
    /// `D` per head.
    pub skip: &'a B::Buffer<f32>,
    /// Per head.
    pub dt_bias: &'a B::Buffer<f32>,
    /// Smallest and largest `dt`.
    pub dt_limits: (f32, f32),
    /// The states; their shape gives `heads`, `p` and `n`.
    pub cache: &'a B::StateCache,
    /// `[T, heads·p]`.
    pub out: &'a mut B::Tensor,
    /// The step.
    pub step: &'a StepTables<B>,
}

/// Whether the gate meets the values before or after the norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateOrder {
    /// `norm(x) · silu(z)`.
    NormThenGate,
    /// `norm(x · silu(z))`.
    GateThenNorm,
}

/// Arguments of [`Backend::gated_norm`].
pub struct GatedNorm<'a, B: Backend> {
    /// `[T, n]`.
    pub x: &'a B::Tensor,
    /// `[T, n]`.
    pub gate: &'a B::Tensor,
    /// `[group]`, shared by all groups, or `[n]`. `None` leaves the norm out: `x · silu(gate)`.
    pub weight: Option<&'a B::Buffer<f32>>,
    /// Columns normalised together; divides `n`.
    pub group: usize,
    /// Order of norm and gate.
    pub order: GateOrder,
    /// Added to the mean square.
    pub eps: f32,
    /// `[T, n]`.
    pub out: &'a mut B::Tensor,
}

/// How router logits become scores and weights.
#[derive(Clone)]
pub enum RouteScores<'a, B: Backend> {
    /// Softmax over all experts; the best are taken and, if asked, their weights made to sum to 1.
    Softmax {
        /// Divide by the sum of the chosen.
        renormalise: bool,
    },
    /// Sigmoid per expert. The choice adds `bias` and is limited to the `kept_groups` best of `groups` equal
    /// groups (a group counts the sum of its two best); weights are the unbiased sigmoids, divided by their sum
    /// (plus 1e-20) if asked, times `scale`.
    Sigmoid {
        /// Correction per expert, for the choice only.
        bias: &'a B::Buffer<f32>,
        /// Groups of consecutive experts.
        groups: usize,
        /// Groups that may be chosen from.
        kept_groups: usize,
        /// Divide by the sum of the chosen.
        renormalise: bool,
        /// Multiplies the weights.
        scale: f32,
    },
}

/// The experts chosen for each row, best first.
pub struct MoeRouting<B: Backend> {
    /// `[T, chosen]`, row-major.
    pub ids: B::Buffer<i32>,
    /// `[T, chosen]`.
    pub weights: B::Tensor,
    /// Experts per row.
    pub chosen: usize,
}

/// Arguments of [`Backend::route`]. Ties go to the lower expert.
pub struct Router<'a, B: Backend> {
    /// `[T, experts]`, where a shared expert counts too.
    pub logits: &'a B::Tensor,
    /// How they become weights.
    pub scores: RouteScores<'a, B>,
    /// Whether the last column of the logits is not a score but the gate of a shared expert, which is the last of all and which
    /// every row runs behind those that it chose: its weight is the gate's sigmoid.
    pub shared: bool,
    /// Receives the choice.
    pub out: &'a mut MoeRouting<B>,
}

/// Arguments of [`Backend::run_experts`].
pub struct Experts<'a, B: Backend> {
    /// `[T, hidden]`.
    pub x: &'a B::Tensor,
    /// Which experts, with which weights.
    pub routing: &'a MoeRouting<B>,
    /// Their matrices.
    pub experts: &'a B::Experts,
    /// Between the two matrices.
    pub activation: Activation,
    /// `[T, hidden]`, overwritten.
    pub out: &'a mut B::Tensor,
}

/// Arguments of [`Backend::mix_experts`]. What it writes is scratch.
pub struct Mixture<'a, B: Backend> {
    /// The product whose results are the logits.
    pub router: Product<'a, B>,
    /// How they become weights.
    pub scores: RouteScores<'a, B>,
    /// As in [`Router`].
    pub shared: bool,
    /// The choice.
    pub routing: &'a mut MoeRouting<B>,
    /// The matrices of the experts.
    pub experts: &'a B::Experts,
    /// Between the two matrices.
    pub activation: Activation,
    /// `[T, hidden]`.
    pub out: &'a mut B::Tensor,
}

/// The text before a sampled position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampledText {
    /// The history and the step's tokens.
    Step,
    /// The history, the slot's newest token and its drafts so far.
    Drafts,
}

/// Where the options of requests are found.
pub struct SampleOptions<'a, B: Backend> {
    /// The slots.
    pub slots: &'a SlotTable<B>,
    /// The plan.
    pub plan: &'a B::Buffer<i32>,
}

/// How a token is chosen per row of logits, and where it goes.
///
/// Greedy rows take the largest logit, the lowest id among equals. Other rows divide by the temperature, drop
/// tokens below `min_p` of the most likely one, keep the `top_k` most likely (lower ids first among equals),
/// then the smallest set of those that reaches `top_p` of their mass, and take the largest of
/// `logit / temperature + gumbel(seed, position, token)`. The noise is a pure function of its arguments, so a
/// position gets the same token however it is reached.
///
/// A row with a mask chooses among the tokens of the mask, whatever else its options say: if those leave none of them,
/// it takes the most likely of the mask.
pub struct Sampling<'a, B: Backend> {
    /// The step: positions and sampling parameters per row.
    pub step: &'a StepTables<B>,
    /// The slots, for penalties, biases, bad words and stop tokens, and the plan, for masks; `None` leaves those out.
    pub options: Option<SampleOptions<'a, B>>,
    /// What those options take for the text before a row.
    pub text: SampledText,
    /// `[S]`, the chosen tokens.
    pub tokens: &'a B::Buffer<i32>,
    /// Per row of logits, written for those that ask for log-probabilities.
    pub logprobs: &'a B::Buffer<Logprobs>,
}

/// The output matrix of [`Backend::sample_states`].
pub struct SampledProduct<'a, B: Backend> {
    /// Scratch: `[S, inputs]`.
    pub states: &'a mut B::Tensor,
    /// `[vocabulary, inputs]`.
    pub w: &'a B::Weight,
    /// Bias and scale.
    pub epilogue: Epilogue<'a, B>,
    /// Scratch: `[S, vocabulary]`.
    pub logits: &'a mut B::Tensor,
}
