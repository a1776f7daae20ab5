//! The backend: storage, the stream, and the way from each operation to its checks.

use super::Checked;
use super::handles::{
    CheckedArrival, CheckedBuffer, CheckedProgram, CheckedRing, CheckedTensor, CheckedWeight,
};
use super::watch::Place;
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
use std::time::Instant;

impl<B: Backend> Backend for Checked<B> {
    type Buffer<T: Element> = CheckedBuffer<B, T>;
    type Tensor = CheckedTensor<B>;
    type Weight = CheckedWeight<B>;
    type Experts = B::Experts;
    type KvCache = B::KvCache;
    type StateCache = B::StateCache;
    type Program = CheckedProgram<B>;
    type Read<T: Element> = B::Read<T>;
    type Ring = CheckedRing<B>;
    type Arrival = CheckedArrival<B>;

    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn epoch(&self) -> Instant {
        self.inner.epoch()
    }

    fn host_waits(&self) -> u64 {
        self.inner.host_waits()
    }

    fn allocated(&self) -> u64 {
        self.inner.allocated()
    }

    fn buffer<T: Element>(&self, len: usize) -> Result<CheckedBuffer<B, T>, DeviceError> {
        let name = self.shared.lock().allocate("a buffer");
        Ok(CheckedBuffer {
            inner: self.inner.buffer(len)?,
            name,
            len,
        })
    }

    fn tensor(&self, rows: &Rows<Self>, columns: usize) -> Result<CheckedTensor<B>, DeviceError> {
        let mut watch = self.shared.lock();
        let place = Place {
            storage: watch.allocate("a tensor"),
            tensor: watch.name(),
            rows: rows.live.name,
            columns: 0..columns,
        };
        drop(watch);
        Ok(CheckedTensor {
            inner: self.inner.tensor(&Self::rows(rows), columns)?,
            place,
            bucket: rows.bucket,
            room: (rows.bucket, columns),
        })
    }

    /// Another tensor in the same memory: what the first one held is not its contents.
    fn reshape(&self, tensor: &CheckedTensor<B>, rows: &Rows<Self>, columns: usize) -> CheckedTensor<B> {
        assert!(
            rows.bucket <= tensor.room.0 && columns <= tensor.room.1,
            "contract: {} rows of {columns} columns in memory for {:?}",
            rows.bucket,
            tensor.room
        );
        CheckedTensor {
            inner: self.inner.reshape(&tensor.inner, &Self::rows(rows), columns),
            place: Place {
                storage: tensor.place.storage,
                tensor: self.shared.lock().name(),
                rows: rows.live.name,
                columns: 0..columns,
            },
            bucket: rows.bucket,
            room: tensor.room,
        }
    }

    fn columns(&self, tensor: &CheckedTensor<B>, range: Range<usize>) -> CheckedTensor<B> {
        let Range { start, end } = tensor.place.columns;
        assert!(
            range.start <= range.end && start + range.end <= end,
            "contract: columns {range:?} of {}",
            end - start
        );
        let mut part = tensor.clone();
        part.place.columns = start + range.start..start + range.end;
        part.inner = self.inner.columns(&tensor.inner, range);
        part
    }

