//! Runs prompts through a [`Stepper`] in any division into steps.

#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "shared by several test programs"
)]

use paceline_device::abi::{SamplingRow, Wide};
use paceline_device::{Backend, StepLimits};
use paceline_device_cpu::{Cpu, CpuOptions, Instructions};
use paceline_models::{Decoder, DraftHead, Eagle3};
use paceline_testkit::{Program, SampleRow, StepRow, Stepper, StepperConfig};
use paceline_types::TokenId;
use paceline_weights::Checkpoint;

/// Greedy, without log-probabilities.
pub const GREEDY: SamplingRow = SamplingRow {
    temperature: 0.0,
    top_p: 1.0,
    top_k: 0,
    min_p: 0.0,
    seed: Wide { low: 0, high: 0 },
    logprobs: -1,
};

/// Longest sequence of the tests.
const CONTEXT: usize = 512;

const BLOCK_SIZE: usize = 16;

/// A CPU with so many threads.
pub fn cpu(threads: usize, instructions: Instructions) -> Cpu {
    Cpu::new(CpuOptions {
        threads,
        instructions,
    })
}

/// A runner for one request with steps of up to 256 tokens, all of which may be sampled.
pub fn runner<B: Backend>(backend: &B, checkpoint: &Checkpoint) -> Stepper<B> {
    let model = paceline_models::load(backend, checkpoint, None, &|_| {}).unwrap_or_else(|e| panic!("{e}"));
    runner_with(backend, model, None)
}

/// The same with an EAGLE-3 head.
pub fn runner_with_head<B: Backend>(backend: &B, checkpoint: &Checkpoint, head: &Checkpoint) -> Stepper<B> {
    let model = paceline_models::load(backend, checkpoint, None, &|_| {}).unwrap_or_else(|e| panic!("{e}"));
    let head = Eagle3::load(backend, head, &model, None, &|_| {}).unwrap_or_else(|e| panic!("{e}"));
    runner_with(backend, model, Some(Box::new(head)))
}

/// The same with a loaded model and head.
pub fn runner_with<B: Backend>(
    backend: &B,
    model: Decoder<B>,
    head: Option<Box<dyn DraftHead<B>>>,
) -> Stepper<B> {
    let blocks = CONTEXT / BLOCK_SIZE;
    let limits = StepLimits {
        tokens: 256,
        requests: 1,
        samples: 256,
        blocks_per_request: blocks,
        block_size: BLOCK_SIZE,
    };
    Stepper::with_head(
        backend.clone(),
        model,
        head,
        StepperConfig {
            limits,
            blocks,
            slots: 1,
        },
    )
    .unwrap()
}

/// Runs tokens from a position on and samples after the last `samples` of them.
pub fn step<B: Backend>(
    runner: &mut Stepper<B>,
    program: Program,
    tokens: &[TokenId],
    first_position: usize,
    samples: usize,
) {
    let blocks: Vec<u32> = (0..(CONTEXT / BLOCK_SIZE) as u32).rev().collect();
    let wanted: Vec<SampleRow> = (tokens.len() - samples..tokens.len())
        .map(|token| SampleRow {
            token,
            params: GREEDY,
        })
        .collect();
    let row = StepRow {
        slot: 0,
        tokens,
        first_position,
        blocks: &blocks,
        samples: &wanted,
    };
    runner.submit(program, &[row]).unwrap();
}

/// Logits of the last `last` positions of a prompt that is run in chunks.
pub fn prompt_logits<B: Backend>(
    runner: &mut Stepper<B>,
    prompt: &[TokenId],
    chunk: usize,
    last: usize,
) -> Vec<f32> {
    let first_wanted = prompt.len() - last.min(prompt.len());
    let mut logits = Vec::new();
    for start in (0..prompt.len()).step_by(chunk) {
        let tokens = &prompt[start..prompt.len().min(start + chunk)];
        let samples = (start + tokens.len()).saturating_sub(first_wanted.max(start));
        step(runner, Program::Model, tokens, start, samples);
        if samples > 0 {
            logits.extend(runner.logits().unwrap());
        }
    }
    logits
}

/// Continues a prompt greedily, token by token.
pub fn greedy<B: Backend>(runner: &mut Stepper<B>, prompt: &[TokenId], count: usize) -> Vec<TokenId> {
    let mut tokens = Vec::new();
    step(runner, Program::Model, prompt, 0, 1);
    while tokens.len() < count {
        let token = runner.sampled(1).unwrap()[0];
        tokens.push(token);
        step(
            runner,
            Program::Model,
            &[token],
            prompt.len() + tokens.len() - 1,
            1,
        );
    }
    tokens
}

/// Compares a greedy continuation with the reference up to the first position the reference was unsure of.
pub fn assert_greedy(found: &[TokenId], expected: &[TokenId], margins: &[f32], what: &str) {
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        if margins[index] < 1e-4 {
            return;
        }
        assert_eq!(found, expected, "{what}: token {index} of the continuation");
    }
}
