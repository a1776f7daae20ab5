//! The [`Backend`] trait: storage, the stream, and the operations of a step.

use crate::args::{
    Activation, Attention, CausalConv, DeltaRule, Epilogue, Experts, GatedNorm, KeyValueStore, Mixture,
    Product, ResidualNorm, Router, SampledProduct, Sampling, StateSpace,
};
use crate::{
    Accept, ClearKv, DeviceError, DeviceInfo, GatherStates, KeepBlockEnds, KvShape, PoolStates, Prepare,
    PrepareDrafts, ProposeNgram, Publish, RingPlace, Rows, StateShape, StepRecord, StepTables, TakeDrafts,
    WeightPart,
};
use paceline_types::DType;
use std::time::Instant;

/// A type that device buffers can hold: any bits are a value of it.
pub trait Element: bytemuck::Pod + Default + Send + Sync + std::fmt::Debug {
    /// Name used in recordings and messages.
    const NAME: &'static str;
}

impl Element for f32 {
    const NAME: &'static str = "f32";
}

impl Element for u16 {
    const NAME: &'static str = "u16";
}

impl Element for i32 {
    const NAME: &'static str = "i32";
}

/// A value on its way from the device. Waiting for it is the one place where a host blocks.
pub trait Pending<T> {
    /// Blocks until everything enqueued before the read has run, and returns the value.
    fn wait(self) -> Result<T, DeviceError>;
}

