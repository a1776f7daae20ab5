//! What is said about a generation when it is over.

use super::prompts::Job;
use crate::format::{self, fact};
use paceline::{Request, Usage};
use paceline_bench::DraftFigures;
use paceline_text::Tokenizer;
use paceline_types::{FinishReason, TokenId, TokenLogprobs};
use serde::Serialize;
use std::time::Duration;

/// A continuation that has ended.
pub(super) struct Report<'a> {
    pub(super) job: &'a Job,
    pub(super) choice: usize,
    pub(super) tokens: &'a [TokenId],
    pub(super) logprobs: &'a [TokenLogprobs],
    /// Of the prompt's tokens from the second on; the first continuation has them for all.
    pub(super) prompt_logprobs: &'a [TokenLogprobs],
    pub(super) text: &'a str,
    pub(super) finish_reason: FinishReason,
    pub(super) usage: Usage,
    pub(super) load_time: Duration,
}

/// The object `--json` prints.
#[derive(Serialize)]
pub(super) struct JsonReport {
    index: usize,
    choice: usize,
    prompt_tokens: usize,
    token_ids: Vec<TokenId>,
    text: String,
    finish_reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<JsonTokenLogprobs>>,
    /// One per token of the prompt; nothing comes before the first, so it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<Vec<Option<JsonTokenLogprobs>>>,
    seed: u64,
    speculation: DraftFigures,
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

impl Report<'_> {
    /// What `--json` prints.
    pub(super) fn to_json(&self, tokenizer: Option<&Tokenizer>) -> JsonReport {
        let Request {
            sampling: params,
            prompt: tokens,
            ..
        } = &self.job.request;
        let prompt = params.prompt_logprobs.filter(|_| self.choice == 0);
        let prompt = prompt.map(|_| {
            let known = named(tokenizer, &tokens[1..], self.prompt_logprobs);
            [None].into_iter().chain(known.into_iter().map(Some)).collect()
        });
        JsonReport {
            index: self.job.index,
            choice: self.choice,
            prompt_tokens: tokens.len(),
            token_ids: self.tokens.to_vec(),
            // Ids printed in place of text are for people.
            text: tokenizer.map_or_else(String::new, |_| self.job.spelled(self.text)),
            finish_reason: self.finish_reason.name(),
            logprobs: params
                .logprobs
                .map(|_| named(tokenizer, self.tokens, self.logprobs)),
            prompt_logprobs: prompt,
            seed: params.seed,
            speculation: DraftFigures::from(&self.usage.speculation),
            timing: JsonTiming {
                load_ms: milliseconds(self.load_time),
                ttft_ms: milliseconds(self.usage.first_token),
                decode_tok_s: round(decode_rate(&self.usage), 100.0),
            },
        }
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
        let prompt = named(tokenizer, &self.job.request.prompt[1..], self.prompt_logprobs);
        let text = named(tokenizer, self.tokens, self.logprobs);
        prompt.iter().chain(&text).map(line).collect()
    }

    /// The line that ends a run, on a terminal of `width` columns.
    pub(super) fn closing_line(&self, width: Option<usize>) -> String {
        let ended = match self.finish_reason {
            FinishReason::Stop => "stopped",
            FinishReason::Length => "reached the limit",
            other => other.name(),
        };
        let params = &self.job.request.sampling;
        let choice = if params.temperature > 0.0 {
            format!("seed {}", params.seed)
        } else {
            "greedy".to_owned()
        };
        let drafts = DraftFigures::from(&self.usage.speculation);
        let per_step = drafts.mean_acceptance_length.filter(|_| drafts.drafted > 0);
        let tokens = format!(
            "{} prompt + {} generated tokens",
            self.job.request.prompt.len(),
            self.tokens.len()
        );
        let first = milliseconds(self.usage.first_token);
        let mut facts = vec![
            fact(0, tokens),
            fact(1, format!("{:.1} tok/s", decode_rate(&self.usage))),
        ];
        facts.extend(per_step.map(|length| fact(4, format!("{length:.2} tokens per step"))));
        facts.extend([
            fact(3, format!("first token after {first:.0} ms")),
            fact(5, format!("load {:.0} ms", milliseconds(self.load_time))),
            fact(2, choice),
            fact(1, ended),
        ]);
        format::status(&facts, width)
    }
}

/// Tokens per second after the first; 0 when there is only one.
fn decode_rate(usage: &Usage) -> f64 {
    let seconds = usage.total.saturating_sub(usage.first_token).as_secs_f64();
    if usage.completion_tokens < 2 || seconds <= 0.0 {
        0.0
    } else {
        (usage.completion_tokens - 1) as f64 / seconds
    }
}

/// Log-probabilities with the tokens they belong to.
fn named(
    tokenizer: Option<&Tokenizer>,
    tokens: &[TokenId],
    logprobs: &[TokenLogprobs],
) -> Vec<JsonTokenLogprobs> {
    let entry = |token_id, logprob| JsonLogprob {
        token_id,
        token: token_text(tokenizer, token_id),
        logprob,
    };
    let both = tokens.iter().zip(logprobs);
    both.map(|(id, logprobs)| JsonTokenLogprobs {
        chosen: entry(*id, logprobs.chosen),
        top: logprobs
            .top
            .iter()
            .map(|(id, logprob)| entry(*id, *logprob))
            .collect(),
    })
    .collect()
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
