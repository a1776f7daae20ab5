//! What attention costs per token.
//!
//! ```text
//! cargo build --release -p paceline-device-cpu --example attention_cost
//! target/release/examples/attention_cost float32|bfloat16|float16 TOKENS START CALLS THREADS
//! ```
//!
//! Runs CALLS steps over TOKENS tokens of one request from position START on, with the heads of SmolLM2-135M: nine of
//! queries, three of keys and values, 64 wide.

use paceline_device::abi::{RequestRow, TokenRow};
use paceline_device::{Attention, Backend, KeyValueStore, KvShape, Pending, StepLimits, StepTables};
use paceline_device_cpu::{Cpu, CpuOptions, Instructions};
use paceline_types::DType;
use std::time::Instant;

const HEADS: usize = 9;
const KV_HEADS: usize = 3;
const HEAD_DIM: usize = 64;
const BLOCK: usize = 16;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize| -> usize { arguments[place].parse().expect("a number") };
    let (tokens, start, calls, threads) = (number(1), number(2), number(3), number(4));
    let kv = match arguments[0].as_str() {
        "bfloat16" => DType::BF16,
        "float16" => DType::F16,
        _ => DType::F32,
    };
    let cpu = Cpu::new(CpuOptions {
        threads,
        instructions: Instructions::detect(),
    })
    .with_kv(kv);
    let blocks = (start + tokens).div_ceil(BLOCK);
    let shape = KvShape {
        blocks,
        block_size: BLOCK,
        heads: KV_HEADS,
        head_dim: HEAD_DIM,
    };
    let cache = cpu.kv_cache(shape).expect("memory for the bench");
    // Memory that was never written is one page of the system for all positions.
    for position in (0..start).step_by(64) {
        attend(&cpu, &cache, (position, 64.min(start - position)), blocks, 1);
    }
    let each = attend(&cpu, &cache, (start, tokens), blocks, calls);
    println!(
        "{}: {tokens} tokens from {start}, {threads} threads: {each:.2} µs per token",
        arguments[0]
    );
}

/// Runs some tokens some times and returns the microseconds of attention per token.
fn attend(
    cpu: &Cpu,
    cache: &<Cpu as Backend>::KvCache,
    (start, tokens): (usize, usize),
    blocks: usize,
    calls: usize,
) -> f64 {
    let step = step(cpu, (start, tokens), blocks);
    let tensor = |columns: usize| cpu.tensor(&step.tokens, columns).expect("memory for the bench");
    let (mut q, mut out) = (tensor(HEADS * HEAD_DIM), tensor(HEADS * HEAD_DIM));
    let (k, v) = (tensor(KV_HEADS * HEAD_DIM), tensor(KV_HEADS * HEAD_DIM));
    cpu.store_kv(KeyValueStore {
        q: &mut q,
        k: &k,
        v: &v,
        norms: None,
        angles: None,
        cache,
        step: &step,
    });
    let wait = || cpu.read(&step.tokens.live, 1).wait().expect("the device works");
    wait();
    let begin = Instant::now();
    for _ in 0..calls {
        cpu.attention(Attention {
            q: &q,
            gate: None,
            cache,
            scale: 0.125,
            out: &mut out,
            step: &step,
        });
    }
    wait();
    begin.elapsed().as_secs_f64() * 1e6 / (calls.max(1) * tokens) as f64
}

/// A step with some tokens of one request.
fn step(cpu: &Cpu, (start, tokens): (usize, usize), blocks: usize) -> StepTables<Cpu> {
    let limits = StepLimits {
        tokens,
        requests: 1,
        samples: 1,
        blocks_per_request: blocks,
        block_size: BLOCK,
    };
    let step = StepTables::new(cpu, limits).expect("memory for the bench");
    let rows: Vec<TokenRow> = (start..start + tokens)
        .map(|position| TokenRow {
            position: position as i32,
            ..TokenRow::default()
        })
        .collect();
    let request = RequestRow {
        token_count: tokens as i32,
        ..RequestRow::default()
    };
    cpu.write(&step.tokens.live, &[tokens as i32]);
    cpu.write(&step.requests.live, &[1]);
    cpu.write(&step.token_rows, &rows);
    cpu.write(&step.request_rows, &[request]);
    let table: Vec<i32> = (0..blocks as i32).collect();
    cpu.write(&step.block_table, &table);
    step
}
