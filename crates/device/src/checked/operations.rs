//! Operations with many operands: their checks, and the operands of the backend inside.

#![expect(
    clippy::needless_pass_by_value,
    reason = "arguments come as the contract hands them over"
)]

use super::Checked;
use super::handles::{CheckedBuffer, CheckedTensor, CheckedWeight};
use crate::args::{
    Attention, CausalConv, DeltaRule, Experts, GatedNorm, HeadNorms, KeyValueStore, ResidualNorm, Router,
    Sampling, StateSpace,
};
use crate::{
    Accept, Backend, ClearKv, Element, GatherStates, KeepBlockEnds, PoolStates, Prepare, PrepareDrafts,
    ProposeNgram, Publish, SlotTable, StepTables, TakeDrafts,
};

impl<B: Backend> Checked<B> {
    /// An operation reads these tensors and writes those.
    /// An operation reads these tensors and writes those. What it changes in place is in both lists.
    pub(super) fn watch(
        &self,
        name: &str,
        read: &[(&str, &CheckedTensor<B>)],
        written: &[&CheckedTensor<B>],
    ) {
        let mut watch = self.shared.lock();
        watch.operation(name);
        for (what, tensor) in read {
            watch.read(name, what, &tensor.place);
        }
        for (index, tensor) in written.iter().enumerate() {
            for (what, other) in read.iter().filter(|(_, other)| !std::ptr::eq(*other, *tensor)) {
                assert!(
                    !other.place.overlaps(&tensor.place),
                    "contract: {name} writes over {what}, which it reads"
                );
            }
            assert!(
                written[..index]
                    .iter()
                    .all(|other| !other.place.overlaps(&tensor.place)),
                "contract: {name} writes two tensors over one another"
            );
            watch.write(&tensor.place);
        }
    }

    /// A buffer has room for the rows that an operation is shaped for.
    pub(super) fn room<T: Element>(name: &str, what: &str, buffer: &CheckedBuffer<B, T>, rows: usize) {
        assert!(
            rows <= buffer.len,
            "contract: {name} for {rows} rows, with {what} of {}",
            buffer.len
        );
    }

    /// The rows of a weight are in the order they were stored in.
    pub(super) fn stored_rows(name: &str, weight: &CheckedWeight<B>) {
        assert!(
            !weight.gated,
            "contract: {name} has a weight that was made for linear_activate"
        );
    }

    pub(super) fn checked_add_rms_norm(&self, delta: &CheckedTensor<B>, norm: ResidualNorm<'_, Self>) {
        let read = [("residual", &*norm.residual), ("delta", delta)];
        self.watch("add_rms_norm", &read, &[&*norm.residual, &*norm.out]);
        self.inner.add_rms_norm(&delta.inner, Self::residual_norm(norm));
    }

    pub(super) fn checked_store_kv(&self, args: KeyValueStore<'_, Self>) {
        let mut read = vec![("q", &*args.q), ("k", args.k), ("v", args.v)];
        read.extend(args.angles.map(|angles| ("angles", angles)));
        self.watch("store_kv", &read, &[&*args.q]);
        self.inner.store_kv(KeyValueStore {
            q: &mut args.q.inner,
            k: &args.k.inner,
            v: &args.v.inner,
            norms: args.norms.map(|norms| HeadNorms {
                q: &norms.q.inner,
                k: &norms.k.inner,
                eps: norms.eps,
            }),
            angles: args.angles.map(|angles| &angles.inner),
            cache: args.cache,
            step: &Self::step(args.step),
        });
    }

    pub(super) fn checked_attention(&self, args: Attention<'_, Self>) {
        let mut read = vec![("q", args.q)];
        read.extend(args.gate.map(|gate| ("gate", gate)));
        self.watch("attention", &read, &[&*args.out]);
        self.inner.attention(Attention {
            q: &args.q.inner,
            gate: args.gate.map(|gate| &gate.inner),
            cache: args.cache,
            scale: args.scale,
            out: &mut args.out.inner,
            step: &Self::step(args.step),
        });
    }

