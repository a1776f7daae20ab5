//! A request's line in the log, written when its reply is over: with the last byte of it, not with the first.

use crate::generation::Finish;
use crate::traces::{Outcome, RequestSpans};
use axum::http::Method;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// What a request takes, counted where its outputs pass.
#[derive(Debug, Default)]
pub(crate) struct RequestUsage {
    prompt_tokens: AtomicUsize,
    cached_tokens: AtomicUsize,
    completion_tokens: AtomicUsize,
    /// Microseconds to the first token of any choice; 0 while there is none.
    first_token_us: AtomicU64,
    /// Why a choice ended before it was complete, if one did.
    cut_short: OnceLock<String>,
    /// Its spans, if it has any.
    pub(crate) spans: Option<RequestSpans>,
}

impl RequestUsage {
    /// Of a request with these spans.
    pub(crate) fn new(spans: Option<RequestSpans>) -> Self {
        Self {
            spans,
            ..Self::default()
        }
    }

    /// A choice that was handed to the engine at `arrived` has ended.
    pub(crate) fn ended(&self, choice: usize, arrived: Instant, finish: &Finish) {
        if let Some(spans) = &self.spans {
            spans.ended(choice, arrived, finish);
        }
    }

    /// A prompt was handed to the engine.
    pub(crate) fn prompt(&self, tokens: usize) {
        self.prompt_tokens.fetch_add(tokens, Ordering::Relaxed);
    }

    /// Some of the prompt's tokens were in the prefix cache.
    pub(crate) fn cached(&self, tokens: usize) {
        self.cached_tokens.fetch_add(tokens, Ordering::Relaxed);
    }

    /// A choice ended for this reason before it was complete. The first is kept.
    pub(crate) fn cut_short(&self, reason: &str) {
        let _ = self.cut_short.set(reason.to_owned());
    }

    /// How long after it was handed in its first token came, once it has.
    pub(crate) fn first_token(&self) -> Option<Duration> {
        let first = self.first_token_us.load(Ordering::Relaxed);
        (first > 0).then(|| Duration::from_micros(first))
    }

    /// More tokens of a choice, so long after the request was handed in.
    pub(crate) fn tokens(&self, tokens: usize, elapsed: Duration) {
        self.completion_tokens.fetch_add(tokens, Ordering::Relaxed);
        let first = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX).max(1);
        let _ = self
            .first_token_us
            .compare_exchange(0, first, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// The line of a request.
pub(crate) struct RequestLine {
    pub(crate) request_id: String,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) status: u16,
    /// Why it was refused.
    pub(crate) reason: Option<String>,
    pub(crate) start: Instant,
    pub(crate) usage: Arc<RequestUsage>,
}

impl RequestLine {
    /// What its spans say of it.
    pub(crate) fn outcome<'a>(&'a self, model: &'a str, complete: bool) -> Outcome<'a> {
        Outcome {
            request_id: &self.request_id,
            method: self.method.as_str(),
            path: &self.path,
            status: self.status,
            model,
            complete,
        }
    }

    /// Writes it. `complete`: the client has taken all of the reply.
    pub(crate) fn write(&self, complete: bool) {
        let ms = |micros: f64| micros.round() / 1e3;
        let count = |tokens: &AtomicUsize| tokens.load(Ordering::Relaxed);
        let prompt_tokens = count(&self.usage.prompt_tokens);
        // Requests that have nothing to do with tokens do not say so.
        let of_engine = |tokens: usize| (prompt_tokens > 0).then_some(tokens);
        let first_token = self.usage.first_token_us.load(Ordering::Relaxed);
        // A text from outside is logged as text, which both formats quote, so it cannot fake a line.
        tracing::info!(
            id = self.request_id.as_str(),
            method = %self.method,
            path = self.path.as_str(),
            status = self.status,
            ms = ms(self.start.elapsed().as_micros() as f64),
            first_token_ms = (first_token > 0).then(|| ms(first_token as f64)),
            prompt_tokens = of_engine(prompt_tokens),
            cached_tokens = of_engine(count(&self.usage.cached_tokens)),
            completion_tokens = of_engine(count(&self.usage.completion_tokens)),
            incomplete = (!complete).then_some(true),
            reason = self.reason.as_ref().or(self.usage.cut_short.get()).map(String::as_str),
            "request"
        );
    }
}
