//! Prompts through a [`Stepper`], one request at a time, in any division into steps.

use crate::{DraftReference, Program, SampleRow, StepRow, Stepper, StepperConfig};
use paceline_device::abi::{SamplingRow, Wide};
use paceline_device::{Backend, DeviceError, StepLimits};
use paceline_models::{Decoder, DraftHead, ModelError};
use paceline_types::TokenId;
use std::ops::Deref;

/// Greedy, without log-probabilities.
pub const GREEDY: SamplingRow = SamplingRow {
    temperature: 0.0,
    top_p: 1.0,
    top_k: 0,
    min_p: 0.0,
    seed: Wide { low: 0, high: 0 },
    logprobs: -1,
};

/// Longest sequence.
const CONTEXT: usize = 512;
const BLOCK_SIZE: usize = 16;

/// One request with steps of up to 256 tokens, all of which may be sampled.
pub struct Solo<B: Backend> {
    stepper: Stepper<B>,
}

impl<B: Backend> Deref for Solo<B> {
    type Target = Stepper<B>;

    fn deref(&self) -> &Stepper<B> {
        &self.stepper
    }
}

impl<B: Backend> Solo<B> {
    /// For a model, and a draft head other than its own if one is given.
    pub fn new(
        backend: &B,
        model: Decoder<B>,
        head: Option<Box<dyn DraftHead<B>>>,
    ) -> Result<Self, ModelError> {
        let blocks = CONTEXT / BLOCK_SIZE;
        let limits = StepLimits {
            tokens: 256,
            requests: 1,
            samples: 256,
            blocks_per_request: blocks,
            block_size: BLOCK_SIZE,
        };
        let config = StepperConfig {
            limits,
            blocks,
            slots: 1,
        };
        let stepper = Stepper::with_head(backend.clone(), model, head, config)?;
        Ok(Self { stepper })
    }

    /// Runs tokens from a position on and samples after the last `samples` of them.
    pub fn step(
        &mut self,
        program: Program,
        tokens: &[TokenId],
        first_position: usize,
        samples: usize,
    ) -> Result<(), DeviceError> {
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
        self.stepper.submit(program, &[row])
    }

    /// Logits of the last `last` positions of a prompt that is run in chunks.
    pub fn prompt_logits(
        &mut self,
        prompt: &[TokenId],
        chunk: usize,
        last: usize,
    ) -> Result<Vec<f32>, DeviceError> {
        let first_wanted = prompt.len() - last.min(prompt.len());
        let mut logits = Vec::new();
        for start in (0..prompt.len()).step_by(chunk) {
            let tokens = &prompt[start..prompt.len().min(start + chunk)];
            let samples = (start + tokens.len()).saturating_sub(first_wanted.max(start));
            self.step(Program::Model, tokens, start, samples)?;
            if samples > 0 {
                logits.extend(self.stepper.logits()?);
            }
        }
        Ok(logits)
    }

    /// Continues a prompt greedily, token by token.
    pub fn greedy(&mut self, prompt: &[TokenId], count: usize) -> Result<Vec<TokenId>, DeviceError> {
        let mut tokens = Vec::new();
        self.step(Program::Model, prompt, 0, 1)?;
        while tokens.len() < count {
            let token = self.stepper.sampled(1)?[0];
            tokens.push(token);
            let position = prompt.len() + tokens.len() - 1;
            self.step(Program::Model, &[token], position, 1)?;
        }
        Ok(tokens)
    }

    /// Logits of the draft head over all but the first of a prompt's tokens.
    pub fn head_logits(&mut self, prompt: &[TokenId]) -> Result<Vec<f32>, DeviceError> {
        let followers = &prompt[1..];
        self.step(Program::Model, &prompt[..followers.len()], 0, 0)?;
        self.step(Program::Draft, followers, 0, followers.len())?;
        self.stepper.logits()
    }

    /// The chain of drafts at every position of a reference's continuation. The head drafts from the true prefix: its
    /// first draft from the model's hidden state, the next ones from its own. Its cache holds approximations behind the
    /// true prefix, overwritten as the prefix grows.
    pub fn draft_chains(&mut self, case: &DraftReference) -> Result<Vec<Vec<TokenId>>, DeviceError> {
        let text = [case.prompt_ids.as_slice(), &case.greedy].concat();
        let start = case.prompt_ids.len();
        self.step(Program::Model, &text[..start - 1], 0, 0)?;
        self.step(Program::Draft, &text[1..start], 0, 0)?;
        let mut chains = Vec::new();
        for (index, expected) in case.mtp_drafts.iter().enumerate() {
            let position = start - 1 + index;
            self.step(Program::Model, &text[position..=position], position, 0)?;
            self.step(Program::Draft, &text[position + 1..=position + 1], position, 1)?;
            let mut chain = vec![self.stepper.sampled(1)?[0]];
            while chain.len() < expected.len() {
                let last = chain[chain.len() - 1];
                self.step(Program::DraftAgain, &[last], position + chain.len(), 1)?;
                chain.push(self.stepper.sampled(1)?[0]);
            }
            chains.push(chain);
        }
        Ok(chains)
    }

    /// Runs a prompt through model and head, which is left at the prompt's last token. Samples the last `samples` rows.
    pub fn prompt_with_head(
        &mut self,
        prompt: &[TokenId],
        chunk: usize,
        samples: usize,
    ) -> Result<(), DeviceError> {
        let last = prompt.len() - 1;
        for start in (0..last).step_by(chunk) {
            let end = last.min(start + chunk);
            self.step(Program::Model, &prompt[start..end], start, 0)?;
            let samples = if end == last { samples.min(end - start) } else { 0 };
            self.step(Program::Draft, &prompt[start + 1..=end], start, samples)?;
        }
        Ok(())
    }

    /// Greedy drafts behind a prompt, the first from the model's states and the others from the head's, and their logits.
    pub fn chain(
        &mut self,
        prompt: &[TokenId],
        length: usize,
    ) -> Result<(Vec<TokenId>, Vec<f32>), DeviceError> {
        // The last row in a step of its own, as the next pass takes its state from row 0.
        self.prompt_with_head(prompt, prompt.len() - 2, 1)?;
        let (mut chain, mut logits) = (self.stepper.sampled(1)?, self.stepper.logits()?);
        while chain.len() < length {
            let position = prompt.len() - 2 + chain.len();
            let last = chain[chain.len() - 1];
            self.step(Program::DraftAgain, &[last], position, 1)?;
            chain.extend(self.stepper.sampled(1)?);
            logits.extend(self.stepper.logits()?);
        }
        Ok((chain, logits))
    }
}

/// The first token of a greedy continuation that is not the reference's, up to the first that the reference was unsure of.
pub fn greedy_difference(found: &[TokenId], expected: &[TokenId], margins: &[f32]) -> Option<usize> {
    let sure = margins.iter().take_while(|margin| **margin >= 1e-4).count();
    let pairs = found.iter().zip(expected).take(sure);
    pairs
        .enumerate()
        .find(|(_, (a, b))| a != b)
        .map(|(index, _)| index)
}