    pub(super) fn checked_causal_conv(&self, conv: CausalConv<'_, Self>) {
        self.watch("causal_conv", &[("x", conv.x)], &[&*conv.out]);
        let step = Self::step(conv.step);
        self.inner.causal_conv(Self::conv(conv, &step));
    }

    pub(super) fn checked_delta_rule(&self, args: DeltaRule<'_, Self>) {
        let read = [
            ("q", args.q),
            ("k", args.k),
            ("v", args.v),
            ("a", args.a),
            ("b", args.b),
        ];
        self.watch("delta_rule", &read, &[&*args.out]);
        let step = Self::step(args.step);
        self.inner.delta_rule(Self::rule(args, &step));
    }

    pub(super) fn checked_state_space(&self, args: StateSpace<'_, Self>) {
        let read = [("x", args.x), ("b", args.b), ("c", args.c), ("dt", args.dt)];
        self.watch("state_space", &read, &[&*args.out]);
        let step = Self::step(args.step);
        self.inner.state_space(Self::recurrence(args, &step));
    }

    pub(super) fn checked_gated_norm(&self, args: GatedNorm<'_, Self>) {
        self.watch("gated_norm", &[("x", args.x), ("gate", args.gate)], &[&*args.out]);
        self.inner.gated_norm(Self::gating(args));
    }

    pub(super) fn checked_route(&self, args: Router<'_, Self>) {
        self.watch("route", &[("logits", args.logits)], &[&args.out.weights]);
        Self::room(
            "route",
            "ids",
            &args.out.ids,
            args.logits.bucket * args.out.chosen,
        );
        self.inner.route(Router {
            logits: &args.logits.inner,
            scores: Self::scores(args.scores),
            shared: args.shared,
            out: &mut Self::routing(args.out),
        });
    }

    pub(super) fn checked_run_experts(&self, args: Experts<'_, Self>) {
        let read = [("x", args.x), ("weights", &args.routing.weights)];
        self.watch("run_experts", &read, &[&*args.out]);
        self.inner.run_experts(Experts {
            x: &args.x.inner,
            routing: &Self::routing(args.routing),
            experts: args.experts,
            activation: args.activation,
            out: &mut args.out.inner,
        });
    }

    pub(super) fn checked_sample(&self, logits: &CheckedTensor<B>, sampling: &Sampling<'_, Self>) {
        self.watch("sample", &[("logits", logits)], &[]);
        let (step, slots) = Self::check_sampling("sample", sampling, logits.bucket);
        let sampling = Self::sampling(sampling, &step, slots.as_ref());
        self.inner.sample(&logits.inner, sampling);
    }

    /// What it chooses has a place, for this many logits rows. The tables of the backend inside.
    pub(super) fn check_sampling(
        name: &str,
        sampling: &Sampling<'_, Self>,
        rows: usize,
    ) -> (StepTables<B>, Option<SlotTable<B>>) {
        Self::room(name, "tokens", sampling.tokens, rows);
        Self::room(name, "logprobs", sampling.logprobs, rows);
        let slots = sampling
            .options
            .as_ref()
            .map(|options| Self::slots(options.slots));
        (Self::step(sampling.step), slots)
    }

    pub(super) fn checked_prepare(&self, args: &Prepare<'_, Self>) {
        self.shared.lock().operation("prepare");
        Self::room(
            "prepare",
            "the record",
            &args.record.rows,
            args.step.requests.bucket,
        );
        Self::room("prepare", "the plan", args.plan, args.rings.plans.words);
        self.inner.prepare(Prepare {
            rings: &Self::rings(args.rings),
            plan: &args.plan.inner,
            slots: &Self::slots(args.slots),
            step: &Self::step(args.step),
            record: &Self::record(args.record),
        });
    }

