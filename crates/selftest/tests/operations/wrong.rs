//! A CPU that gets one operation slightly wrong.

use paceline_device::{
    Accept, Activation, Attention, Backend, CausalConv, ClearKv, DeltaRule, DeviceError, DeviceInfo,
    DraftForward, Element, Epilogue, Experts, GateOrder, GatedNorm, GatherStates, HeadMap, HeadNorms,
    KeepBlockEnds, KeyValueStore, KvShape, MoeRouting, NgramIndex, PoolStates, PoolTable, Prepare,
    PrepareDrafts, ProposeNgram, Publish, ResidualNorm, RingPlace, RouteScores, Router, RowOrder, Rows,
    SampleOptions, SampledText, Sampling, SlotTable, StateShape, StateSpace, StepRecord, StepRings,
    StepTables, TakeDrafts, WeightData, WeightPart,
};
use paceline_device_cpu::{
    Cpu, CpuArrival, CpuBuffer, CpuExperts, CpuKvCache, CpuOptions, CpuProgram, CpuRead, CpuRing,
    CpuStateCache, CpuTensor, CpuWeight,
};
use paceline_types::DType;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// A CPU with a fault. Its handles are the CPU's own.
#[derive(Clone)]
pub(crate) struct Wrong {
    cpu: Cpu,
    fault: &'static str,
    /// Programs captured so far.
    programs: Arc<AtomicUsize>,
}

impl Wrong {
    pub(crate) fn new(fault: &'static str) -> Self {
        Self {
            cpu: Cpu::new(CpuOptions::default()),
            fault,
            programs: Arc::default(),
        }
    }

    /// Whether this is what it gets wrong.
    fn is(&self, fault: &str) -> bool {
        self.fault == fault
    }

    /// A number, slightly off if it is its fault.
    fn off(&self, fault: &str, number: f32) -> f32 {
        if self.is(fault) { number * 1.01 } else { number }
    }
}

fn rows(rows: &Rows<Wrong>) -> Rows<Cpu> {
    Rows {
        bucket: rows.bucket,
        live: rows.live.clone(),
    }
}

fn step(step: &StepTables<Wrong>) -> StepTables<Cpu> {
    StepTables {
        limits: step.limits,
        tokens: rows(&step.tokens),
        requests: rows(&step.requests),
        samples: rows(&step.samples),
        token_rows: step.token_rows.clone(),
        request_rows: step.request_rows.clone(),
        logits_rows: step.logits_rows.clone(),
        block_table: step.block_table.clone(),
        prompts: step.prompts,
    }
}

fn slots(slots: &SlotTable<Wrong>) -> SlotTable<Cpu> {
    SlotTable {
        limits: slots.limits,
        state: slots.state.clone(),
        lists: slots.lists.clone(),
        block_table: slots.block_table.clone(),
        history: slots.history.clone(),
        drafter_saved: slots.drafter_saved.clone(),
    }
}

fn record(record: &StepRecord<Wrong>) -> StepRecord<Cpu> {
    StepRecord {
        header: record.header.clone(),
        rows: record.rows.clone(),
    }
}

fn rings(rings: &StepRings<Wrong>) -> StepRings<Cpu> {
    StepRings {
        depth: rings.depth,
        plans: rings.plans.clone(),
        records: rings.records.clone(),
        begun: rings.begun.clone(),
    }
}

fn pooled(table: &PoolTable<Wrong>) -> PoolTable<Cpu> {
    PoolTable {
        sums: table.sums.clone(),
        done: table.done.clone(),
        width: table.width,
    }
}

fn routing(routing: &MoeRouting<Wrong>) -> MoeRouting<Cpu> {
    MoeRouting {
        ids: routing.ids.clone(),
        weights: routing.weights.clone(),
        chosen: routing.chosen,
    }
}

