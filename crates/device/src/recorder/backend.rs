//! The backend: storage without contents, and a line per operation.

use super::Recorder;
use super::handles::{
    Held, Optional, RecorderArrival, RecorderBuffer, RecorderCache, RecorderRead, RecorderTensor,
    RecorderWeight, empty_record,
};
use crate::abi::Plan;
use crate::args::{
    Activation, Attention, CausalConv, DeltaRule, Epilogue, Experts, GatedNorm, KeyValueStore, Mixture,
    Product, ResidualNorm, Router, SampledProduct, Sampling, StateSpace,
};
use crate::{
    Accept, Backend, ClearKv, DeviceError, DeviceInfo, Element, GatherStates, KeepBlockEnds, KvShape,
    PoolStates, Prepare, PrepareDrafts, ProposeNgram, Publish, RingPlace, Rows, StateShape, StepRecord,
    StepTables, TakeDrafts, WeightPart,
};
use paceline_types::DType;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

impl Backend for Recorder {
    type Buffer<T: Element> = RecorderBuffer;
    type Tensor = RecorderTensor;
    type Weight = RecorderWeight;
    type Experts = RecorderWeight;
    type KvCache = RecorderCache;
    type StateCache = RecorderCache;
    type Program = Vec<String>;
    type Read<T: Element> = RecorderRead;
    type Ring = RecorderBuffer;
    type Arrival = RecorderArrival;

    fn info(&self) -> DeviceInfo {
        (*self.info).clone()
    }

