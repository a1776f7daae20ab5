//! What the recurrent operations cost per token.
//!
//! ```text
//! cargo build --release -p paceline-device-cpu --example recurrence_cost
//! target/release/examples/recurrence_cost delta|space|conv TOKENS START CALLS
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/recurrence_cost delta 1 8 64
//! ```
//!
//! Runs CALLS steps over TOKENS tokens of one request from position START on, with the sizes of Qwen3-Next (delta) and
//! Nemotron-H-8B (space). What a call costs is the count with CALLS calls less the count with none, by CALLS.

use paceline_device::abi::{RequestRow, TokenRow};
use paceline_device::{
    Backend, CausalConv, DeltaRule, HeadMap, Pending, StateShape, StateSpace, StepLimits, StepTables,
};
use paceline_device_cpu::{Cpu, CpuOptions, CpuTensor, Instructions};
use paceline_types::on_state_grid;
use std::time::Instant;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize| -> usize { arguments[place].parse().expect("a number") };
    let (tokens, start, calls) = (number(1), number(2), number(3));
    let cpu = Cpu::new(CpuOptions {
        threads: 1,
        instructions: Instructions::detect(),
    });
    let memory = "memory for the bench";
    let step = step(&cpu, tokens, start);
    let tensor = |columns: usize| cpu.tensor(&step.tokens, columns).expect(memory);
    let run: Box<dyn Fn()> = match arguments[0].as_str() {
        "delta" => delta(&cpu, &step, &tensor),
        "space" => space(&cpu, &step, &tensor),
        _ => conv(&cpu, &step, &tensor),
    };
    let wait = || cpu.read(&step.tokens.live, 1).wait().expect("the device works");
    wait();
    let begin = Instant::now();
    for _ in 0..calls {
        run();
    }
    // Once: waiting for each call would take longer than the call, and that would be what is measured.
    wait();
    let each = begin.elapsed().as_secs_f64() * 1e6 / (calls.max(1) * tokens) as f64;
    println!(
        "{}: {tokens} tokens from {start}: {each:.2} µs per token",
        arguments[0]
    );
}

fn shape((heads, groups): (usize, usize), rows: usize, columns: usize) -> StateShape {
    StateShape {
        slots: 1,
        conv_channels: 8192,
        conv_width: 4,
        heads,
        groups,
        rows,
        columns,
        drafts: 15,
        snapshots: 0,
    }
}

fn delta<'a>(
    cpu: &'a Cpu,
    step: &'a StepTables<Cpu>,
    tensor: &dyn Fn(usize) -> CpuTensor,
) -> Box<dyn Fn() + 'a> {
    let (heads, keys) = (32, 16);
    let (q, k, v) = (tensor(keys * 128), tensor(keys * 128), tensor(heads * 128));
    let (a, b, out) = (tensor(heads), tensor(heads), tensor(heads * 128));
    let per_head = cpu.buffer_from(&vec![-1.0; heads]).expect("memory");
    let cache = cpu.state_cache(shape((heads, keys), 128, 128)).expect("memory");
    Box::new(move || {
        cpu.delta_rule(DeltaRule {
            q: &q,
            k: &k,
            v: &v,
            a: &a,
            b: &b,
            decay: &per_head,
            dt_bias: &per_head,
            head_map: HeadMap::Grouped,
            cache: &cache,
            out: &mut out.clone(),
            step,
        });
    })
}

fn space<'a>(
    cpu: &'a Cpu,
    step: &'a StepTables<Cpu>,
    tensor: &dyn Fn(usize) -> CpuTensor,
) -> Box<dyn Fn() + 'a> {
    let (heads, groups) = (128, 8);
    let (x, dt, out) = (tensor(heads * 64), tensor(heads), tensor(heads * 64));
    let (b, c) = (tensor(groups * 128), tensor(groups * 128));
    let per_head = cpu.buffer_from(&vec![-1.0; heads]).expect("memory");
    let cache = cpu.state_cache(shape((heads, groups), 128, 64)).expect("memory");
    Box::new(move || {
        cpu.state_space(StateSpace {
            x: &x,
            b: &b,
            c: &c,
            dt: &dt,
            decay: &per_head,
            skip: &per_head,
            dt_bias: &per_head,
            dt_limits: (0.0, f32::INFINITY),
            cache: &cache,
            out: &mut out.clone(),
            step,
        });
    })
}

fn conv<'a>(
    cpu: &'a Cpu,
    step: &'a StepTables<Cpu>,
    tensor: &dyn Fn(usize) -> CpuTensor,
) -> Box<dyn Fn() + 'a> {
    let (x, out) = (tensor(8192), tensor(8192));
    let weight = cpu.buffer_from(&vec![0.5; 4 * 8192]).expect("memory");
    let cache = cpu.state_cache(shape((0, 0), 0, 0)).expect("memory");
    Box::new(move || {
        cpu.causal_conv(CausalConv {
            x: &x,
            weight: &weight,
            bias: None,
            cache: &cache,
            out: &mut out.clone(),
            step,
        });
    })
}

/// A step with `tokens` tokens of one request from `start` on.
fn step(cpu: &Cpu, tokens: usize, start: usize) -> StepTables<Cpu> {
    let limits = StepLimits {
        tokens,
        requests: 1,
        samples: 1,
        blocks_per_request: 1,
        block_size: 16,
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
        state_at: on_state_grid(start) as i32,
        state_end: on_state_grid(start + tokens) as i32,
        ..RequestRow::default()
    };
    cpu.write(&step.tokens.live, &[tokens as i32]);
    cpu.write(&step.requests.live, &[1]);
    cpu.write(&step.token_rows, &rows);
    cpu.write(&step.request_rows, &[request]);
    step
}
