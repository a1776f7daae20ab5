//! Operations along the sequence: positions, blocks, attention, recurrences.

use super::frame::plan_view;
use crate::checks::Checks;
use crate::cpu::Cpu;
use crate::ops::grid::Recurrence;
use crate::ops::{Step, attention, causal_conv, clear_kv, delta_rule, rope, state_space, store_kv};
use crate::storage::{CpuBuffer, CpuTensor};
use paceline_device::{
    Attention, CausalConv, ClearKv, DeltaRule, HeadMap, KeyValueStore, KvShape, StateSpace, StepTables,
};

impl Cpu {
    pub(crate) fn enqueue_rope_angles(
        &self,
        step: &StepTables<Self>,
        frequencies: &CpuBuffer<f32>,
        factor: f32,
        out: &CpuTensor,
    ) {
        let check = Checks("rope_angles");
        check.room("token rows", &step.token_rows, out.bucket);
        check.columns("out", out, 2 * frequencies.storage.len());
        let (tokens, frequencies, out) = (step.token_rows.clone(), frequencies.clone(), out.clone());
        self.stream.enqueue(move |pool| {
            // SAFETY: see the module header.
            unsafe { rope::rope_angles(pool, tokens.read(), frequencies.read(), factor, out.write()) };
        });
    }

    pub(crate) fn enqueue_store_kv(&self, args: &KeyValueStore<'_, Self>) {
        let check = Checks("store_kv");
        let shape = args.cache.shape();
        check_step(check, args.step, args.q);
        check_blocks(check, args.step, shape);
        check.same_rows(args.q, args.k);
        check.same_shape(args.k, args.v);
        check.columns("k", args.k, shape.heads * shape.head_dim);
        check.divides("head_dim", shape.head_dim, args.q.columns);
        check.apart(args.q, &[args.k, args.v]);
        if let Some(norms) = &args.norms {
            check.length("the norm of queries", norms.q, shape.head_dim);
            check.length("the norm of keys", norms.k, shape.head_dim);
        }
        if let Some(angles) = args.angles {
            check.same_rows(args.q, angles);
            check.apart(args.q, &[angles]);
            assert!(
                angles.columns <= shape.head_dim && angles.columns.is_multiple_of(2),
                "store_kv: {} angles for heads of {}",
                angles.columns,
                shape.head_dim
            );
        }
        let (q, k, v) = (args.q.clone(), args.k.clone(), args.v.clone());
        let (angles, cache, step) = (args.angles.cloned(), args.cache.clone(), args.step.clone());
        let norms = args
            .norms
            .as_ref()
            .map(|norms| (norms.q.clone(), norms.k.clone(), norms.eps));
        self.stream.enqueue(move |pool| {
            // SAFETY: see the module header.
            let args = unsafe {
                store_kv::StoreKv {
                    q: q.write(),
                    k: k.read(),
                    v: v.read(),
                    norms: norms.as_ref().map(|(q, k, eps)| store_kv::Norms {
                        q: q.read(),
                        k: k.read(),
                        eps: *eps,
                    }),
                    angles: angles.as_ref().map(|angles| angles.read()),
                    cache: &cache,
                    step: Step::of(&step),
                }
            };
            store_kv::store_kv(pool, &args);
        });
    }

    pub(crate) fn enqueue_clear_kv(&self, args: &ClearKv<'_, Self>) {
        let check = Checks("clear_kv");
        let tokens = args.step.tokens.clone();
        check.room("token rows", &args.step.token_rows, tokens.bucket);
        check_blocks(check, args.step, args.cache.shape());
        let (plan, cache, step) = (args.plan.clone(), args.cache.clone(), args.step.clone());
        self.stream.enqueue(move |pool| {
            // SAFETY: see the module header.
            let args = unsafe {
                let live = usize::try_from(tokens.live.read()[0]).unwrap_or(0);
                clear_kv::Clear {
                    plan: plan_view(&plan),
                    cache: &cache,
                    step: Step::of(&step),
                    tokens: live.min(tokens.bucket),
                }
            };
            clear_kv::clear_kv(pool, &args);
        });
    }

    pub(crate) fn enqueue_attention(&self, args: &Attention<'_, Self>) {
        let check = Checks("attention");
        let shape = args.cache.shape();
        check_step(check, args.step, args.q);
        check_blocks(check, args.step, shape);
        check.same_shape(args.q, args.out);
        check.divides("key-value heads", shape.heads * shape.head_dim, args.q.columns);
        check.apart(args.out, &[args.q]);
        if let Some(gate) = args.gate {
            check.same_shape(args.q, gate);
            check.apart(args.out, &[gate]);
        }
        let (q, gate, out) = (args.q.clone(), args.gate.cloned(), args.out.clone());
        let (cache, scale, step) = (args.cache.clone(), args.scale, args.step.clone());
        self.stream.enqueue(move |pool| {
            // SAFETY: see the module header.
            let args = unsafe {
                attention::Attend {
                    q: q.read(),
                    gate: gate.as_ref().map(|gate| gate.read()),
                    cache: &cache,
                    scale,
                    out: out.write(),
                    step: Step::of(&step),
                }
            };
            attention::attention(pool, &args);
        });
    }

