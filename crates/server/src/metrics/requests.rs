//! What is counted of requests, where their outputs pass. Every choice counts as a request.

use paceline_types::FinishReason;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bounds of vLLM.
const FIRST_TOKEN: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];

/// Bounds of vLLM, and below them some for small models.
const BETWEEN_TOKENS: [f64; 23] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];

/// Bounds of vLLM, and below them some for small models.
const WHOLE: [f64; 28] = [
    0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0,
    40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
];

/// How requests end, in the words of vLLM, and by a deadline, which only we have.
const ABORT: &str = "abort";
const ERROR: &str = "error";
const REASONS: [&str; 6] = ["stop", "length", "deadline", "moved", ABORT, ERROR];

type ReasonLabel = [(&'static str, &'static str); 1];

/// What is counted of requests.
#[derive(Clone)]
pub(crate) struct RequestMetrics(Arc<Families>);

struct Families {
    prompt_tokens: Counter,
    generation_tokens: Counter,
    finished: Family<ReasonLabel, Counter>,
    first_token: Histogram,
    between_tokens: Histogram,
    per_output_token: Histogram,
    whole: Histogram,
    decode: Histogram,
    request_prompt_tokens: Histogram,
    request_generation_tokens: Histogram,
}

impl RequestMetrics {
    pub(super) fn register(registry: &mut Registry, max_model_len: usize) -> Self {
        let lengths = || Histogram::new(one_two_five(max_model_len));
        let families = Families {
            prompt_tokens: Counter::default(),
            generation_tokens: Counter::default(),
            finished: Family::default(),
            first_token: Histogram::new(FIRST_TOKEN),
            between_tokens: Histogram::new(BETWEEN_TOKENS),
            per_output_token: Histogram::new(BETWEEN_TOKENS),
            whole: Histogram::new(WHOLE),
            decode: Histogram::new(WHOLE),
            request_prompt_tokens: lengths(),
            request_generation_tokens: lengths(),
        };
        for reason in REASONS {
            drop(families.finished.get_or_create(&label(reason)));
        }
        families.register_counters(registry);
        families.register_histograms(registry);
        Self(Arc::new(families))
    }

    /// One choice of a request begins. `leads`: it is the one that the prompt counts for.
    pub(crate) fn choice(&self, prompt_tokens: usize, leads: bool) -> ChoiceMetrics {
        ChoiceMetrics {
            families: Arc::clone(&self.0),
            prompt_tokens,
            leads,
            begun: Instant::now(),
            first: None,
            last: None,
            tokens: 0,
            open: true,
        }
    }
}

impl Families {
    fn register_counters(&self, registry: &mut Registry) {
        registry.register(
            "vllm:prompt_tokens",
            "Tokens of prompts that were taken in; a prompt counts once, when its first token is generated",
            self.prompt_tokens.clone(),
        );
        registry.register(
            "vllm:generation_tokens",
            "Tokens generated, as replies report them",
            self.generation_tokens.clone(),
        );
        registry.register(
            "vllm:request_success",
            "Requests that ended, by reason; abort: the client left or the server went down; moved: it goes on elsewhere",
            self.finished.clone(),
        );
    }

    fn register_histograms(&self, registry: &mut Registry) {
        // The old name of the time between tokens is what dashboards of earlier versions of vLLM ask for.
        let (between, per_token) = (&self.between_tokens, &self.per_output_token);
        for (name, help, histogram) in [
            (
                "time_to_first_token_seconds",
                "Time from a request's arrival to its first token",
                &self.first_token,
            ),
            (
                "inter_token_latency_seconds",
                "Time between request_outputs of new tokens; with drafts, of several at a time",
                between,
            ),
            (
                "time_per_output_token_seconds",
                "The same under its earlier name",
                between,
            ),
            (
                "request_time_per_output_token_seconds",
                "Mean time per token after the first, by request",
                per_token,
            ),
            (
                "e2e_request_latency_seconds",
                "Time from a request's arrival to its end",
                &self.whole,
            ),
            (
                "request_decode_time_seconds",
                "Time from a request's first token to its end",
                &self.decode,
            ),
            (
                "request_prompt_tokens",
                "Tokens of a request's prompt",
                &self.request_prompt_tokens,
            ),
            (
                "request_generation_tokens",
                "Tokens generated for a request",
                &self.request_generation_tokens,
            ),
        ] {
            registry.register(format!("vllm:{name}"), help, histogram.clone());
        }
    }
}

