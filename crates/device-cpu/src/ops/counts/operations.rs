//! What operations other than products take, per token.

use super::{Counter, Figure, ROWS, asked};
use crate::cpu::{Cpu, CpuOptions};
use crate::ops::attention::TILE;
use crate::pool::Pool;
use crate::simd::{ASKED, Instructions};
use crate::storage::CpuTensor;
use crate::stream::Op;
use paceline_device::abi::{RequestRow, TokenRow};
use paceline_device::{
    Activation, Attention, Backend, CausalConv, DeltaRule, GateOrder, GatedNorm, HeadMap, HeadNorms,
    KeyValueStore, KvShape, Pending, ResidualNorm, StateShape, StateSpace, StepLimits, StepTables,
};
use paceline_types::{DType, on_state_grid};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Position of the first token: its request has more than a block, and recurrent states some entries behind them. This and all
/// sizes are small, as stopping after every instruction takes a thousand times as long as running it.
const START: usize = 24;
const HEADS: usize = 2;
const KV_HEADS: usize = 1;
const HEAD_DIM: usize = 32;
const BLOCK: usize = 16;
const CHANNELS: usize = 128;
const MEMORY: &str = "memory for a test";

/// Enqueues an operation.
type Operation = fn(&Bench);

/// Counts every operation with a family's instructions.
pub(super) fn all(counter: &Counter, add: &mut dyn FnMut(&str, Figure)) {
    let count = |operation: Operation, kv: DType| {
        ROWS.map(|tokens| {
            Bench::new(&counter.pool, (START, tokens), kv).count(counter, operation) / tokens as f64
        })
    };
    for kv in [DType::F32, DType::BF16] {
        add(&format!("attention/{kv}"), count(Bench::attention, kv));
        add(&format!("store_kv/{kv}"), count(Bench::store_kv, kv));
    }
    let others: [(&str, Operation); 7] = [
        ("activate", Bench::activate),
        ("add_rms_norm", Bench::add_rms_norm),
        ("causal_conv", Bench::causal_conv),
        ("delta_rule", Bench::delta_rule),
        ("gated_norm", Bench::gated_norm),
        ("rope_angles", Bench::rope_angles),
        ("state_space", Bench::state_space),
    ];
    for (name, operation) in others {
        add(name, count(operation, DType::F32));
    }
}

/// How often attention of a token at a position asks for a cache line.
pub(super) fn asked_by_attention(pool: &Pool, position: usize, kv: DType) -> u64 {
    let program = Bench::new(pool, (position, 1), kv).capture(Bench::attention);
    asked(|| program.iter().for_each(|op| op(pool)))
}

/// Addresses: what attention of a token at a position asks for in plain Rust, and the lines of keys and values of the positions of the first
/// tile and of those behind it.
pub(super) fn lines_of_attention(position: usize) -> [BTreeSet<usize>; 3] {
    let pool = Pool::new(1, Instructions::Portable);
    let bench = Bench::new(&pool, (position, 1), DType::F32);
    let cache = bench.kv_cache();
    let program = bench.capture(|bench| bench.attend(&cache));
    ASKED.take();
    program.iter().for_each(|op| op(&pool));
    let blocks: Vec<i32> = (0..bench.blocks as i32).collect();
    let lines = |positions: Range<usize>| {
        let runs = positions.map(|at| cache.run(&blocks, 0, (at, at + 1)));
        let both = runs.flat_map(|run| {
            let keys = cache.keys_in_place(run).expect("float32") as usize / 64 * 64;
            let values = cache.values_in_place(run).expect("float32") as usize;
            let keys = (0..HEAD_DIM).map(move |dimension| keys + dimension * BLOCK * 4);
            keys.chain((0..HEAD_DIM * 4 / 64).map(move |line| values + line * 64))
        });
        both.collect()
    };
    let asked = ASKED.take().into_iter().collect();
    [asked, lines(0..TILE), lines(TILE..position + 1)]
}

/// A device with a step of some tokens of one request.
struct Bench {
    cpu: Cpu,
    step: StepTables<Cpu>,
    blocks: usize,
}

impl Bench {
    fn new(pool: &Pool, (start, tokens): (usize, usize), kv: DType) -> Self {
        let options = CpuOptions {
            threads: 1,
            instructions: pool.instructions(),
        };
        let cpu = Cpu::new(options).with_kv(kv);
        let blocks = (start + tokens).div_ceil(BLOCK);
        let limits = StepLimits {
            tokens,
            requests: 1,
            samples: 1,
            blocks_per_request: blocks,
            block_size: BLOCK,
        };
        let step = StepTables::new(&cpu, limits).expect(MEMORY);
        let rows: Vec<TokenRow> = (start..start + tokens)
            .map(|position| TokenRow {
                position: position as i32,
                ..TokenRow::default()
            })
            .collect();
        let request = RequestRow {
            token_count: tokens as i32,
            state_at: on_state_grid(start) as i32,
            state_end: on_state_grid(start + tokens) as i32,
            ..RequestRow::default()
        };
        let table: Vec<i32> = (0..blocks as i32).collect();
        cpu.write(&step.tokens.live, &[tokens as i32]);
        cpu.write(&step.requests.live, &[1]);
        cpu.write(&step.token_rows, &rows);
        cpu.write(&step.request_rows, &[request]);
        cpu.write(&step.block_table, &table);
        Self { cpu, step, blocks }
    }

    /// Instructions of an operation, which is captured and then run by this thread in place of the stream's.
    fn count(&self, counter: &Counter, operation: Operation) -> f64 {
        let program = self.capture(operation);
        counter.count(|| program.iter().for_each(|op| op(&counter.pool)))
    }

