//! Runs prompts through a [`Solo`] in any division into steps.

#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "shared by several test programs"
)]

use paceline_device::Backend;
use paceline_device_cpu::{Cpu, CpuOptions, Instructions};
use paceline_models::{Decoder, DraftHead, Eagle3};
use paceline_testkit::{Program, Solo, greedy_difference};
use paceline_types::TokenId;
use paceline_weights::Checkpoint;

/// A CPU with this many threads.
pub fn cpu(threads: usize, instructions: Instructions) -> Cpu {
    Cpu::new(CpuOptions {
        threads,
        instructions,
    })
}

/// A runner for one request with steps of up to 256 tokens, all of which may be sampled.
pub fn runner<B: Backend>(backend: &B, checkpoint: &Checkpoint) -> Solo<B> {
    let model = paceline_models::load(backend, checkpoint, None, &|_| {}).unwrap_or_else(|e| panic!("{e}"));
    runner_with(backend, model, None)
}

/// The same with an EAGLE-3 head.
pub fn runner_with_head<B: Backend>(backend: &B, checkpoint: &Checkpoint, head: &Checkpoint) -> Solo<B> {
    let model = paceline_models::load(backend, checkpoint, None, &|_| {}).unwrap_or_else(|e| panic!("{e}"));
    let head = Eagle3::load(backend, head, &model, None, &|_| {}).unwrap_or_else(|e| panic!("{e}"));
    runner_with(backend, model, Some(Box::new(head)))
}

/// The same with a loaded model and head.
pub fn runner_with<B: Backend>(
    backend: &B,
    model: Decoder<B>,
    head: Option<Box<dyn DraftHead<B>>>,
) -> Solo<B> {
    Solo::new(backend, model, head).unwrap()
}

/// Runs tokens from a position on and samples after the last `samples` of them.
pub fn step<B: Backend>(
    runner: &mut Solo<B>,
    program: Program,
    tokens: &[TokenId],
    first_position: usize,
    samples: usize,
) {
    runner.step(program, tokens, first_position, samples).unwrap();
}

/// Logits of the last `last` positions of a prompt that is run in chunks.
pub fn prompt_logits<B: Backend>(
    runner: &mut Solo<B>,
    prompt: &[TokenId],
    chunk: usize,
    last: usize,
) -> Vec<f32> {
    runner.prompt_logits(prompt, chunk, last).unwrap()
}

/// Continues a prompt greedily, token by token.
pub fn greedy<B: Backend>(runner: &mut Solo<B>, prompt: &[TokenId], count: usize) -> Vec<TokenId> {
    runner.greedy(prompt, count).unwrap()
}

/// Compares a greedy continuation with the reference up to the first position the reference was unsure of.
pub fn assert_greedy(found: &[TokenId], expected: &[TokenId], margins: &[f32], what: &str) {
    let difference = greedy_difference(found, expected, margins);
    assert_eq!(difference, None, "{what}: {found:?} for {expected:?}");
}