    /// Bytes that buffers and tensors would take.
    fn allocated(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn epoch(&self) -> Instant {
        // Nothing runs, so there are no times to compare with.
        Instant::now()
    }

    fn host_waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    fn buffer<T: Element>(&self, len: usize) -> Result<RecorderBuffer, DeviceError> {
        Ok(RecorderBuffer {
            id: self.id(),
            len,
            _held: Held::new((len * size_of::<T>()) as u64, &self.bytes),
        })
    }

    fn tensor(&self, rows: &Rows<Self>, columns: usize) -> Result<RecorderTensor, DeviceError> {
        let row = columns as u64 * self.info.elements.activation_bytes();
        let row = row.next_multiple_of(self.info.alignment);
        Ok(RecorderTensor {
            id: self.id(),
            rows: rows.bucket,
            columns: 0..columns,
            held: Held::new(rows.bucket as u64 * row, &self.bytes),
        })
    }

    fn reshape(&self, tensor: &RecorderTensor, rows: &Rows<Self>, columns: usize) -> RecorderTensor {
        RecorderTensor {
            id: tensor.id,
            rows: rows.bucket,
            columns: 0..columns,
            held: Arc::clone(&tensor.held),
        }
    }

    fn columns(&self, tensor: &RecorderTensor, range: Range<usize>) -> RecorderTensor {
        let start = tensor.columns.start;
        RecorderTensor {
            columns: start + range.start..start + range.end,
            ..tensor.clone()
        }
    }

    fn weight(
        &self,
        parts: &[WeightPart<'_>],
        _store_as: Option<DType>,
    ) -> Result<RecorderWeight, DeviceError> {
        let outputs = parts.iter().map(WeightPart::rows).sum();
        let inputs = parts.first().map_or(0, |part| part.columns);
        Ok(RecorderWeight {
            id: self.id(),
            outputs,
            inputs,
            gated: false,
        })
    }

    fn gated_weight(
        &self,
        parts: &[WeightPart<'_>],
        store_as: Option<DType>,
    ) -> Result<RecorderWeight, DeviceError> {
        let weight = self.weight(parts, store_as)?;
        Ok(RecorderWeight {
            gated: true,
            ..weight
        })
    }

    fn first_outputs(&self, weight: &RecorderWeight, outputs: usize) -> RecorderWeight {
        RecorderWeight {
            outputs,
            ..weight.clone()
        }
    }

    fn experts(
        &self,
        gate_up: Vec<RecorderWeight>,
        down: Vec<RecorderWeight>,
    ) -> Result<RecorderWeight, DeviceError> {
        Ok(RecorderWeight {
            id: self.id(),
            outputs: gate_up.len(),
            inputs: down.len(),
            gated: false,
        })
    }

    fn kv_cache(&self, _shape: KvShape) -> Result<RecorderCache, DeviceError> {
        Ok(RecorderCache { id: self.id() })
    }

    fn state_cache(&self, _shape: StateShape) -> Result<RecorderCache, DeviceError> {
        Ok(RecorderCache { id: self.id() })
    }

    fn ring(&self, places: usize, words: usize) -> Result<RecorderBuffer, DeviceError> {
        self.buffer::<i32>(places * words)
    }

    fn post(&self, _ring: &RecorderBuffer, _place: &RingPlace, words: &[i32]) {
        let record = Plan::parse(words).map(|plan| empty_record(&plan));
        *self.posted.lock().unwrap_or_else(PoisonError::into_inner) = record.unwrap_or_default();
    }

    /// The record of the plan posted last, in which nothing was chosen.
    fn arrival(&self, _ring: &RecorderBuffer, _place: &RingPlace) -> RecorderArrival {
        RecorderArrival {
            words: std::mem::take(&mut *self.posted.lock().unwrap_or_else(PoisonError::into_inner)),
            waits: Arc::clone(&self.waits),
        }
    }

    fn write_at<T: Element>(&self, _buffer: &RecorderBuffer, _offset: usize, _data: &[T]) {}

    fn read<T: Element>(&self, _buffer: &RecorderBuffer, len: usize) -> RecorderRead {
        self.reads(len)
    }

    fn read_tensor(&self, tensor: &RecorderTensor) -> RecorderRead {
        self.reads(tensor.rows * tensor.columns.len())
    }

    fn begin_capture(&self) {
        self.take_log();
    }

    fn end_capture(&self) -> Vec<String> {
        self.take_log()
    }

    fn launch(&self, program: &Vec<String>) {
        for line in program {
            self.record(format_args!("{line}"));
        }
    }

    fn embed(&self, step: &StepTables<Self>, table: &RecorderWeight, scale: f32, out: &mut RecorderTensor) {
        let ids = &step.token_rows;
        self.record(format_args!("embed {ids} {table} {scale} -> {out}"));
    }

    fn linear(
        &self,
        x: &RecorderTensor,
        w: &RecorderWeight,
        e: Epilogue<'_, Self>,
        out: &mut RecorderTensor,
    ) {
        let (bias, scale) = (Optional(e.bias), Optional(e.scale));
        self.record(format_args!("linear {x} {w} {bias} {scale} -> {out}"));
    }

    fn rms_norm(&self, x: &RecorderTensor, weight: &RecorderBuffer, eps: f32, out: &mut RecorderTensor) {
        self.record(format_args!("rms_norm {x} {weight} {eps} -> {out}"));
    }

    fn add_rms_norm(&self, delta: &RecorderTensor, a: ResidualNorm<'_, Self>) {
        let (residual, scale, weight, eps, out) = (a.residual, a.scale, a.weight, a.eps, a.out);
        self.record(format_args!(
            "add_rms_norm {residual} {delta} {scale} {weight} {eps} -> {out}"
        ));
    }

    fn add(&self, acc: &mut RecorderTensor, x: &RecorderTensor, scale: f32, gate: Option<&RecorderTensor>) {
        self.record(format_args!("add {x} {scale} {} -> {acc}", Optional(gate)));
    }

    fn activate(&self, x: &RecorderTensor, activation: Activation, out: &mut RecorderTensor) {
        self.record(format_args!("activate {x} {activation:?} -> {out}"));
    }

    fn rope_angles(
        &self,
        step: &StepTables<Self>,
        frequencies: &RecorderBuffer,
        factor: f32,
        out: &mut RecorderTensor,
    ) {
        let positions = &step.token_rows;
        self.record(format_args!(
            "rope_angles {positions} {frequencies} {factor} -> {out}"
        ));
    }

    fn store_kv(&self, a: KeyValueStore<'_, Self>) {
        let (q, k, v, cache) = (a.q, a.k, a.v, a.cache);
        let (norms, angles) = (Optional(a.norms.as_ref()), Optional(a.angles));
        self.record(format_args!(
            "store_kv {q} {k} {v} {norms} {angles} -> {q} {cache}"
        ));
    }

    fn attention(&self, a: Attention<'_, Self>) {
        let (q, gate, cache, scale, out) = (a.q, Optional(a.gate), a.cache, a.scale, a.out);
        self.record(format_args!("attention {q} {gate} {cache} {scale} -> {out}"));
    }

    fn causal_conv(&self, a: CausalConv<'_, Self>) {
        let (x, weight, bias, cache, out) = (a.x, a.weight, Optional(a.bias), a.cache, a.out);
        self.record(format_args!("causal_conv {x} {weight} {bias} {cache} -> {out}"));
    }

    fn delta_rule(&self, a: DeltaRule<'_, Self>) {
        let (q, k, v, b, cache, out) = (a.q, a.k, a.v, a.b, a.cache, a.out);
        let (a, decay, dt_bias, map) = (a.a, a.decay, a.dt_bias, a.head_map);
        self.record(format_args!(
            "delta_rule {q} {k} {v} {a} {b} {decay} {dt_bias} {map:?} {cache} -> {out}"
        ));
    }

    fn state_space(&self, a: StateSpace<'_, Self>) {
        let (x, b, c, dt, cache, out) = (a.x, a.b, a.c, a.dt, a.cache, a.out);
        let (decay, skip, dt_bias, limits) = (a.decay, a.skip, a.dt_bias, a.dt_limits);
        self.record(format_args!(
            "state_space {x} {b} {c} {dt} {decay} {skip} {dt_bias} {limits:?} {cache} -> {out}"
        ));
    }

    fn gated_norm(&self, a: GatedNorm<'_, Self>) {
        let (x, gate, weight, out) = (a.x, a.gate, Optional(a.weight), a.out);
        self.record(format_args!(
            "gated_norm {x} {gate} {weight} {} {:?} {} -> {out}",
            a.group, a.order, a.eps
        ));
    }

    fn route(&self, a: Router<'_, Self>) {
        let (logits, scores, chosen) = (a.logits, a.scores, a.out.chosen);
        let (ids, weights) = (&a.out.ids, &a.out.weights);
        self.record(format_args!(
            "route {logits} {scores} {chosen}{} -> {ids} {weights}",
            if a.shared { " shared" } else { "" }
        ));
    }

    fn run_experts(&self, a: Experts<'_, Self>) {
        let (ids, weights) = (&a.routing.ids, &a.routing.weights);
        self.record(format_args!(
            "experts {} {ids} {weights} {} {:?} -> {}",
            a.x, a.experts, a.activation, a.out
        ));
    }

    fn gather(&self, x: &RecorderTensor, index: &RecorderBuffer, out: &mut RecorderTensor) {
        self.record(format_args!("gather {x} {index} -> {out}"));
    }

    fn gather_sampled(&self, x: &RecorderTensor, step: &StepTables<Self>, out: &mut RecorderTensor) {
        self.record(format_args!("gather_sampled {x} {} -> {out}", step.logits_rows));
    }

    fn copy(&self, x: &RecorderTensor, out: &mut RecorderTensor) {
        self.record(format_args!("copy {x} -> {out}"));
    }

    fn sample(&self, logits: &RecorderTensor, a: Sampling<'_, Self>) {
        let slots = Optional(a.options.as_ref().map(|options| &options.slots.state));
        let plan = Optional(a.options.as_ref().map(|options| options.plan));
        self.record(format_args!(
            "sample {logits} {} {slots} {plan} {:?} -> {} {}",
            a.step.logits_rows, a.text, a.tokens, a.logprobs
        ));
    }

    // A wide operation is a line with its name, then its parts.

    fn linear_activate(&self, product: Product<'_, Self>, activation: Activation, out: &mut RecorderTensor) {
        self.record(format_args!("linear_activate:"));
        self.linear(product.x, product.w, product.epilogue, product.out);
        self.activate(product.out, activation, out);
    }

    fn linear_add_norm(&self, product: Product<'_, Self>, norm: ResidualNorm<'_, Self>) {
        self.record(format_args!("linear_add_norm:"));
        self.linear(product.x, product.w, product.epilogue, product.out);
        self.add_rms_norm(product.out, norm);
    }

    fn mix_experts(&self, mixture: Mixture<'_, Self>, norm: ResidualNorm<'_, Self>) {
        self.record(format_args!("mix_experts:"));
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

    fn mix_delta(&self, conv: CausalConv<'_, Self>, rule: DeltaRule<'_, Self>, norm: GatedNorm<'_, Self>) {
        self.record(format_args!("mix_delta:"));
        self.causal_conv(conv);
        self.delta_rule(rule);
        self.gated_norm(norm);
    }

    fn linear_mix_delta(
        &self,
        product: Product<'_, Self>,
        conv: CausalConv<'_, Self>,
        rule: DeltaRule<'_, Self>,
        norm: GatedNorm<'_, Self>,
    ) {
        self.record(format_args!("linear_mix_delta:"));
        self.linear(product.x, product.w, product.epilogue, product.out);
        self.mix_delta(conv, rule, norm);
    }

    fn mix_state_space(
        &self,
        conv: CausalConv<'_, Self>,
        recurrence: StateSpace<'_, Self>,
        norm: GatedNorm<'_, Self>,
    ) {
        self.record(format_args!("mix_state_space:"));
        self.causal_conv(conv);
        self.state_space(recurrence);
        self.gated_norm(norm);
    }

    fn sample_states(
        &self,
        states: &RecorderTensor,
        product: SampledProduct<'_, Self>,
        sampling: Sampling<'_, Self>,
    ) {
        self.record(format_args!("sample_states:"));
        self.gather_sampled(states, sampling.step, product.states);
        self.linear(product.states, product.w, product.epilogue, product.logits);
        self.sample(product.logits, sampling);
    }

    fn prepare(&self, a: Prepare<'_, Self>) {
        let step = a.step;
        let shape = [step.tokens.bucket, step.requests.bucket, step.samples.bucket];
        self.record(format_args!(
            "prepare {} {} {} {} -> {shape:?} {} {}",
            a.rings.plans, a.rings.begun, a.slots.state, a.slots.history, a.plan, a.record.header
        ));
    }

    fn accept(&self, a: Accept<'_, Self>) {
        self.record(format_args!(
            "accept {} {} {} -> {}",
            a.plan, a.slots.state, a.tokens, a.record.rows
        ));
    }

    fn propose_ngram(&self, a: ProposeNgram<'_, Self>) {
        self.record(format_args!(
            "propose_ngram {} {} {}..={} chain {} -> {}",
            a.plan, a.index.entries, a.index.min, a.index.max, a.chain_min, a.slots.state
        ));
    }

    fn prepare_drafts(&self, a: PrepareDrafts<'_, Self>) {
        let draft = a.draft;
        let shape = [draft.tokens.bucket, draft.requests.bucket, draft.samples.bucket];
        self.record(format_args!(
            "prepare_drafts {:?} {} {} {} {} -> {} {shape:?} {}",
            a.pass,
            a.plan,
            a.slots.state,
            a.record.rows,
            Optional(a.before.map(|before| &before.token_rows)),
            draft.token_rows,
            a.source
        ));
    }

    fn pool_states(&self, a: PoolStates<'_, Self>) {
        self.record(format_args!(
            "pool_states {} {} -> {} {}",
            a.plan, a.states, a.table.sums, a.table.done
        ));
    }

    fn keep_block_ends(&self, a: KeepBlockEnds<'_, Self>) {
        self.record(format_args!(
            "keep_block_ends {} {} -> {}",
            a.states, a.step.token_rows, a.kept
        ));
    }

    fn gather_states(&self, a: GatherStates<'_, Self>) {
        self.record(format_args!(
            "gather_states {} {} {} -> {}",
            a.states, a.kept, a.source, a.out
        ));
    }

    fn take_drafts(&self, a: TakeDrafts<'_, Self>) {
        self.record(format_args!(
            "take_drafts {} {} {} -> {}",
            a.place, a.draft.logits_rows, a.tokens, a.slots.state
        ));
    }

    fn clear_kv(&self, a: ClearKv<'_, Self>) {
        self.record(format_args!(
            "clear_kv {} {} -> {}",
            a.plan, a.step.request_rows, a.cache
        ));
    }

    fn spread(&self, x: &RecorderTensor, columns: &RecorderBuffer, out: &mut RecorderTensor) {
        self.record(format_args!("spread {x} {columns} -> {out}"));
    }

    fn mark_drafting(&self, record: &StepRecord<Self>) {
        self.record(format_args!("mark_drafting -> {}", record.header));
    }

    fn publish(&self, a: Publish<'_, Self>) {
        self.record(format_args!(
            "publish {} {} {} {} {} -> {}",
            a.plan, a.slots.state, a.record.rows, a.logprobs, a.pooled.done, a.rings.records
        ));
    }
}