    pub(crate) fn enqueue_causal_conv(&self, args: &CausalConv<'_, Self>) {
        let check = Checks("causal_conv");
        let shape = args.cache.shape();
        check_step(check, args.step, args.x);
        check.same_shape(args.x, args.out);
        check.columns("x", args.x, shape.conv_channels);
        check.length("weight", args.weight, shape.conv_channels * shape.conv_width);
        check.apart(args.out, &[args.x]);
        assert!(
            shape.conv_width <= causal_conv::MAX_WIDTH,
            "causal_conv: {} taps",
            shape.conv_width
        );
        if let Some(bias) = args.bias {
            check.length("bias", bias, shape.conv_channels);
        }
        let (x, weight, bias) = (args.x.clone(), args.weight.clone(), args.bias.cloned());
        let (cache, out, step) = (args.cache.clone(), args.out.clone(), args.step.clone());
        self.stream.enqueue(move |pool| {
            // SAFETY: see the module header.
            let args = unsafe {
                causal_conv::Conv {
                    x: x.read(),
                    weight: weight.read(),
                    bias: bias.as_ref().map(|bias| bias.read()),
                    cache: &cache,
                    out: out.write(),
                    step: Step::of(&step),
                }
            };
            causal_conv::causal_conv(pool, &args);
        });
    }

    pub(crate) fn enqueue_delta_rule(&self, args: &DeltaRule<'_, Self>) {
        let check = Checks("delta_rule");
        let shape = args.cache.shape();
        check_step(check, args.step, args.q);
        check.same_shape(args.q, args.k);
        check.columns("k", args.k, shape.groups * shape.rows);
        check.divides("key heads", shape.groups, shape.heads);
        check.columns("v", args.v, shape.heads * shape.columns);
        check.columns("a", args.a, shape.heads);
        check.columns("b", args.b, shape.heads);
        check.length("decay", args.decay, shape.heads);
        check.length("dt_bias", args.dt_bias, shape.heads);
        check.same_shape(args.v, args.out);
        for tensor in [args.v, args.a, args.b] {
            check.same_rows(args.q, tensor);
        }
        check.apart(args.out, &[args.q, args.k, args.v, args.a, args.b]);
        let (q, k, v) = (args.q.clone(), args.k.clone(), args.v.clone());
        let (a, b, out) = (args.a.clone(), args.b.clone(), args.out.clone());
        let (decay, dt_bias, head_map) = (args.decay.clone(), args.dt_bias.clone(), args.head_map);
        let (cache, step) = (args.cache.clone(), args.step.clone());
        self.stream.enqueue(move |pool| {
            // SAFETY: see the module header.
            let args = unsafe {
                Recurrence {
                    rule: delta_rule::Delta {
                        a: a.read(),
                        b: b.read(),
                        decay: decay.read(),
                        dt_bias: dt_bias.read(),
                    },
                    keys: k.read(),
                    queries: q.read(),
                    values: v.read(),
                    head_map,
                    cache: &cache,
                    out: out.write(),
                    step: Step::of(&step),
                }
            };
            delta_rule::delta_rule(pool, &args);
        });
    }

    pub(crate) fn enqueue_state_space(&self, args: &StateSpace<'_, Self>) {
        let check = Checks("state_space");
        let shape = args.cache.shape();
        check_step(check, args.step, args.x);
        check.columns("x", args.x, shape.heads * shape.columns);
        check.columns("dt", args.dt, shape.heads);
        check.same_shape(args.b, args.c);
        check.columns("b", args.b, shape.groups * shape.rows);
        check.divides("groups", shape.groups, shape.heads);
        for buffer in [args.decay, args.skip, args.dt_bias] {
            check.length("a parameter per head", buffer, shape.heads);
        }
        check.same_shape(args.x, args.out);
        check.same_rows(args.x, args.b);
        check.same_rows(args.x, args.dt);
        check.apart(args.out, &[args.x, args.b, args.c, args.dt]);
        let (x, b, c, dt) = (args.x.clone(), args.b.clone(), args.c.clone(), args.dt.clone());
        let (decay, skip, dt_bias) = (args.decay.clone(), args.skip.clone(), args.dt_bias.clone());
        let (dt_limits, cache) = (args.dt_limits, args.cache.clone());
        let (out, step) = (args.out.clone(), args.step.clone());
        self.stream.enqueue(move |pool| {
            // SAFETY: see the module header.
            let args = unsafe {
                Recurrence {
                    rule: state_space::Space {
                        dt: dt.read(),
                        decay: decay.read(),
                        skip: skip.read(),
                        dt_bias: dt_bias.read(),
                        dt_limits,
                    },
                    keys: b.read(),
                    queries: c.read(),
                    values: x.read(),
                    head_map: HeadMap::Grouped,
                    cache: &cache,
                    out: out.write(),
                    step: Step::of(&step),
                }
            };
            state_space::state_space(pool, &args);
        });
    }
}

/// The tables describe at least the tensor's rows.
fn check_step(check: Checks, step: &StepTables<Cpu>, tensor: &CpuTensor) {
    check.room("token rows", &step.token_rows, tensor.bucket);
}

/// Tables and caches agree on the size of a block.
fn check_blocks(check: Checks, step: &StepTables<Cpu>, shape: KvShape) {
    assert!(
        step.limits.block_size == shape.block_size,
        "{}: tables have blocks of {} tokens, caches blocks of {}",
        check.0,
        step.limits.block_size,
        shape.block_size
    );
}