/// A device: its storage, its stream and its operations.
///
/// **Stream.** Every operation is enqueued and returns at once; the stream runs them one after another. A
/// failed operation (a panic, a fault) is remembered, later ones are skipped, and the next
/// [`Pending::wait`] reports it.
///
/// **Capture.** Between [`begin_capture`](Self::begin_capture) and [`end_capture`](Self::end_capture)
/// operations are collected into a program instead of run; [`launch`](Self::launch) enqueues the whole program.
/// Therefore an operation may depend at enqueue time only on shapes. Everything that changes from step to step
/// is read from buffers when it runs, and the number of rows that carry data is the [`Rows::live`] count of the
/// tensors' row space: rows past it may be skipped or computed, but never matter.
///
/// **Bitwise law.** A row of a result depends only on that row's inputs (and, for attention and recurrent
/// layers, on its request's cache). It does not depend on the other rows, on the bucket, on the number of
/// threads or on how a sequence was cut into steps.
///
/// **Handles.** Buffers, tensors, weights and caches are cheap handles to device storage. Cloning one does not
/// copy data. Operations that write take `&mut`; a tensor that is written must not overlap one that is read by
/// the same operation unless the operation says so.
pub trait Backend: Clone + Send + Sync + 'static {
    /// A one-dimensional array.
    type Buffer<T: Element>: Clone + Send + Sync;
    /// An activation matrix `[rows, columns]` over a row space.
    type Tensor: Clone + Send + Sync;
    /// A weight matrix `[out, in]`, packed as the device likes it.
    type Weight: Clone + Send + Sync;
    /// The feed-forward experts of one layer.
    type Experts: Clone + Send + Sync;
    /// The paged keys and values of one attention layer.
    type KvCache: Clone + Send + Sync;
    /// The per-request states of one recurrent layer.
    type StateCache: Clone + Send + Sync;
    /// A captured program.
    type Program: Clone + Send + Sync;
    /// A read in flight.
    type Read<T: Element>: Pending<Vec<T>> + Send;
    /// Memory that host and device see, in places of equal size.
    type Ring: Clone + Send + Sync;
    /// A record in flight.
    type Arrival: Pending<Vec<i32>> + Send;

    // The device. None of these waits for it.

    /// What it is and how much of it is free.
    fn info(&self) -> DeviceInfo;
    /// Bytes of storage that are held on it now.
    fn allocated(&self) -> u64;
    /// A device like this one that owns no memory and runs nothing, but counts what it would hold: weights as it keeps
    /// them, and what its operations need while they run. `None` where that is what is asked for, and no more.
    fn rehearsal(&self) -> Option<Self> {
        None
    }
    /// The moment that the clock of its records counts from.
    fn epoch(&self) -> Instant;
    /// How often a host has waited for it so far, counted where the waiting happens.
    fn host_waits(&self) -> u64;

    // Storage. These may block; none is called between steps.

    /// A zeroed buffer.
    fn buffer<T: Element>(&self, len: usize) -> Result<Self::Buffer<T>, DeviceError>;
    /// A buffer with these contents.
    fn buffer_from<T: Element>(&self, data: &[T]) -> Result<Self::Buffer<T>, DeviceError> {
        let buffer = self.buffer(data.len())?;
        self.write(&buffer, data);
        Ok(buffer)
    }
    /// A matrix with as many rows as the space has room for.
    fn tensor(&self, rows: &Rows<Self>, columns: usize) -> Result<Self::Tensor, DeviceError>;
    /// The same storage seen as a matrix over a space with fewer rows, or with fewer columns.
    fn reshape(&self, tensor: &Self::Tensor, rows: &Rows<Self>, columns: usize) -> Self::Tensor;
    /// A range of a tensor's columns.
    fn columns(&self, tensor: &Self::Tensor, range: std::ops::Range<usize>) -> Self::Tensor;
    /// Packs parts, stacked along the output dimension, optionally converting them to another type: a floating-point one,
    /// or where [`DeviceInfo::quantises`] says so, floating-point parts to Q8_0 or Q4_1.
    /// A value that is not finite is an error that names the part.
    fn weight(&self, parts: &[WeightPart<'_>], store_as: Option<DType>) -> Result<Self::Weight, DeviceError>;
    /// The first `outputs` rows of a weight as one of its own, in the same storage. Not of a gated weight, whose rows may be
    /// in another order.
    fn first_outputs(&self, weight: &Self::Weight, outputs: usize) -> Self::Weight;
    /// Groups expert matrices: `gate_up[e]` is `[2·width, hidden]`, made by [`gated_weight`](Self::gated_weight) (or `[width,
    /// hidden]` for ungated activations), `down[e]` is `[hidden, width]`.
    fn experts(
        &self,
        gate_up: Vec<Self::Weight>,
        down: Vec<Self::Weight>,
    ) -> Result<Self::Experts, DeviceError>;
    /// Zeroed blocks for one attention layer.
    fn kv_cache(&self, shape: KvShape) -> Result<Self::KvCache, DeviceError>;
    /// Zeroed states for one recurrent layer.
    fn state_cache(&self, shape: StateShape) -> Result<Self::StateCache, DeviceError>;
    /// What these caches hold is not defined from here on, until it is written again. A device that shares its memory with
    /// others gives theirs back meanwhile.
    fn hand_back(&self, kv: &[Self::KvCache], states: &[Self::StateCache]) {
        let _ = (kv, states);
    }

    /// Memory that host and device see: `places` arrays of `words` words.
    fn ring(&self, places: usize, words: usize) -> Result<Self::Ring, DeviceError>;

    // The stream.

    /// Enqueues a copy of `data` to the elements of `buffer` from `offset` on. Never part of a captured program.
    fn write_at<T: Element>(&self, buffer: &Self::Buffer<T>, offset: usize, data: &[T]);
    /// Enqueues a copy of `data` to the start of `buffer`. Never part of a captured program.
    fn write<T: Element>(&self, buffer: &Self::Buffer<T>, data: &[T]) {
        self.write_at(buffer, 0, data);
    }
    /// Enqueues a read of the first `len` elements. Never part of a captured program.
    fn read<T: Element>(&self, buffer: &Self::Buffer<T>, len: usize) -> Self::Read<T>;
    /// Enqueues a read of the live rows of a tensor, row by row. Never part of a captured program.
    fn read_tensor(&self, tensor: &Self::Tensor) -> Self::Read<f32>;
    /// Starts collecting operations.
    fn begin_capture(&self);
    /// Ends collecting and returns what was collected.
    fn end_capture(&self) -> Self::Program;
    /// Enqueues a whole captured program.
    fn launch(&self, program: &Self::Program);

    /// Writes `words` to the front of a place of a ring, at once and without the stream: the next program launched
    /// finds them there. No step in flight has the place, or there would be no [`RingPlace`] of it.
    fn post(&self, ring: &Self::Ring, place: &RingPlace, words: &[i32]);
    /// The record that the program launched last leaves in a place of a ring. Waiting for it ends with an error if the
    /// stream has failed. Nothing writes the place again before the [`RingPlace`] is handed to another step.
    fn arrival(&self, ring: &Self::Ring, place: &RingPlace) -> Self::Arrival;

    // Operations. T is the number of rows of the space of the tensors.

    /// `out[t] = table[id of t] · scale`. Ids outside the table are an error of the step.
    fn embed(&self, step: &StepTables<Self>, table: &Self::Weight, scale: f32, out: &mut Self::Tensor);
    /// `out = (x · wᵀ + bias) · scale`, bias and scale per output and optional.
    fn linear(
        &self,
        x: &Self::Tensor,
        w: &Self::Weight,
        epilogue: Epilogue<'_, Self>,
        out: &mut Self::Tensor,
    );
    /// `out = x / rms(x) · weight` over all columns.
    fn rms_norm(&self, x: &Self::Tensor, weight: &Self::Buffer<f32>, eps: f32, out: &mut Self::Tensor);
    /// `residual += delta · scale`, then `out = rms_norm(residual)`.
    fn add_rms_norm(&self, delta: &Self::Tensor, norm: ResidualNorm<'_, Self>);
    /// `acc += x · scale`, times `sigmoid(gate)` per row when a one-column gate is given.
    fn add(&self, acc: &mut Self::Tensor, x: &Self::Tensor, scale: f32, gate: Option<&Self::Tensor>);
    /// Feed-forward activation. Gated: `x` is `[T, 2n]`, gate columns first, `out[T, n] = f(gate) · up`.
    fn activate(&self, x: &Self::Tensor, activation: Activation, out: &mut Self::Tensor);
    /// `out[t] = cos(p·f) | sin(p·f)`, times `factor`, for position `p` of token `t` and every frequency `f`.
    fn rope_angles(
        &self,
        step: &StepTables<Self>,
        frequencies: &Self::Buffer<f32>,
        factor: f32,
        out: &mut Self::Tensor,
    );
    /// Normalises and rotates queries (in place) and keys, and stores keys and values in the cache blocks.
    fn store_kv(&self, args: KeyValueStore<'_, Self>);
    /// Causal attention of each token over its request's blocks.
    fn attention(&self, args: Attention<'_, Self>);
    /// Depthwise causal convolution over time with SiLU; the inputs before the step come from the cache, and those
    /// that later steps need are left there.
    fn causal_conv(&self, args: CausalConv<'_, Self>);
    /// The gated delta rule.
    fn delta_rule(&self, args: DeltaRule<'_, Self>);
    /// The Mamba2 state space recurrence.
    fn state_space(&self, args: StateSpace<'_, Self>);
    /// RMS norm by groups of columns, combined with a SiLU gate.
    fn gated_norm(&self, args: GatedNorm<'_, Self>);
    /// Chooses experts for each row.
    fn route(&self, args: Router<'_, Self>);
    /// Runs the chosen experts of each row and adds them up, weighted, best first.
    fn run_experts(&self, args: Experts<'_, Self>);
    /// `out[s] = x[index[s]]`.
    fn gather(&self, x: &Self::Tensor, index: &Self::Buffer<i32>, out: &mut Self::Tensor);
    /// The rows of `x` that rows of logits come from: `out[s] = x[token of s]`.
    fn gather_sampled(&self, x: &Self::Tensor, step: &StepTables<Self>, out: &mut Self::Tensor);
    /// Copies a tensor.
    fn copy(&self, x: &Self::Tensor, out: &mut Self::Tensor);
    /// Chooses a token per row of `logits`, `[S, vocabulary]`.
    fn sample(&self, logits: &Self::Tensor, sampling: Sampling<'_, Self>);

    // Wider operations: what is enqueued side by side in every layer, as one call, for devices on which a boundary
    // between operations costs. Each has a body of the operations above, and a device that has a body of its own gives
    // the same results. Tensors named as scratch hold nothing afterwards.

    /// Packs the matrices of a gated feed-forward layer, gate and up stacked, for
    /// [`linear_activate`](Self::linear_activate): a device may interleave their rows.
    fn gated_weight(
        &self,
        parts: &[WeightPart<'_>],
        store_as: Option<DType>,
    ) -> Result<Self::Weight, DeviceError> {
        self.weight(parts, store_as)
    }
    /// A product and its activation; the product's own output is scratch. A gated one has a weight made by
    /// [`gated_weight`](Self::gated_weight).
    fn linear_activate(&self, product: Product<'_, Self>, activation: Activation, out: &mut Self::Tensor) {
        self.linear(product.x, product.w, product.epilogue, product.out);
        self.activate(product.out, activation, out);
    }
    /// A product that is added to the residual stream, and the norm behind it. The product's output is the sum's
    /// `delta`, and scratch: a device that has the product in several parts adds them up here.
    fn linear_add_norm(&self, product: Product<'_, Self>, norm: ResidualNorm<'_, Self>) {
        self.linear(product.x, product.w, product.epilogue, product.out);
        self.add_rms_norm(product.out, norm);
    }
    /// A mixture of experts that is added to the residual stream, and the norm behind it, whose result may take the place
    /// of the mixture's input.
    fn mix_experts(&self, mixture: Mixture<'_, Self>, norm: ResidualNorm<'_, Self>) {
        let Product { x, w, epilogue, out } = mixture.router;
        self.linear(x, w, epilogue, out);
        self.route(Router {
            logits: out,
            scores: mixture.scores,
            shared: mixture.shared,
            out: mixture.routing,
        });
        self.run_experts(Experts {
            x,
            routing: mixture.routing,
            experts: mixture.experts,
            activation: mixture.activation,
            out: mixture.out,
        });
        self.add_rms_norm(mixture.out, norm);
    }
    /// The convolution, the delta rule over its output, and the gated norm over that one's; both are scratch.
    fn mix_delta(&self, conv: CausalConv<'_, Self>, rule: DeltaRule<'_, Self>, norm: GatedNorm<'_, Self>) {
        self.causal_conv(conv);
        self.delta_rule(rule);
        self.gated_norm(norm);
    }
    /// The product that the convolution's input, the rates and the gate are columns of, which are scratch too, and
    /// [`mix_delta`](Self::mix_delta) over them: a device that has the product in several parts adds them up there.
    fn linear_mix_delta(
        &self,
        product: Product<'_, Self>,
        conv: CausalConv<'_, Self>,
        rule: DeltaRule<'_, Self>,
        norm: GatedNorm<'_, Self>,
    ) {
        self.linear(product.x, product.w, product.epilogue, product.out);
        self.mix_delta(conv, rule, norm);
    }
    /// The convolution, the state space recurrence over its output, and the gated norm over that one's; both are
    /// scratch.
    fn mix_state_space(
        &self,
        conv: CausalConv<'_, Self>,
        recurrence: StateSpace<'_, Self>,
        norm: GatedNorm<'_, Self>,
    ) {
        self.causal_conv(conv);
        self.state_space(recurrence);
        self.gated_norm(norm);
    }
    /// The output matrix over the states of sampled tokens, and the choice of a token from its logits, which are
    /// scratch: a device need not write those of rows that are chosen from as they come.
    fn sample_states(
        &self,
        states: &Self::Tensor,
        product: SampledProduct<'_, Self>,
        sampling: Sampling<'_, Self>,
    ) {
        self.gather_sampled(states, sampling.step, product.states);
        self.linear(product.states, product.w, product.epilogue, product.logits);
        self.sample(product.logits, sampling);
    }

    // The frame of a step.

    /// Takes in the plan and turns it and the slots into the step's tables.
    fn prepare(&self, args: Prepare<'_, Self>);
    /// Counts accepted drafts and advances the slots.
    fn accept(&self, args: Accept<'_, Self>);
    /// Adds up states of texts.
    fn pool_states(&self, args: PoolStates<'_, Self>);
    /// Drafts from the slots' own texts.
    fn propose_ngram(&self, args: ProposeNgram<'_, Self>);
    /// Lays out a pass of a neural drafter.
    fn prepare_drafts(&self, args: PrepareDrafts<'_, Self>);
    /// Keeps the state of each of the step's tokens that is the last of its block with that block.
    fn keep_block_ends(&self, args: KeepBlockEnds<'_, Self>);
    /// The states that a head starts from.
    fn gather_states(&self, args: GatherStates<'_, Self>);
    /// Gives the tokens that a pass chose to the slots as drafts.
    fn take_drafts(&self, args: TakeDrafts<'_, Self>);
    /// Zeroes the keys and values of tokens that a drafter does not see.
    fn clear_kv(&self, args: ClearKv<'_, Self>);
    /// `out[s] = -∞`, but `out[s][columns[i]] = x[s][i]`.
    fn spread(&self, x: &Self::Tensor, columns: &Self::Buffer<i32>, out: &mut Self::Tensor);
    /// Writes the device clock to the record: drafting begins. [`prepare`](Self::prepare) and
    /// [`publish`](Self::publish) do the same for the step's begin and end.
    fn mark_drafting(&self, record: &StepRecord<Self>);
    /// Hands the record to the host; the last operation of a step.
    fn publish(&self, args: Publish<'_, Self>);
}
