//! The spans of one request: itself, and for every choice its time in the queue, its prefill and its decoding.

use super::context::{TraceContext, new_span_id};
use super::otlp::{KeyValue, Span, SpanKind, Status, StatusCode};
use paceline::{Finish, Usage};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Most choices of a request that have spans; one with more is a load test.
const MAX_CHOICES: usize = 32;

/// What is known of a request while it is served.
#[derive(Debug)]
pub(crate) struct RequestSpans {
    context: TraceContext,
    /// One moment by both clocks.
    start: (Instant, SystemTime),
    choices: Mutex<Vec<ChoiceTimes>>,
}

/// A choice that has ended.
#[derive(Clone, Copy, Debug)]
struct ChoiceTimes {
    choice: usize,
    /// When the engine took it.
    arrived: Instant,
    reason: &'static str,
    usage: Usage,
}

/// What a request came to.
pub(crate) struct Outcome<'a> {
    pub(crate) request_id: &'a str,
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) status: u16,
    pub(crate) model: &'a str,
    pub(crate) complete: bool,
}

impl RequestSpans {
    pub(crate) fn new(context: TraceContext) -> Self {
        Self {
            context,
            start: (Instant::now(), SystemTime::now()),
            choices: Mutex::default(),
        }
    }

    /// A choice that the engine took at `arrived` has ended.
    pub(crate) fn ended(&self, choice: usize, arrived: Instant, finish: &Finish) {
        let mut choices = self.choices.lock().unwrap_or_else(PoisonError::into_inner);
        if choices.len() < MAX_CHOICES {
            choices.push(ChoiceTimes {
                choice,
                arrived,
                reason: finish.reason.name(),
                usage: finish.usage,
            });
        }
    }

    /// The spans, once the reply is over.
    pub(crate) fn finish(&self, outcome: &Outcome<'_>) -> Vec<Span> {
        let mut spans = vec![self.request(outcome)];
        for choice in &*self.choices.lock().unwrap_or_else(PoisonError::into_inner) {
            spans.extend(self.choice(choice));
        }
        spans
    }

    fn request(&self, outcome: &Outcome<'_>) -> Span {
        let mut attributes = vec![
            KeyValue::new("http.request.method", outcome.method),
            KeyValue::new("url.path", outcome.path),
            KeyValue::new("http.response.status_code", usize::from(outcome.status)),
            KeyValue::new("gen_ai.request.model", outcome.model),
            KeyValue::new("gen_ai.request.id", outcome.request_id),
        ];
        if !outcome.complete {
            attributes.push(KeyValue::new("paceline.incomplete", "the client has left"));
        }
        let failed = outcome.status >= 500;
        Span {
            id: self.context.span_id.to_be_bytes().to_vec(),
            parent_span_id: self
                .context
                .parent
                .map(|id| id.to_be_bytes().to_vec())
                .unwrap_or_default(),
            kind: SpanKind::Server.into(),
            status: failed.then(|| Status {
                message: String::new(),
                code: StatusCode::Error.into(),
            }),
            ..self.span(
                &format!("{} {}", outcome.method, outcome.path),
                (self.start.0, Instant::now()),
                attributes,
            )
        }
    }

    fn choice(&self, times: &ChoiceTimes) -> [Span; 3] {
        let usage = &times.usage;
        let at = |after: Duration| times.arrived + after;
        let speculation = &usage.speculation;
        let choice = || KeyValue::new("paceline.choice", times.choice);
        let queue = vec![choice()];
        let prefill = vec![
            choice(),
            KeyValue::new("gen_ai.usage.input_tokens", usage.prompt_tokens),
            KeyValue::new("gen_ai.usage.cached_input_tokens", usage.cached_tokens),
        ];
        let decode = vec![
            choice(),
            KeyValue::new("gen_ai.usage.output_tokens", usage.completion_tokens),
            KeyValue::new("gen_ai.response.finish_reason", times.reason),
            KeyValue::new("paceline.speculation.steps", speculation.steps as usize),
            KeyValue::new(
                "paceline.speculation.drafted_tokens",
                speculation.drafted as usize,
            ),
            KeyValue::new(
                "paceline.speculation.accepted_tokens",
                speculation.accepted as usize,
            ),
        ];
        let first = usage.first_token.max(usage.queued);
        [
            ("queue", (Duration::ZERO, usage.queued), queue),
            ("prefill", (usage.queued, first), prefill),
            ("decode", (first, usage.total.max(first)), decode),
        ]
        .map(|(name, (from, to), attributes)| Span {
            id: new_span_id().to_be_bytes().to_vec(),
            parent_span_id: self.context.span_id.to_be_bytes().to_vec(),
            kind: SpanKind::Internal.into(),
            ..self.span(name, (at(from), at(to)), attributes)
        })
    }

    fn span(&self, name: &str, (from, to): (Instant, Instant), attributes: Vec<KeyValue>) -> Span {
        Span {
            trace_id: self.context.trace_id.to_be_bytes().to_vec(),
            trace_state: self.context.state.clone(),
            name: name.to_owned(),
            start_time_unix_nano: self.unix_nano(from),
            end_time_unix_nano: self.unix_nano(to),
            attributes,
            ..Span::default()
        }
    }

    fn unix_nano(&self, moment: Instant) -> u64 {
        let time = self.start.1 + moment.saturating_duration_since(self.start.0);
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }
}
