//! Operands of a [`Checked`] backend as the backend inside takes them.

#![expect(
    clippy::needless_pass_by_value,
    reason = "arguments come as the contract hands them over"
)]

use super::Checked;
use crate::{
    Backend, CausalConv, DeltaRule, Epilogue, GatedNorm, MoeRouting, NgramIndex, PoolTable, Product,
    ResidualNorm, RouteScores, Rows, SampleOptions, SampledProduct, Sampling, SlotTable, StateSpace,
    StepRecord, StepRings, StepTables,
};

impl<B: Backend> Checked<B> {
    pub(super) fn rows(rows: &Rows<Self>) -> Rows<B> {
        Rows {
            bucket: rows.bucket,
            live: rows.live.inner.clone(),
        }
    }

    /// The tables of the backend inside. Their buffers have room for the rows that the program is shaped for.
    pub(super) fn step(tables: &StepTables<Self>) -> StepTables<B> {
        let room = [
            ("token rows", tables.token_rows.len, tables.tokens.bucket),
            ("request rows", tables.request_rows.len, tables.requests.bucket),
            ("rows of logits", tables.logits_rows.len, tables.samples.bucket),
        ];
        for (what, len, bucket) in room {
            assert!(
                bucket <= len,
                "contract: a program for {bucket} {what}, of which there are {len}"
            );
        }
        StepTables {
            limits: tables.limits,
            tokens: Self::rows(&tables.tokens),
            requests: Self::rows(&tables.requests),
            samples: Self::rows(&tables.samples),
            token_rows: tables.token_rows.inner.clone(),
            request_rows: tables.request_rows.inner.clone(),
            logits_rows: tables.logits_rows.inner.clone(),
            block_table: tables.block_table.inner.clone(),
            prompts: tables.prompts,
        }
    }

    pub(super) fn slots(slots: &SlotTable<Self>) -> SlotTable<B> {
        let limits = slots.limits;
        assert!(
            slots.state.len >= limits.slots
                && slots.block_table.len >= limits.slots * limits.blocks_per_slot
                && slots.history.len >= limits.blocks * limits.block_size,
            "contract: a table of slots is smaller than its limits say"
        );
        SlotTable {
            limits,
            state: slots.state.inner.clone(),
            lists: slots.lists.inner.clone(),
            block_table: slots.block_table.inner.clone(),
            history: slots.history.inner.clone(),
            drafter_saved: slots.drafter_saved.inner.clone(),
        }
    }

    pub(super) fn record(record: &StepRecord<Self>) -> StepRecord<B> {
        StepRecord {
            header: record.header.inner.clone(),
            rows: record.rows.inner.clone(),
        }
    }

    pub(super) fn rings(rings: &StepRings<Self>) -> StepRings<B> {
        StepRings {
            depth: rings.depth,
            plans: rings.plans.inner.clone(),
            records: rings.records.inner.clone(),
            begun: rings.begun.inner.clone(),
        }
    }

    pub(super) fn pool(table: &PoolTable<Self>) -> PoolTable<B> {
        PoolTable {
            sums: table.sums.inner.clone(),
            done: table.done.inner.clone(),
            width: table.width,
        }
    }

    pub(super) fn ngrams(index: &NgramIndex<Self>) -> NgramIndex<B> {
        NgramIndex {
            min: index.min,
            max: index.max,
            entries: index.entries.inner.clone(),
            buckets: index.buckets,
        }
    }

    pub(super) fn routing(routing: &MoeRouting<Self>) -> MoeRouting<B> {
        MoeRouting {
            ids: routing.ids.inner.clone(),
            weights: routing.weights.inner.clone(),
            chosen: routing.chosen,
        }
    }