    /// What an operation enqueues, once all tables are written.
    fn capture(&self, operation: impl Fn(&Self)) -> Arc<[Op]> {
        self.cpu.stream.begin_capture();
        operation(self);
        let program = self.cpu.stream.end_capture();
        assert!(!program.is_empty(), "an operation is enqueued");
        let idle = self.cpu.read(&self.step.tokens.live, 1).wait();
        idle.expect("the tables are written");
        program
    }

    fn tensor(&self, columns: usize) -> CpuTensor {
        self.cpu.tensor(&self.step.tokens, columns).expect(MEMORY)
    }

    fn numbers(&self, count: usize) -> <Cpu as Backend>::Buffer<f32> {
        self.cpu.buffer_from(&vec![0.5; count]).expect(MEMORY)
    }

    fn kv_cache(&self) -> <Cpu as Backend>::KvCache {
        let shape = KvShape {
            blocks: self.blocks,
            block_size: BLOCK,
            heads: KV_HEADS,
            head_dim: HEAD_DIM,
        };
        self.cpu.kv_cache(shape).expect(MEMORY)
    }

    fn state_cache(&self, (heads, groups): (usize, usize), rows: usize) -> <Cpu as Backend>::StateCache {
        let shape = StateShape {
            slots: 1,
            conv_channels: CHANNELS,
            conv_width: 4,
            heads,
            groups,
            rows,
            columns: rows,
            drafts: 15,
            snapshots: 0,
        };
        self.cpu.state_cache(shape).expect(MEMORY)
    }

    fn attention(&self) {
        self.attend(&self.kv_cache());
    }

    fn attend(&self, cache: &<Cpu as Backend>::KvCache) {
        self.cpu.attention(Attention {
            q: &self.tensor(HEADS * HEAD_DIM),
            gate: None,
            cache,
            scale: 0.125,
            out: &mut self.tensor(HEADS * HEAD_DIM),
            step: &self.step,
        });
    }

    fn store_kv(&self) {
        let norm = self.numbers(HEAD_DIM);
        self.cpu.store_kv(KeyValueStore {
            q: &mut self.tensor(HEADS * HEAD_DIM),
            k: &self.tensor(KV_HEADS * HEAD_DIM),
            v: &self.tensor(KV_HEADS * HEAD_DIM),
            norms: Some(HeadNorms {
                q: &norm,
                k: &norm,
                eps: 1e-6,
            }),
            angles: Some(&self.tensor(HEAD_DIM)),
            cache: &self.kv_cache(),
            step: &self.step,
        });
    }

    fn rope_angles(&self) {
        let frequencies = self.numbers(HEAD_DIM / 2);
        let out = &mut self.tensor(HEAD_DIM);
        self.cpu.rope_angles(&self.step, &frequencies, 1.0, out);
    }

    fn activate(&self) {
        let (x, mut out) = (self.tensor(2 * CHANNELS), self.tensor(CHANNELS));
        let activation = Activation::SiluGated { gate_scale: 1.0 };
        self.cpu.activate(&x, activation, &mut out);
    }

    fn add_rms_norm(&self) {
        let norm = ResidualNorm {
            residual: &mut self.tensor(CHANNELS),
            scale: 1.0,
            weight: &self.numbers(CHANNELS),
            eps: 1e-6,
            out: &mut self.tensor(CHANNELS),
        };
        self.cpu.add_rms_norm(&self.tensor(CHANNELS), norm);
    }

    fn gated_norm(&self) {
        self.cpu.gated_norm(GatedNorm {
            x: &self.tensor(CHANNELS),
            gate: &self.tensor(CHANNELS),
            weight: Some(&self.numbers(HEAD_DIM)),
            group: HEAD_DIM,
            order: GateOrder::NormThenGate,
            eps: 1e-6,
            out: &mut self.tensor(CHANNELS),
        });
    }

    fn causal_conv(&self) {
        self.cpu.causal_conv(CausalConv {
            x: &self.tensor(CHANNELS),
            weight: &self.numbers(4 * CHANNELS),
            bias: None,
            cache: &self.state_cache((0, 0), 0),
            out: &mut self.tensor(CHANNELS),
            step: &self.step,
        });
    }

    fn delta_rule(&self) {
        let (heads, width) = (self.numbers(KV_HEADS), KV_HEADS * HEAD_DIM);
        self.cpu.delta_rule(DeltaRule {
            q: &self.tensor(HEAD_DIM),
            k: &self.tensor(HEAD_DIM),
            v: &self.tensor(width),
            a: &self.tensor(KV_HEADS),
            b: &self.tensor(KV_HEADS),
            decay: &heads,
            dt_bias: &heads,
            head_map: HeadMap::Grouped,
            cache: &self.state_cache((KV_HEADS, 1), HEAD_DIM),
            out: &mut self.tensor(width),
            step: &self.step,
        });
    }

    fn state_space(&self) {
        let (heads, width) = (self.numbers(KV_HEADS), KV_HEADS * HEAD_DIM);
        self.cpu.state_space(StateSpace {
            x: &self.tensor(width),
            b: &self.tensor(HEAD_DIM),
            c: &self.tensor(HEAD_DIM),
            dt: &self.tensor(KV_HEADS),
            decay: &heads,
            skip: &heads,
            dt_bias: &heads,
            dt_limits: (0.0, f32::INFINITY),
            cache: &self.state_cache((KV_HEADS, 1), HEAD_DIM),
            out: &mut self.tensor(width),
            step: &self.step,
        });
    }
}
