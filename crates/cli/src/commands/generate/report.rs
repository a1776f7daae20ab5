//! What is said about a generation when it is over.

use paceline_engine::{Outcome, Sampled};
use paceline_text::Tokenizer;
use paceline_types::{FinishReason, SamplingParams, TokenId, TokenLogprobs};
use serde::Serialize;
use std::time::Duration;

/// One generated token.
#[derive(Debug)]
pub(super) struct GeneratedToken {
    id: TokenId,
    logprobs: Option<TokenLogprobs>,
}

impl From<Sampled> for GeneratedToken {
    fn from(sampled: Sampled) -> Self {
        Self {
            id: sampled.token,
            logprobs: sampled.logprobs,
        }
    }
}

/// A finished generation.
pub(super) struct Report {
    pub(super) index: usize,
    pub(super) prompt_tokens: usize,
    pub(super) params: SamplingParams,
    pub(super) tokens: Vec<GeneratedToken>,
    pub(super) text: String,
    pub(super) outcome: Outcome,
    pub(super) load_time: Duration,
}

/// The object `--json` prints.
#[derive(Serialize)]
pub(super) struct JsonReport<'a> {
    index: usize,
    prompt_tokens: usize,
    token_ids: Vec<TokenId>,
    text: &'a str,
    finish_reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<JsonTokenLogprobs>>,
    seed: u64,
    timing: JsonTiming,
}

#[derive(Serialize)]
struct JsonTokenLogprobs {
    #[serde(flatten)]
    chosen: JsonLogprob,
    top: Vec<JsonLogprob>,
}

#[derive(Serialize)]
struct JsonLogprob {
    token_id: TokenId,
    token: Option<String>,
    logprob: f32,
}

#[derive(Serialize)]
struct JsonTiming {
    load_ms: f64,
    ttft_ms: f64,
    decode_tok_s: f64,
}

impl Report {
    /// For machines.
    pub(super) fn to_json(&self, tokenizer: Option<&Tokenizer>) -> JsonReport<'_> {
        let asked = self.params.logprobs.is_some();
        JsonReport {
            index: self.index,
            prompt_tokens: self.prompt_tokens,
            token_ids: self.tokens.iter().map(|token| token.id).collect(),
            // Ids printed in place of text are for people.
            text: tokenizer.map_or("", |_| self.text.as_str()),
            finish_reason: self.outcome.finish_reason.name(),
            logprobs: asked.then(|| self.logprobs(tokenizer)),
            seed: self.params.seed,
            timing: JsonTiming {
                load_ms: milliseconds(self.load_time),
                ttft_ms: milliseconds(self.outcome.time_to_first_token),
                decode_tok_s: round(self.outcome.decode_rate(), 100.0),
            },
        }
    }

    fn logprobs(&self, tokenizer: Option<&Tokenizer>) -> Vec<JsonTokenLogprobs> {
        let named = |token_id, logprob| JsonLogprob {
            token_id,
            token: token_text(tokenizer, token_id),
            logprob,
        };
        let entry = |token: &GeneratedToken| {
            let logprobs = token.logprobs.as_ref()?;
            Some(JsonTokenLogprobs {
                chosen: named(token.id, logprobs.chosen),
                top: logprobs
                    .top
                    .iter()
                    .map(|(id, logprob)| named(*id, *logprob))
                    .collect(),
            })
        };
        self.tokens.iter().filter_map(entry).collect()
    }

    /// The log-probabilities for people, one line per token.
    pub(super) fn logprob_lines(&self, tokenizer: Option<&Tokenizer>) -> Vec<String> {
        let show = |entry: &JsonLogprob| {
            let text = entry.token.as_ref().map(|text| format!(" {text:?}"));
            format!(
                "{}{} {:.3}",
                entry.token_id,
                text.unwrap_or_default(),
                entry.logprob
            )
        };
        let line = |entry: &JsonTokenLogprobs| {
            let top = entry.top.iter().map(show).collect::<Vec<_>>().join(", ");
            let top = if top.is_empty() {
                top
            } else {
                format!("  of  {top}")
            };
            format!("{}{top}", show(&entry.chosen))
        };
        self.logprobs(tokenizer).iter().map(line).collect()
    }

    /// The line that ends a run.
    pub(super) fn closing_line(&self) -> String {
        let Outcome {
            finish_reason,
            tokens,
            time_to_first_token,
            ..
        } = self.outcome;
        let ended = match finish_reason {
            FinishReason::Stop => "stopped",
            FinishReason::Length => "reached the limit",
            other => other.name(),
        };
        let choice = if self.params.temperature > 0.0 {
            format!("seed {}", self.params.seed)
        } else {
            "greedy".to_owned()
        };
        format!(
            "[{} prompt + {tokens} generated tokens, {:.1} tok/s, first token after {:.0} ms, load {:.0} ms, \
             {choice}, {ended}]",
            self.prompt_tokens,
            self.outcome.decode_rate(),
            milliseconds(time_to_first_token),
            milliseconds(self.load_time),
        )
    }
}

/// A token's own text; a token that is part of a character shows a replacement.
fn token_text(tokenizer: Option<&Tokenizer>, id: TokenId) -> Option<String> {
    let bytes = tokenizer?.token_bytes(id).ok()?;
    Some(String::from_utf8_lossy(bytes).into_owned())
}

fn milliseconds(time: Duration) -> f64 {
    round(time.as_secs_f64() * 1e3, 1000.0)
}

fn round(value: f64, parts: f64) -> f64 {
    (value * parts).round() / parts
}