/// What is counted of one choice. If it is dropped before its end, the client has left.
pub(crate) struct ChoiceMetrics {
    families: Arc<Families>,
    prompt_tokens: usize,
    leads: bool,
    begun: Instant,
    first: Option<Instant>,
    last: Option<Instant>,
    tokens: usize,
    open: bool,
}

impl ChoiceMetrics {
    /// Takes note of `so_far` tokens.
    pub(crate) fn tokens(&mut self, so_far: usize) {
        let (now, families) = (Instant::now(), &self.families);
        families
            .generation_tokens
            .inc_by(so_far.saturating_sub(self.tokens) as u64);
        self.tokens = so_far;
        if let Some(last) = self.last {
            families.between_tokens.observe(seconds(now - last));
        } else {
            self.first = Some(now);
            families.first_token.observe(seconds(now - self.begun));
            self.take_prompt();
        }
        self.last = Some(now);
    }

    /// It ended. One that was cut off tells nothing about times and lengths.
    pub(crate) fn end(&mut self, reason: FinishReason) {
        if matches!(reason, FinishReason::Cancelled | FinishReason::Moved) {
            self.close(if reason == FinishReason::Moved {
                reason.name()
            } else {
                ABORT
            });
            return;
        }
        if !self.close(reason.name()) {
            return;
        }
        let now = Instant::now();
        // A stop token may come first and shows nowhere; a deadline may come before anything was run.
        if reason != FinishReason::Deadline {
            self.take_prompt();
        }
        let decode = self.first.map_or(Duration::ZERO, |first| now - first);
        let families = &self.families;
        families.whole.observe(seconds(now - self.begun));
        families.decode.observe(seconds(decode));
        families.request_prompt_tokens.observe(self.prompt_tokens as f64);
        families.request_generation_tokens.observe(self.tokens as f64);
        if self.tokens > 1 {
            let rest = (self.tokens - 1) as f64;
            families.per_output_token.observe(seconds(decode) / rest);
        }
    }

    /// The engine failed.
    pub(crate) fn fail(&mut self) {
        self.close(ERROR);
    }

    /// Counts the ending, the first time; whether it was that.
    fn close(&mut self, reason: &'static str) -> bool {
        let open = std::mem::take(&mut self.open);
        if open {
            self.families.finished.get_or_create(&label(reason)).inc();
        }
        open
    }

    fn take_prompt(&mut self) {
        if std::mem::take(&mut self.leads) {
            self.families.prompt_tokens.inc_by(self.prompt_tokens as u64);
        }
    }
}

impl Drop for ChoiceMetrics {
    fn drop(&mut self) {
        self.close(ABORT);
    }
}

fn label(reason: &'static str) -> ReasonLabel {
    [("finished_reason", reason)]
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

/// 1, 2, 5, 10, ... up to `most`.
fn one_two_five(most: usize) -> impl Iterator<Item = f64> {
    let powers = std::iter::successors(Some(1usize), |power| power.checked_mul(10));
    let bounds = powers.flat_map(|power| [1, 2, 5].map(|times| power.checked_mul(times)));
    let bounds = bounds.flatten();
    bounds
        .take_while(move |bound| *bound <= most)
        .map(|bound| bound as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_counted_in_steps_of_one_two_five() {
        let bounds: Vec<f64> = one_two_five(100).collect();
        assert_eq!(bounds, [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert_eq!(one_two_five(usize::MAX).last(), Some(1e19));
    }

    #[test]
    fn every_choice_ends_once() {
        let mut registry = Registry::default();
        let metrics = RequestMetrics::register(&mut registry, 100);
        let count = |reason| metrics.0.finished.get_or_create(&label(reason)).get();
        let mut ended = metrics.choice(5, true);
        ended.tokens(1);
        ended.tokens(3);
        ended.end(FinishReason::Stop);
        ended.end(FinishReason::Length);
        ended.fail();
        drop(ended);
        drop(metrics.choice(7, true));
        let mut failed = metrics.choice(5, false);
        failed.fail();
        drop(failed);
        assert_eq!(REASONS.map(count), [1, 0, 0, 0, 1, 1]);
        assert_eq!(metrics.0.generation_tokens.get(), 3);
        assert_eq!(metrics.0.prompt_tokens.get(), 5);
    }
}
