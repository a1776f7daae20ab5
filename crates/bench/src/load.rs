//! Requests to measure with, and the little statistics that measurements need.

use crate::error::BenchError;
use paceline::{Event, Handle, Request, Stats, Streams, Usage};
use paceline_types::{SamplingParams, TokenId};
use std::thread;
use std::time::{Duration, Instant};

/// How long to sleep at most between events.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// How long to wait for numbers that lag behind.
const SETTLE: Duration = Duration::from_millis(200);

/// Random numbers that are the same on every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// The next number: a counter, mixed until its bits look unrelated.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 (excluded) to 1.
    pub(crate) fn share(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// A request of exactly these lengths with a prompt of random tokens.
    pub(crate) fn request(&mut self, input: usize, output: usize, vocabulary: usize) -> Request {
        let token = |number: u64| (number % vocabulary as u64) as TokenId;
        Request {
            prompt: (0..input).map(|_| token(self.next())).collect(),
            sampling: SamplingParams {
                temperature: 0.0,
                max_tokens: output,
                ignore_eos: true,
                ..SamplingParams::default()
            }
            .into(),
            ..Request::default()
        }
    }
}

/// What came of requests that ran all at once.
pub(crate) struct Batch {
    /// By request.
    pub(crate) tokens: Vec<Vec<TokenId>>,
    pub(crate) usages: Vec<Usage>,
    /// Until the last ended.
    pub(crate) elapsed: Duration,
}

/// Runs requests all at once.
pub(crate) fn run_together(handle: &Handle, requests: Vec<Request>) -> Result<Batch, BenchError> {
    let start = Instant::now();
    let mut streams = Streams::default();
    let mut tokens = vec![Vec::new(); requests.len()];
    for request in requests {
        streams.add(handle.generate(request)?);
    }
    let mut usages = Vec::new();
    while !streams.is_empty() {
        match streams.next(Instant::now() + PATIENCE) {
            Some((index, Some(Event::Delta { output, .. }))) => tokens[index].extend(output.ids),
            Some((_, Some(event))) => usages.extend(usage(event)?),
            _ => {}
        }
    }
    Ok(Batch {
        tokens,
        usages,
        elapsed: start.elapsed(),
    })
}

/// The engine's numbers after `requests` have ended: they follow the last event by a moment.
pub fn settled_stats(handle: &Handle, requests: u64) -> Stats {
    let start = Instant::now();
    loop {
        let stats = handle.stats();
        let settled = stats.finished >= requests && stats.running == 0;
        if settled || start.elapsed() > SETTLE {
            return stats;
        }
        thread::sleep(Duration::from_micros(200));
    }
}

/// What an ended continuation took.
pub(crate) fn usage(event: Event) -> Result<Option<Usage>, BenchError> {
    match event {
        Event::Finished { finish, .. } => Ok(Some(finish.usage)),
        Event::Failed(failure) => Err(BenchError::Failed(failure)),
        Event::Prompt { .. } | Event::Delta { .. } => Ok(None),
    }
}

/// Milliseconds between the tokens of a continuation; none if there is only one.
pub(crate) fn token_ms(usage: &Usage) -> Option<f64> {
    let gaps = usage.completion_tokens.checked_sub(1).filter(|gaps| *gaps > 0)?;
    Some(ms(usage.total.saturating_sub(usage.first_token)) / gaps as f64)
}

pub(crate) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The value that this share of the values does not exceed; 0 of none.
pub(crate) fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.max(1) - 1).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occur() {
        let mut values = [4.0, 1.0, 3.0, 2.0];
        for (share, expected) in [(0.0, 1.0), (0.5, 2.0), (0.9, 4.0), (1.0, 4.0)] {
            assert!(
                (percentile(&mut values, share) - expected).abs() < f64::EPSILON,
                "{share}"
            );
        }
        assert!(percentile(&mut [], 0.5).abs() < f64::EPSILON);
    }

    #[test]
    fn prompts_differ_and_stay_within_the_vocabulary() {
        let mut random = Random(0);
        let (one, two) = (random.request(50, 2, 10), random.request(50, 2, 10));
        assert_ne!(one.prompt, two.prompt);
        assert!(one.prompt.iter().all(|token| *token < 10));
        assert!((0..1000).all(|_| (f64::MIN_POSITIVE..=1.0).contains(&random.share())));
    }
}