impl Backend for Wrong {
    type Buffer<T: Element> = CpuBuffer<T>;
    type Tensor = CpuTensor;
    type Weight = CpuWeight;
    type Experts = CpuExperts;
    type KvCache = CpuKvCache;
    type StateCache = CpuStateCache;
    type Program = CpuProgram;
    type Read<T: Element> = CpuRead<T>;
    type Ring = CpuRing;
    type Arrival = CpuArrival;

    fn info(&self) -> DeviceInfo {
        self.cpu.info()
    }

    fn allocated(&self) -> u64 {
        self.cpu.allocated()
    }

    fn epoch(&self) -> Instant {
        self.cpu.epoch()
    }

    fn host_waits(&self) -> u64 {
        self.cpu.host_waits()
    }

    fn buffer<T: Element>(&self, len: usize) -> Result<CpuBuffer<T>, DeviceError> {
        self.cpu.buffer(len)
    }

    fn tensor(&self, space: &Rows<Self>, columns: usize) -> Result<CpuTensor, DeviceError> {
        self.cpu.tensor(&rows(space), columns)
    }

    fn reshape(&self, tensor: &CpuTensor, space: &Rows<Self>, columns: usize) -> CpuTensor {
        self.cpu.reshape(tensor, &rows(space), columns)
    }

    fn columns(&self, tensor: &CpuTensor, range: Range<usize>) -> CpuTensor {
        self.cpu.columns(tensor, range)
    }