    fn weight(
        &self,
        parts: &[WeightPart<'_>],
        store_as: Option<DType>,
    ) -> Result<CheckedWeight<B>, DeviceError> {
        self.shared.lock().allocate("a weight");
        Ok(CheckedWeight {
            inner: self.inner.weight(parts, store_as)?,
            gated: false,
        })
    }

    fn gated_weight(
        &self,
        parts: &[WeightPart<'_>],
        store_as: Option<DType>,
    ) -> Result<CheckedWeight<B>, DeviceError> {
        self.shared.lock().allocate("a weight");
        Ok(CheckedWeight {
            inner: self.inner.gated_weight(parts, store_as)?,
            gated: true,
        })
    }

    fn first_outputs(&self, weight: &CheckedWeight<B>, outputs: usize) -> CheckedWeight<B> {
        Self::stored_rows("first_outputs", weight);
        CheckedWeight {
            inner: self.inner.first_outputs(&weight.inner, outputs),
            gated: false,
        }
    }

    fn experts(
        &self,
        gate_up: Vec<CheckedWeight<B>>,
        down: Vec<CheckedWeight<B>>,
    ) -> Result<B::Experts, DeviceError> {
        for w in &down {
            Self::stored_rows("experts", w);
        }
        let inner = |weights: Vec<CheckedWeight<B>>| weights.into_iter().map(|w| w.inner).collect();
        self.inner.experts(inner(gate_up), inner(down))
    }

    fn kv_cache(&self, shape: KvShape) -> Result<B::KvCache, DeviceError> {
        self.shared.lock().allocate("a cache of keys and values");
        self.inner.kv_cache(shape)
    }

    fn state_cache(&self, shape: StateShape) -> Result<B::StateCache, DeviceError> {
        self.shared.lock().allocate("a cache of states");
        self.inner.state_cache(shape)
    }

    fn hand_back(&self, kv: &[B::KvCache], states: &[B::StateCache]) {
        self.inner.hand_back(kv, states);
    }

    fn ring(&self, places: usize, words: usize) -> Result<CheckedRing<B>, DeviceError> {
        self.shared.lock().allocate("a ring");
        Ok(CheckedRing {
            inner: self.inner.ring(places, words)?,
            words,
        })
    }

    fn write_at<T: Element>(&self, buffer: &CheckedBuffer<B, T>, offset: usize, data: &[T]) {
        self.shared.lock().operation("write");
        assert!(
            offset + data.len() <= buffer.len,
            "contract: {} elements at {offset} of a buffer of {}",
            data.len(),
            buffer.len
        );
        self.inner.write_at(&buffer.inner, offset, data);
    }

    fn read<T: Element>(&self, buffer: &CheckedBuffer<B, T>, len: usize) -> B::Read<T> {
        self.shared.lock().operation("read");
        assert!(
            len <= buffer.len,
            "contract: {len} elements of a buffer of {}",
            buffer.len
        );
        self.inner.read(&buffer.inner, len)
    }

    fn read_tensor(&self, tensor: &CheckedTensor<B>) -> B::Read<f32> {
        self.shared.lock().operation("read_tensor");
        self.inner.read_tensor(&tensor.inner)
    }

    fn begin_capture(&self) {
        self.shared.lock().begin_capture();
        self.inner.begin_capture();
    }

    fn end_capture(&self) -> CheckedProgram<B> {
        CheckedProgram {
            inner: self.inner.end_capture(),
            name: self.shared.lock().end_capture(),
        }
    }

    fn launch(&self, program: &CheckedProgram<B>) {
        let mut watch = self.shared.lock();
        watch.launch(program.name);
        if !watch.is_lost() {
            drop(watch);
            self.inner.launch(&program.inner);
        }
    }

    fn post(&self, ring: &CheckedRing<B>, place: &RingPlace, words: &[i32]) {
        let mut watch = self.shared.lock();
        watch.post(place.index(), (words.len(), ring.words));
        drop(watch);
        self.inner.post(&ring.inner, place, words);
    }

    /// Plan and record of a step have the same place, and it is free when the record was read.
    fn arrival(&self, ring: &CheckedRing<B>, place: &RingPlace) -> CheckedArrival<B> {
        let lost = self.shared.lock().is_lost();
        CheckedArrival {
            inner: (!lost).then(|| self.inner.arrival(&ring.inner, place)),
            shared: self.shared.clone(),
            place: place.index(),
        }
    }

    fn embed(
        &self,
        step: &StepTables<Self>,
        table: &CheckedWeight<B>,
        scale: f32,
        out: &mut CheckedTensor<B>,
    ) {
        Self::stored_rows("embed", table);
        self.watch("embed", &[], &[out]);
        self.inner
            .embed(&Self::step(step), &table.inner, scale, &mut out.inner);
    }

    fn linear(
        &self,
        x: &CheckedTensor<B>,
        w: &CheckedWeight<B>,
        epilogue: Epilogue<'_, Self>,
        out: &mut CheckedTensor<B>,
    ) {
        Self::stored_rows("linear", w);
        self.watch("linear", &[("x", x)], &[out]);
        self.inner
            .linear(&x.inner, &w.inner, Self::epilogue(&epilogue), &mut out.inner);
    }

    fn rms_norm(
        &self,
        x: &CheckedTensor<B>,
        weight: &CheckedBuffer<B, f32>,
        eps: f32,
        out: &mut CheckedTensor<B>,
    ) {
        self.watch("rms_norm", &[("x", x)], &[out]);
        self.inner.rms_norm(&x.inner, &weight.inner, eps, &mut out.inner);
    }

    fn add_rms_norm(&self, delta: &CheckedTensor<B>, norm: ResidualNorm<'_, Self>) {
        self.checked_add_rms_norm(delta, norm);
    }

    fn add(
        &self,
        acc: &mut CheckedTensor<B>,
        x: &CheckedTensor<B>,
        scale: f32,
        gate: Option<&CheckedTensor<B>>,
    ) {
        let mut read = vec![("acc", &*acc), ("x", x)];
        read.extend(gate.map(|gate| ("gate", gate)));
        self.watch("add", &read, &[acc]);
        self.inner
            .add(&mut acc.inner, &x.inner, scale, gate.map(|gate| &gate.inner));
    }

    fn activate(&self, x: &CheckedTensor<B>, activation: Activation, out: &mut CheckedTensor<B>) {
        self.watch("activate", &[("x", x)], &[out]);
        self.inner.activate(&x.inner, activation, &mut out.inner);
    }

    fn rope_angles(
        &self,
        step: &StepTables<Self>,
        frequencies: &CheckedBuffer<B, f32>,
        factor: f32,
        out: &mut CheckedTensor<B>,
    ) {
        self.watch("rope_angles", &[], &[out]);
        self.inner
            .rope_angles(&Self::step(step), &frequencies.inner, factor, &mut out.inner);
    }

    fn store_kv(&self, args: KeyValueStore<'_, Self>) {
        self.checked_store_kv(args);
    }

    fn attention(&self, args: Attention<'_, Self>) {
        self.checked_attention(args);
    }

    fn causal_conv(&self, args: CausalConv<'_, Self>) {
        self.checked_causal_conv(args);
    }

    fn delta_rule(&self, args: DeltaRule<'_, Self>) {
        self.checked_delta_rule(args);
    }

    fn state_space(&self, args: StateSpace<'_, Self>) {
        self.checked_state_space(args);
    }

    fn gated_norm(&self, args: GatedNorm<'_, Self>) {
        self.checked_gated_norm(args);
    }

    fn route(&self, args: Router<'_, Self>) {
        self.checked_route(args);
    }

    fn run_experts(&self, args: Experts<'_, Self>) {
        self.checked_run_experts(args);
    }

    fn gather(&self, x: &CheckedTensor<B>, index: &CheckedBuffer<B, i32>, out: &mut CheckedTensor<B>) {
        self.watch("gather", &[("x", x)], &[out]);
        Self::room("gather", "index", index, out.bucket);
        self.inner.gather(&x.inner, &index.inner, &mut out.inner);
    }

    fn gather_sampled(&self, x: &CheckedTensor<B>, step: &StepTables<Self>, out: &mut CheckedTensor<B>) {
        self.watch("gather_sampled", &[("x", x)], &[out]);
        self.inner
            .gather_sampled(&x.inner, &Self::step(step), &mut out.inner);
    }

    fn copy(&self, x: &CheckedTensor<B>, out: &mut CheckedTensor<B>) {
        self.watch("copy", &[("x", x)], &[out]);
        self.inner.copy(&x.inner, &mut out.inner);
    }

    fn sample(&self, logits: &CheckedTensor<B>, sampling: Sampling<'_, Self>) {
        self.checked_sample(logits, &sampling);
    }

    fn linear_activate(
        &self,
        product: Product<'_, Self>,
        activation: Activation,
        out: &mut CheckedTensor<B>,
    ) {
        self.checked_linear_activate(product, activation, out);
    }

    fn linear_add_norm(&self, product: Product<'_, Self>, norm: ResidualNorm<'_, Self>) {
        self.checked_linear_add_norm(product, norm);
    }

    fn mix_experts(&self, mixture: Mixture<'_, Self>, norm: ResidualNorm<'_, Self>) {
        self.checked_mix_experts(mixture, norm);
    }

    fn linear_mix_delta(
        &self,
        product: Product<'_, Self>,
        conv: CausalConv<'_, Self>,
        rule: DeltaRule<'_, Self>,
        norm: GatedNorm<'_, Self>,
    ) {
        self.checked_linear_mix_delta(product, conv, rule, norm);
    }

    fn mix_delta(&self, conv: CausalConv<'_, Self>, rule: DeltaRule<'_, Self>, norm: GatedNorm<'_, Self>) {
        self.checked_mix_delta(conv, rule, norm);
    }

    fn mix_state_space(
        &self,
        conv: CausalConv<'_, Self>,
        recurrence: StateSpace<'_, Self>,
        norm: GatedNorm<'_, Self>,
    ) {
        self.checked_mix_state_space(conv, recurrence, norm);
    }

    fn sample_states(
        &self,
        states: &CheckedTensor<B>,
        product: SampledProduct<'_, Self>,
        sampling: Sampling<'_, Self>,
    ) {
        self.checked_sample_states(states, product, &sampling);
    }

    fn prepare(&self, args: Prepare<'_, Self>) {
        self.checked_prepare(&args);
    }

    fn accept(&self, args: Accept<'_, Self>) {
        self.checked_accept(&args);
    }

    fn pool_states(&self, args: PoolStates<'_, Self>) {
        self.checked_pool_states(&args);
    }

    fn propose_ngram(&self, args: ProposeNgram<'_, Self>) {
        self.checked_propose_ngram(&args);
    }

    fn prepare_drafts(&self, args: PrepareDrafts<'_, Self>) {
        self.checked_prepare_drafts(&args);
    }

    fn keep_block_ends(&self, args: KeepBlockEnds<'_, Self>) {
        self.checked_keep_block_ends(&args);
    }

    fn gather_states(&self, args: GatherStates<'_, Self>) {
        self.checked_gather_states(args);
    }

    fn take_drafts(&self, args: TakeDrafts<'_, Self>) {
        self.checked_take_drafts(&args);
    }

    fn clear_kv(&self, args: ClearKv<'_, Self>) {
        self.checked_clear_kv(&args);
    }

    fn spread(&self, x: &CheckedTensor<B>, columns: &CheckedBuffer<B, i32>, out: &mut CheckedTensor<B>) {
        self.watch("spread", &[("x", x)], &[out]);
        self.inner.spread(&x.inner, &columns.inner, &mut out.inner);
    }

    fn mark_drafting(&self, record: &StepRecord<Self>) {
        self.shared.lock().operation("mark_drafting");
        self.inner.mark_drafting(&Self::record(record));
    }

    fn publish(&self, args: Publish<'_, Self>) {
        self.checked_publish(&args);
    }
}