    pub(super) fn checked_accept(&self, args: &Accept<'_, Self>) {
        self.shared.lock().operation("accept");
        Self::room("accept", "tokens", args.tokens, args.step.samples.bucket);
        Self::room(
            "accept",
            "the record",
            &args.record.rows,
            args.step.requests.bucket,
        );
        self.inner.accept(Accept {
            plan: &args.plan.inner,
            slots: &Self::slots(args.slots),
            step: &Self::step(args.step),
            tokens: &args.tokens.inner,
            record: &Self::record(args.record),
        });
    }

    pub(super) fn checked_pool_states(&self, args: &PoolStates<'_, Self>) {
        self.watch("pool_states", &[("states", args.states)], &[]);
        self.inner.pool_states(PoolStates {
            plan: &args.plan.inner,
            step: &Self::step(args.step),
            states: &args.states.inner,
            table: &Self::pool(args.table),
        });
    }

    pub(super) fn checked_propose_ngram(&self, args: &ProposeNgram<'_, Self>) {
        self.shared.lock().operation("propose_ngram");
        self.inner.propose_ngram(ProposeNgram {
            plan: &args.plan.inner,
            slots: &Self::slots(args.slots),
            step: &Self::step(args.step),
            index: &Self::ngrams(args.index),
            chain_min: args.chain_min,
        });
    }

    pub(super) fn checked_prepare_drafts(&self, args: &PrepareDrafts<'_, Self>) {
        self.shared.lock().operation("prepare_drafts");
        Self::room("prepare_drafts", "source", args.source, args.draft.tokens.bucket);
        self.inner.prepare_drafts(PrepareDrafts {
            pass: args.pass,
            plan: &args.plan.inner,
            slots: &Self::slots(args.slots),
            step: &Self::step(args.step),
            record: &Self::record(args.record),
            before: args.before.map(Self::step).as_ref(),
            draft: &Self::step(args.draft),
            source: &args.source.inner,
        });
    }

    pub(super) fn checked_keep_block_ends(&self, args: &KeepBlockEnds<'_, Self>) {
        self.watch("keep_block_ends", &[("states", args.states)], &[]);
        self.inner.keep_block_ends(KeepBlockEnds {
            states: &args.states.inner,
            step: &Self::step(args.step),
            kept: &args.kept.inner,
        });
    }

    pub(super) fn checked_gather_states(&self, args: GatherStates<'_, Self>) {
        self.watch("gather_states", &[("states", args.states)], &[&*args.out]);
        Self::room("gather_states", "source", args.source, args.out.bucket);
        self.inner.gather_states(GatherStates {
            states: &args.states.inner,
            kept: &args.kept.inner,
            source: &args.source.inner,
            out: &mut args.out.inner,
        });
    }

    pub(super) fn checked_take_drafts(&self, args: &TakeDrafts<'_, Self>) {
        self.shared.lock().operation("take_drafts");
        Self::room("take_drafts", "tokens", args.tokens, args.draft.samples.bucket);
        self.inner.take_drafts(TakeDrafts {
            place: args.place,
            slots: &Self::slots(args.slots),
            draft: &Self::step(args.draft),
            tokens: &args.tokens.inner,
        });
    }

    pub(super) fn checked_clear_kv(&self, args: &ClearKv<'_, Self>) {
        self.shared.lock().operation("clear_kv");
        self.inner.clear_kv(ClearKv {
            plan: &args.plan.inner,
            step: &Self::step(args.step),
            cache: args.cache,
        });
    }

    pub(super) fn checked_publish(&self, args: &Publish<'_, Self>) {
        self.shared.lock().operation("publish");
        Self::room("publish", "logprobs", args.logprobs, args.step.samples.bucket);
        self.inner.publish(Publish {
            rings: &Self::rings(args.rings),
            plan: &args.plan.inner,
            slots: &Self::slots(args.slots),
            step: &Self::step(args.step),
            record: &Self::record(args.record),
            logprobs: &args.logprobs.inner,
            pooled: &Self::pool(args.pooled),
        });
    }
}