    fn weight(&self, parts: &[WeightPart<'_>], store_as: Option<DType>) -> Result<CpuWeight, DeviceError> {
        let store_as = if self.is("weight") { None } else { store_as };
        self.cpu.weight(parts, store_as)
    }

    fn first_outputs(&self, weight: &CpuWeight, outputs: usize) -> CpuWeight {
        if !self.is("first_outputs") {
            return self.cpu.first_outputs(weight, outputs);
        }
        // The same shape, and nothing in it.
        let zeros = vec![0; outputs * weight.inputs() * 4];
        let part = WeightPart {
            name: "zeros",
            dtype: DType::F32,
            stored_rows: outputs,
            columns: weight.inputs(),
            data: WeightData::Stored(&zeros),
            order: RowOrder::Stored,
        };
        self.cpu.weight(&[part], None).expect("a small weight")
    }

    fn experts(&self, gate_up: Vec<CpuWeight>, mut down: Vec<CpuWeight>) -> Result<CpuExperts, DeviceError> {
        if self.is("run_experts") {
            down.swap(0, 1);
        }
        self.cpu.experts(gate_up, down)
    }

    fn kv_cache(&self, shape: KvShape) -> Result<CpuKvCache, DeviceError> {
        self.cpu.kv_cache(shape)
    }

    fn state_cache(&self, shape: StateShape) -> Result<CpuStateCache, DeviceError> {
        self.cpu.state_cache(shape)
    }

    fn ring(&self, places: usize, words: usize) -> Result<CpuRing, DeviceError> {
        self.cpu.ring(places, words)
    }

    fn write_at<T: Element>(&self, buffer: &CpuBuffer<T>, offset: usize, data: &[T]) {
        self.cpu.write_at(buffer, offset, data);
    }

    fn read<T: Element>(&self, buffer: &CpuBuffer<T>, len: usize) -> CpuRead<T> {
        self.cpu.read(buffer, len)
    }

    fn read_tensor(&self, tensor: &CpuTensor) -> CpuRead<f32> {
        self.cpu.read_tensor(tensor)
    }

    fn begin_capture(&self) {
        self.programs.fetch_add(1, Ordering::Relaxed);
        self.cpu.begin_capture();
    }

    fn end_capture(&self) -> CpuProgram {
        self.cpu.end_capture()
    }

    fn launch(&self, program: &CpuProgram) {
        self.cpu.launch(program);
    }

    fn post(&self, ring: &CpuRing, place: &RingPlace, words: &[i32]) {
        self.cpu.post(ring, place, words);
    }

    fn arrival(&self, ring: &CpuRing, place: &RingPlace) -> CpuArrival {
        self.cpu.arrival(ring, place)
    }

    fn embed(&self, tables: &StepTables<Self>, table: &CpuWeight, scale: f32, out: &mut CpuTensor) {
        // Inputs of other operations are embedded as they are.
        let scale = if scale > 1.0 {
            self.off("embed", scale)
        } else {
            scale
        };
        self.cpu.embed(&step(tables), table, scale, out);
    }

    fn linear(&self, x: &CpuTensor, w: &CpuWeight, epilogue: Epilogue<'_, Self>, out: &mut CpuTensor) {
        let bias = epilogue.bias.filter(|_| !self.is("linear"));
        let scale = epilogue.scale;
        self.cpu.linear(x, w, Epilogue { bias, scale }, out);
    }

    fn rms_norm(&self, x: &CpuTensor, weight: &CpuBuffer<f32>, eps: f32, out: &mut CpuTensor) {
        let programs = self.programs.load(Ordering::Relaxed);
        let eps = match self.fault {
            "rms_norm" => eps + 0.1,
            // What no tolerance notices, as the same program otherwise shaped might have it.
            "rms_norm in every other program" if programs % 2 == 1 => eps + 3e-6,
            _ => eps,
        };
        self.cpu.rms_norm(x, weight, eps, out);
    }

    fn add_rms_norm(&self, delta: &CpuTensor, norm: ResidualNorm<'_, Self>) {
        let norm = ResidualNorm {
            residual: norm.residual,
            scale: self.off("add_rms_norm", norm.scale),
            weight: norm.weight,
            eps: norm.eps,
            out: norm.out,
        };
        self.cpu.add_rms_norm(delta, norm);
    }

    fn add(&self, acc: &mut CpuTensor, x: &CpuTensor, scale: f32, gate: Option<&CpuTensor>) {
        self.cpu.add(acc, x, scale, gate.filter(|_| !self.is("add")));
    }

    fn activate(&self, x: &CpuTensor, activation: Activation, out: &mut CpuTensor) {
        let activation = match activation {
            Activation::SiluGated { gate_scale } => Activation::SiluGated {
                gate_scale: self.off("activate", gate_scale),
            },
            Activation::ReluSquared => Activation::ReluSquared,
        };
        self.cpu.activate(x, activation, out);
    }

    fn rope_angles(
        &self,
        tables: &StepTables<Self>,
        frequencies: &CpuBuffer<f32>,
        factor: f32,
        out: &mut CpuTensor,
    ) {
        let factor = self.off("rope_angles", factor);
        self.cpu.rope_angles(&step(tables), frequencies, factor, out);
    }

    fn store_kv(&self, args: KeyValueStore<'_, Self>) {
        let norms = args.norms.filter(|_| !self.is("store_kv"));
        self.cpu.store_kv(KeyValueStore {
            q: args.q,
            k: args.k,
            v: args.v,
            norms: norms.map(|norms| HeadNorms {
                q: norms.q,
                k: norms.k,
                eps: norms.eps,
            }),
            angles: args.angles,
            cache: args.cache,
            step: &step(args.step),
        });
    }

    fn attention(&self, args: Attention<'_, Self>) {
        self.cpu.attention(Attention {
            q: args.q,
            gate: args.gate,
            cache: args.cache,
            scale: self.off("attention", args.scale),
            out: args.out,
            step: &step(args.step),
        });
    }

    fn causal_conv(&self, args: CausalConv<'_, Self>) {
        self.cpu.causal_conv(CausalConv {
            x: args.x,
            weight: args.weight,
            bias: args.bias.filter(|_| !self.is("causal_conv")),
            cache: args.cache,
            out: args.out,
            step: &step(args.step),
        });
    }

    fn delta_rule(&self, args: DeltaRule<'_, Self>) {
        self.cpu.delta_rule(DeltaRule {
            q: args.q,
            k: args.k,
            v: args.v,
            a: args.a,
            b: args.b,
            decay: args.decay,
            dt_bias: args.dt_bias,
            head_map: if self.is("delta_rule") {
                HeadMap::Tiled
            } else {
                args.head_map
            },
            cache: args.cache,
            out: args.out,
            step: &step(args.step),
        });
    }

    fn state_space(&self, args: StateSpace<'_, Self>) {
        let (least, most) = args.dt_limits;
        self.cpu.state_space(StateSpace {
            x: args.x,
            b: args.b,
            c: args.c,
            dt: args.dt,
            decay: args.decay,
            skip: args.skip,
            dt_bias: args.dt_bias,
            dt_limits: (least, self.off("state_space", most)),
            cache: args.cache,
            out: args.out,
            step: &step(args.step),
        });
    }

    fn gated_norm(&self, args: GatedNorm<'_, Self>) {
        self.cpu.gated_norm(GatedNorm {
            x: args.x,
            gate: args.gate,
            weight: args.weight,
            group: args.group,
            order: if self.is("gated_norm") {
                GateOrder::GateThenNorm
            } else {
                args.order
            },
            eps: args.eps,
            out: args.out,
        });
    }

    fn route(&self, args: Router<'_, Self>) {
        let scores = match args.scores {
            RouteScores::Softmax { renormalise } => RouteScores::Softmax {
                renormalise: renormalise && !self.is("route"),
            },
            RouteScores::Sigmoid {
                bias,
                groups,
                kept_groups,
                renormalise,
                scale,
            } => RouteScores::Sigmoid {
                bias,
                groups,
                kept_groups,
                renormalise,
                scale,
            },
        };
        self.cpu.route(Router {
            logits: args.logits,
            scores,
            shared: args.shared,
            out: &mut routing(args.out),
        });
    }

    fn run_experts(&self, args: Experts<'_, Self>) {
        self.cpu.run_experts(Experts {
            x: args.x,
            routing: &routing(args.routing),
            experts: args.experts,
            activation: args.activation,
            out: args.out,
        });
    }

    fn gather(&self, x: &CpuTensor, index: &CpuBuffer<i32>, out: &mut CpuTensor) {
        if !self.is("gather") {
            self.cpu.gather(x, index, out);
        }
    }

    fn gather_sampled(&self, x: &CpuTensor, tables: &StepTables<Self>, out: &mut CpuTensor) {
        if !self.is("gather_sampled") {
            self.cpu.gather_sampled(x, &step(tables), out);
        }
    }

    fn copy(&self, x: &CpuTensor, out: &mut CpuTensor) {
        if !self.is("copy") {
            self.cpu.copy(x, out);
        }
    }

    fn sample(&self, logits: &CpuTensor, sampling: Sampling<'_, Self>) {
        let options = sampling.options.filter(|_| !self.is("sample"));
        let table = options.as_ref().map(|options| slots(options.slots));
        let plan = options.as_ref().map(|options| options.plan);
        let text = match sampling.text {
            SampledText::Drafts if self.is("sampled drafts") => SampledText::Step,
            text => text,
        };
        let sampling = Sampling {
            step: &step(sampling.step),
            options: table
                .as_ref()
                .zip(plan)
                .map(|(slots, plan)| SampleOptions { slots, plan }),
            text,
            tokens: sampling.tokens,
            logprobs: sampling.logprobs,
        };
        self.cpu.sample(logits, sampling);
    }

    fn prepare(&self, args: Prepare<'_, Self>) {
        let mut tables = step(args.step);
        if self.is("prepare") {
            tables.tokens.bucket /= 2;
        }
        self.cpu.prepare(Prepare {
            rings: &rings(args.rings),
            plan: args.plan,
            slots: &slots(args.slots),
            step: &tables,
            record: &record(args.record),
        });
    }

    fn accept(&self, args: Accept<'_, Self>) {
        let times = if self.is("accept") { 2 } else { 1 };
        for _ in 0..times {
            self.cpu.accept(Accept {
                plan: args.plan,
                slots: &slots(args.slots),
                step: &step(args.step),
                tokens: args.tokens,
                record: &record(args.record),
            });
        }
    }

    fn pool_states(&self, args: PoolStates<'_, Self>) {
        let times = if self.is("pool_states") { 2 } else { 1 };
        for _ in 0..times {
            self.cpu.pool_states(PoolStates {
                plan: args.plan,
                step: &step(args.step),
                states: args.states,
                table: &pooled(args.table),
            });
        }
    }

    fn propose_ngram(&self, args: ProposeNgram<'_, Self>) {
        let index = args.index;
        self.cpu.propose_ngram(ProposeNgram {
            plan: args.plan,
            slots: &slots(args.slots),
            step: &step(args.step),
            index: &NgramIndex {
                min: index.min,
                max: index.max - usize::from(self.is("propose_ngram")),
                entries: index.entries.clone(),
                buckets: index.buckets,
            },
            chain_min: args.chain_min,
        });
    }

    fn prepare_drafts(&self, args: PrepareDrafts<'_, Self>) {
        let pass = match args.pass {
            DraftForward::Along { .. } if self.is("prepare_drafts") => {
                DraftForward::Along { recurrent: false }
            }
            pass => pass,
        };
        self.cpu.prepare_drafts(PrepareDrafts {
            pass,
            plan: args.plan,
            slots: &slots(args.slots),
            step: &step(args.step),
            record: &record(args.record),
            before: args.before.map(step).as_ref(),
            draft: &step(args.draft),
            source: args.source,
        });
    }

    fn keep_block_ends(&self, args: KeepBlockEnds<'_, Self>) {
        let mut tables = step(args.step);
        if self.is("keep_block_ends") {
            tables.limits.block_size *= 2;
        }
        self.cpu.keep_block_ends(KeepBlockEnds {
            states: args.states,
            step: &tables,
            kept: args.kept,
        });
    }

    fn gather_states(&self, args: GatherStates<'_, Self>) {
        if !self.is("gather_states") {
            self.cpu.gather_states(GatherStates {
                states: args.states,
                kept: args.kept,
                source: args.source,
                out: args.out,
            });
        }
    }

    fn take_drafts(&self, args: TakeDrafts<'_, Self>) {
        let late = usize::from(self.is("take_drafts") && args.place == 1);
        self.cpu.take_drafts(TakeDrafts {
            place: args.place + late,
            slots: &slots(args.slots),
            draft: &step(args.draft),
            tokens: args.tokens,
        });
    }

    fn clear_kv(&self, args: ClearKv<'_, Self>) {
        if !self.is("clear_kv") {
            self.cpu.clear_kv(ClearKv {
                plan: args.plan,
                step: &step(args.step),
                cache: args.cache,
            });
        }
    }

    fn spread(&self, x: &CpuTensor, columns: &CpuBuffer<i32>, out: &mut CpuTensor) {
        if !self.is("spread") {
            self.cpu.spread(x, columns, out);
        }
    }

    fn mark_drafting(&self, found: &StepRecord<Self>) {
        if !self.is("mark_drafting") {
            self.cpu.mark_drafting(&record(found));
        }
    }

    fn publish(&self, args: Publish<'_, Self>) {
        let mut tables = step(args.step);
        if self.is("publish") {
            // Log-probabilities go to the wrong rows.
            tables.samples.live = tables.requests.live.clone();
        }
        self.cpu.publish(Publish {
            rings: &rings(args.rings),
            plan: args.plan,
            slots: &slots(args.slots),
            step: &tables,
            record: &record(args.record),
            logprobs: args.logprobs,
            pooled: &pooled(args.pooled),
        });
    }
}
