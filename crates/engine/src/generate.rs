//! Generation for one request: the prompt in chunks, then token by token.

use crate::runner::{Program, Runner, RunnerConfig, SampleRow, StepRow};
use crate::{EngineError, validate};
use paceline_device::{Backend, SamplingRow, StepLimits};
use paceline_models::Decoder;
use paceline_types::{FinishReason, SamplingParams, TokenId, TokenLogprobs};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Tokens of a page.
const BLOCK_SIZE: usize = 16;

/// How a generator is set up.
#[derive(Clone, Copy, Debug)]
pub struct GeneratorConfig {
    /// Longest sequence, prompt included.
    pub context: usize,
    /// Prompt tokens per step.
    pub chunk: usize,
}

/// A token that was chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: TokenId,
    /// Its log-probabilities, if asked for.
    pub logprobs: Option<TokenLogprobs>,
}

/// How a generation went.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Tokens generated, a final stop token not counted.
    pub tokens: usize,
    /// From the call to the first token.
    pub time_to_first_token: Duration,
    /// From the first token to the last.
    pub decode_time: Duration,
}

impl Outcome {
    /// Tokens per second after the first; 0 when there is only one.
    pub fn decode_rate(&self) -> f64 {
        let seconds = self.decode_time.as_secs_f64();
        if self.tokens < 2 || seconds <= 0.0 {
            0.0
        } else {
            (self.tokens - 1) as f64 / seconds
        }
    }
}

/// Generates for one request at a time.
pub struct Generator<B: Backend> {
    runner: Runner<B>,
    context: usize,
    chunk: usize,
    blocks: Vec<u32>,
}

impl<B: Backend> Generator<B> {
    /// A generator for sequences up to `config.context`, which is cut to what the model allows.
    pub fn new(backend: B, model: Decoder<B>, config: GeneratorConfig) -> Result<Self, EngineError> {
        let context = config.context.min(model.dims.max_positions).max(1);
        let chunk = config.chunk.clamp(1, context);
        let blocks = context.div_ceil(BLOCK_SIZE);
        let limits = StepLimits {
            tokens: chunk,
            requests: 1,
            samples: 1,
            blocks_per_request: blocks,
            block_size: BLOCK_SIZE,
        };
        let runner = Runner::new(
            backend,
            model,
            RunnerConfig {
                limits,
                blocks,
                slots: 1,
            },
        )?;
        Ok(Self {
            runner,
            context,
            chunk,
            blocks: (0..blocks as u32).collect(),
        })
    }

    /// The model.
    pub fn model(&self) -> &Decoder<B> {
        self.runner.model()
    }

    /// Longest sequence, prompt included.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Continues `prompt`. Each token but a final stop token is handed to `on_token`, which may end the
    /// generation.
    pub fn generate(
        &mut self,
        prompt: &[TokenId],
        params: &SamplingParams,
        mut on_token: impl FnMut(Sampled) -> ControlFlow<FinishReason>,
    ) -> Result<Outcome, EngineError> {
        validate::sampling(params)?;
        validate::prompt(prompt, self.model().dims.vocabulary, self.context)?;
        let start = Instant::now();
        let limit = params.max_tokens.min(self.context - prompt.len());
        let mut last = self.prefill(prompt, params)?;
        let first_token = start.elapsed();
        let mut tokens = 0;
        let finish_reason = loop {
            if self.is_stop(last.token, params) {
                break FinishReason::Stop;
            }
            let token = last.token;
            tokens += 1;
            if let ControlFlow::Break(reason) = on_token(last) {
                break reason;
            }
            if tokens == limit {
                break FinishReason::Length;
            }
            last = self.step(&[token], prompt.len() + tokens - 1, Some(params))?;
        };
        let decode_time = start.elapsed().saturating_sub(first_token);
        Ok(Outcome {
            finish_reason,
            tokens,
            time_to_first_token: first_token,
            decode_time,
        })
    }

    /// Runs the prompt and returns the token that follows it.
    fn prefill(&mut self, prompt: &[TokenId], params: &SamplingParams) -> Result<Sampled, EngineError> {
        let (body, tail) = prompt.split_at((prompt.len() - 1) / self.chunk * self.chunk);
        for (index, chunk) in body.chunks(self.chunk).enumerate() {
            self.submit(chunk, index * self.chunk, None)?;
        }
        self.step(tail, body.len(), Some(params))
    }

    fn step(
        &mut self,
        tokens: &[TokenId],
        position: usize,
        params: Option<&SamplingParams>,
    ) -> Result<Sampled, EngineError> {
        self.submit(tokens, position, params)?;
        let token = self.runner.sampled(1)?[0];
        let asked = params.and_then(|params| params.logprobs);
        let logprobs = asked.map(|count| self.runner.logprobs(&[count])).transpose()?;
        Ok(Sampled {
            token,
            logprobs: logprobs.and_then(|mut rows| rows.pop()),
        })
    }

    fn submit(
        &mut self,
        tokens: &[TokenId],
        first_position: usize,
        params: Option<&SamplingParams>,
    ) -> Result<(), EngineError> {
        let sample = params.map(|params| SampleRow {
            token: tokens.len() - 1,
            params: device_row(params),
        });
        let blocks = &self.blocks;
        let row = StepRow {
            slot: 0,
            tokens,
            first_position,
            blocks,
            samples: sample.as_slice(),
        };
        self.runner.submit(Program::Model, &[row])
    }

    fn is_stop(&self, token: TokenId, params: &SamplingParams) -> bool {
        !params.ignore_eos && self.model().dims.eos.contains(&token)
    }
}

fn device_row(params: &SamplingParams) -> SamplingRow {
    SamplingRow {
        temperature: params.temperature,
        top_p: params.top_p,
        top_k: params.top_k,
        min_p: params.min_p,
        seed: params.seed,
        logprobs: params.logprobs.map_or(-1, |count| count as i32),
    }
}
