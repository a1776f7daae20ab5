//! Replies of `/completion`, whole and in pieces.

use crate::error::ApiError;
use crate::generation::{Collected, Finish, Output, Piece};
use crate::interface;
use crate::model::ServedModel;
use crate::openai::error_body;
use crate::sse::{Encoder, Frames};
use paceline_types::{FinishReason, TokenId};
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// A reply, or a piece of one.
#[derive(Debug, Serialize)]
pub(crate) struct Reply {
    index: usize,
    content: String,
    tokens: Vec<TokenId>,
    stop: bool,
    id_slot: i32,
    tokens_predicted: usize,
    tokens_evaluated: usize,
    #[serde(flatten)]
    end: Option<End>,
}

/// What only the last piece has.
#[derive(Debug, Serialize)]
struct End {
    model: String,
    prompt: String,
    truncated: bool,
    stop_type: &'static str,
    stopping_word: String,
    tokens_cached: usize,
    generation_settings: Value,
    timings: Timings,
}

#[derive(Debug, Serialize)]
struct Timings {
    cache_n: usize,
    prompt_n: usize,
    prompt_ms: f64,
    prompt_per_token_ms: f64,
    prompt_per_second: f64,
    predicted_n: usize,
    predicted_ms: f64,
    predicted_per_token_ms: f64,
    predicted_per_second: f64,
}

/// What replies to one request have in common.
pub(crate) struct Writer {
    pub(super) model: String,
    pub(super) prompt: Arc<[TokenId]>,
    pub(super) served: Arc<ServedModel>,
    pub(super) max_tokens: usize,
}

impl Writer {
    fn reply(&self, piece: Piece, predicted: usize, finish: Option<&Finish>) -> Reply {
        Reply {
            index: 0,
            content: piece.text,
            tokens: piece.tokens.iter().map(|token| token.id).collect(),
            stop: finish.is_some(),
            id_slot: -1,
            tokens_predicted: predicted,
            tokens_evaluated: self.prompt.len(),
            end: finish.map(|finish| self.end(finish)),
        }
    }

    fn end(&self, finish: &Finish) -> End {
        let usage = &finish.usage;
        let stop_type = match finish.reason {
            FinishReason::Stop if finish.stop.is_some() => "word",
            FinishReason::Stop => "eos",
            FinishReason::Length => "limit",
            _ => "none",
        };
        let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        let per = |whole: f64, count: usize| whole / (count.max(1) as f64);
        let rate = |count: usize, ms: f64| if ms > 0.0 { count as f64 * 1e3 / ms } else { 0.0 };
        let (prompt_n, predicted_n) = (
            self.prompt.len() - usage.cached_tokens.min(self.prompt.len()),
            usage.completion_tokens,
        );
        let prompt_ms = ms(usage.first_token);
        let predicted_ms = ms(usage.total.saturating_sub(usage.first_token));
        End {
            model: self.model.clone(),
            prompt: self.served.decode(&self.prompt, false),
            truncated: false,
            stop_type,
            stopping_word: finish.stop.clone().unwrap_or_default(),
            tokens_cached: usage.cached_tokens,
            generation_settings: json!({ "n_predict": self.max_tokens, "n_ctx": self.served.max_model_len }),
            timings: Timings {
                cache_n: usage.cached_tokens,
                prompt_n,
                prompt_ms,
                prompt_per_token_ms: per(prompt_ms, prompt_n),
                prompt_per_second: rate(prompt_n, prompt_ms),
                predicted_n,
                predicted_ms,
                predicted_per_token_ms: per(predicted_ms, predicted_n),
                predicted_per_second: rate(predicted_n, predicted_ms),
            },
        }
    }
}

impl interface::Writer for Writer {
    type Encoder = Pieces;
    type Reply = Reply;

    fn stream(self) -> Pieces {
        Pieces {
            writer: self,
            predicted: 0,
        }
    }

    fn whole(self, collected: Collected) -> Reply {
        let completion = collected.first();
        let predicted = completion
            .finish
            .as_ref()
            .map_or(0, |finish| finish.usage.completion_tokens);
        self.reply(completion.whole, predicted, completion.finish.as_ref())
    }
}

/// Writes a text as it comes.
pub(crate) struct Pieces {
    writer: Writer,
    predicted: usize,
}

impl Encoder for Pieces {
    fn start(&mut self, _: &mut Frames) {}

    fn output(&mut self, output: Output, frames: &mut Frames) {
        match output {
            Output::Prompt { .. } => {}
            Output::Delta { output, .. } => {
                self.predicted += output.tokens.len();
                frames.json(&self.writer.reply(output, self.predicted, None));
            }
            Output::Finished { finish, .. } => {
                let predicted = finish.usage.completion_tokens;
                frames.json(&self.writer.reply(Piece::default(), predicted, Some(&finish)));
            }
            Output::Failed(failure) => frames.json(&error_body(&ApiError::failed(&failure)).0),
        }
    }

    fn end(&mut self, _: &mut Frames) {}
}