    pub(super) fn scores(scores: RouteScores<'_, Self>) -> RouteScores<'_, B> {
        match scores {
            RouteScores::Softmax { renormalise } => RouteScores::Softmax { renormalise },
            RouteScores::Sigmoid {
                bias,
                groups,
                kept_groups,
                renormalise,
                scale,
            } => RouteScores::Sigmoid {
                bias: &bias.inner,
                groups,
                kept_groups,
                renormalise,
                scale,
            },
        }
    }

    pub(super) fn epilogue<'a>(epilogue: &Epilogue<'a, Self>) -> Epilogue<'a, B> {
        Epilogue {
            bias: epilogue.bias.map(|bias| &bias.inner),
            scale: epilogue.scale.map(|scale| &scale.inner),
        }
    }

    pub(super) fn product(product: Product<'_, Self>) -> Product<'_, B> {
        Product {
            x: &product.x.inner,
            w: &product.w.inner,
            epilogue: Self::epilogue(&product.epilogue),
            out: &mut product.out.inner,
        }
    }

    pub(super) fn sampled_product(product: SampledProduct<'_, Self>) -> SampledProduct<'_, B> {
        SampledProduct {
            states: &mut product.states.inner,
            w: &product.w.inner,
            epilogue: Self::epilogue(&product.epilogue),
            logits: &mut product.logits.inner,
        }
    }

    pub(super) fn residual_norm(norm: ResidualNorm<'_, Self>) -> ResidualNorm<'_, B> {
        ResidualNorm {
            residual: &mut norm.residual.inner,
            scale: norm.scale,
            weight: &norm.weight.inner,
            eps: norm.eps,
            out: &mut norm.out.inner,
        }
    }

    pub(super) fn conv<'a>(conv: CausalConv<'a, Self>, step: &'a StepTables<B>) -> CausalConv<'a, B> {
        CausalConv {
            x: &conv.x.inner,
            weight: &conv.weight.inner,
            bias: conv.bias.map(|bias| &bias.inner),
            cache: conv.cache,
            out: &mut conv.out.inner,
            step,
        }
    }

    pub(super) fn rule<'a>(rule: DeltaRule<'a, Self>, step: &'a StepTables<B>) -> DeltaRule<'a, B> {
        DeltaRule {
            q: &rule.q.inner,
            k: &rule.k.inner,
            v: &rule.v.inner,
            a: &rule.a.inner,
            b: &rule.b.inner,
            decay: &rule.decay.inner,
            dt_bias: &rule.dt_bias.inner,
            head_map: rule.head_map,
            cache: rule.cache,
            out: &mut rule.out.inner,
            step,
        }
    }

    pub(super) fn recurrence<'a>(
        recurrence: StateSpace<'a, Self>,
        step: &'a StepTables<B>,
    ) -> StateSpace<'a, B> {
        StateSpace {
            x: &recurrence.x.inner,
            b: &recurrence.b.inner,
            c: &recurrence.c.inner,
            dt: &recurrence.dt.inner,
            decay: &recurrence.decay.inner,
            skip: &recurrence.skip.inner,
            dt_bias: &recurrence.dt_bias.inner,
            dt_limits: recurrence.dt_limits,
            cache: recurrence.cache,
            out: &mut recurrence.out.inner,
            step,
        }
    }

    pub(super) fn gating(norm: GatedNorm<'_, Self>) -> GatedNorm<'_, B> {
        GatedNorm {
            x: &norm.x.inner,
            gate: &norm.gate.inner,
            weight: norm.weight.map(|weight| &weight.inner),
            group: norm.group,
            order: norm.order,
            eps: norm.eps,
            out: &mut norm.out.inner,
        }
    }

    /// The slots are those of the options, if there are any.
    pub(super) fn sampling<'a>(
        sampling: &Sampling<'a, Self>,
        step: &'a StepTables<B>,
        slots: Option<&'a SlotTable<B>>,
    ) -> Sampling<'a, B> {
        let plan = sampling.options.as_ref().map(|options| &options.plan.inner);
        Sampling {
            step,
            options: slots.zip(plan).map(|(slots, plan)| SampleOptions { slots, plan }),
            text: sampling.text,
            tokens: &sampling.tokens.inner,
            logprobs: &sampling.logprobs.inner,
        }
    }
}
