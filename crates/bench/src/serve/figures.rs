//! What a run comes to in numbers.

use super::record::{Outcome, Record, TokenSource};
use super::slo::Slo;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Everything that is told of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Figures {
    pub(super) requests: usize,
    pub(super) completed: usize,
    pub(super) failed: usize,
    pub(super) cancelled: usize,
    /// Failures by kind.
    pub(super) errors: BTreeMap<String, Failures>,
    /// From the first request to the end of the last answer.
    pub(super) elapsed_s: f64,
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: Option<u64>,
    pub(super) output_tokens: u64,
    /// The least trustworthy way in which tokens of an answer were counted.
    pub(super) tokens_from: TokenSource,
    pub(super) tokens_per_chunk: f64,
    /// Of complete answers, as are the tokens per second.
    pub(super) requests_s: f64,
    pub(super) output_tok_s: f64,
    pub(super) total_tok_s: f64,
    /// Tokens of an answer by its time, mean over the answers.
    pub(super) stream_tok_s: f64,
    pub(super) concurrency_mean: f64,
    pub(super) concurrency_max: usize,
    pub(super) ttft_ms: Summary,
    pub(super) tpot_ms: Summary,
    pub(super) itl_ms: Summary,
    pub(super) chunk_gap_ms: Summary,
    pub(super) e2e_ms: Summary,
    /// The longest time between two pieces of text of one answer.
    pub(super) worst_stall: Option<Stall>,
    pub(super) goodput: Option<Goodput>,
    pub(super) speculation: Option<Drafts>,
}

/// Failures of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Failures {
    pub(super) count: usize,
    /// What the first one said.
    pub(super) first: String,
}

/// A wait in the middle of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Stall {
    pub(super) ms: f64,
    /// Number of the request, from 0.
    pub(super) request: usize,
    /// When it was over, in seconds since the start of the run.
    pub(super) at_s: f64,
}

/// Requests that kept all limits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Goodput {
    pub(super) slo: Slo,
    pub(super) met: usize,
    /// Of all that ended by themselves.
    pub(super) share: f64,
    pub(super) requests_s: f64,
}

/// What drafts did, where the server tells.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Drafts {
    pub(super) drafted: u64,
    pub(super) accepted: u64,
    /// Tokens per step.
    pub(super) mean_acceptance_length: f64,
}

/// A distribution in a few numbers; all 0 if there is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Summary {
    pub(super) count: usize,
    pub(super) mean: f64,
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p95: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}

impl Summary {
    /// Percentiles are values that occur: the smallest that this share of all does not exceed.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let Some(max) = values.last().copied() else {
            return Self::default();
        };
        let at = |share: f64| quantile(&values, share);
        Self {
            count: values.len(),
            mean: values.iter().sum::<f64>() / values.len() as f64,
            p50: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            max,
        }
    }

    /// The numbers by name, as they are shown.
    pub(super) fn columns(&self) -> [(&'static str, f64); 6] {
        [
            ("mean", self.mean),
            ("p50", self.p50),
            ("p90", self.p90),
            ("p95", self.p95),
            ("p99", self.p99),
            ("max", self.max),
        ]
    }
}

/// The smallest of the sorted values that this share of them does not exceed.
pub(super) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or(0.0)
}

impl Figures {
    pub(super) fn of(records: &[Record], slo: Option<&Slo>) -> Self {
        let complete: Vec<&Record> = records.iter().filter(|record| record.is_completed()).collect();
        let times: Vec<_> = complete.iter().map(|record| record.times()).collect();
        let elapsed_s = elapsed(records);
        let per_second = |count: f64| if elapsed_s > 0.0 { count / elapsed_s } else { 0.0 };
        let usages = || complete.iter().filter_map(|record| record.usage);
        let prompt_tokens = usages().map(|usage| usage.prompt_tokens).sum::<u64>();
        let output_tokens = complete.iter().map(|record| record.tokens().0).sum::<u64>();
        let pieces = complete.iter().map(|record| record.pieces.len()).sum::<usize>();
        let cancelled = records
            .iter()
            .filter(|record| record.outcome == Outcome::Cancelled)
            .count();
        let busy: f64 = records.iter().map(|record| record.end - record.start).sum();
        Self {
            requests: records.len(),
            completed: complete.len(),
            failed: records.len() - complete.len() - cancelled,
            cancelled,
            errors: errors(records),
            elapsed_s,
            prompt_tokens,
            cached_tokens: usages()
                .filter_map(|usage| usage.cached_tokens)
                .reduce(|a, b| a + b),
            output_tokens,
            tokens_from: complete
                .iter()
                .map(|record| record.tokens().1)
                .max()
                .unwrap_or(TokenSource::Usage),
            tokens_per_chunk: output_tokens as f64 / pieces.max(1) as f64,
            requests_s: per_second(complete.len() as f64),
            output_tok_s: per_second(output_tokens as f64),
            total_tok_s: per_second((prompt_tokens + output_tokens) as f64),
            stream_tok_s: Summary::of(complete.iter().map(|record| speed(record))).mean,
            concurrency_mean: per_second(busy),
            concurrency_max: most_at_a_time(records),
            ttft_ms: Summary::of(times.iter().filter_map(|times| times.ttft)),
            tpot_ms: Summary::of(times.iter().filter_map(|times| times.tpot)),
            itl_ms: Summary::of(complete.iter().flat_map(|record| record.token_gaps())),
            chunk_gap_ms: Summary::of(complete.iter().flat_map(|record| record.gaps().map(|gap| gap.0))),
            e2e_ms: Summary::of(times.iter().map(|times| times.e2e)),
            worst_stall: worst_stall(records),
            goodput: slo.map(|slo| {
                let met = times.iter().filter(|times| slo.is_met(times)).count();
                let ended = records.len() - cancelled;
                Goodput {
                    slo: slo.clone(),
                    met,
                    share: met as f64 / ended.max(1) as f64,
                    requests_s: per_second(met as f64),
                }
            }),
            speculation: drafts(&complete),
        }
    }
}

fn elapsed(records: &[Record]) -> f64 {
    let first = records.iter().map(|record| record.start).reduce(f64::min);
    let last = records.iter().map(|record| record.end).reduce(f64::max);
    last.zip(first).map_or(0.0, |(last, first)| last - first)
}

/// Tokens per second of one answer.
fn speed(record: &Record) -> f64 {
    let seconds = record.end - record.start;
    if seconds > 0.0 {
        record.tokens().0 as f64 / seconds
    } else {
        0.0
    }
}

fn errors(records: &[Record]) -> BTreeMap<String, Failures> {
    let mut errors = BTreeMap::new();
    for record in records {
        if let Outcome::Failed { kind, message } = &record.outcome {
            let entry = errors.entry(kind.clone()).or_insert_with(|| Failures {
                count: 0,
                first: message.clone(),
            });
            entry.count += 1;
        }
    }
    errors
}

/// Most requests under way at the same time.
fn most_at_a_time(records: &[Record]) -> usize {
    let starts = records.iter().map(|record| (record.start, 1_isize));
    let ends = records.iter().map(|record| (record.end, -1_isize));
    let mut changes: Vec<_> = starts.chain(ends).collect();
    // One that ends makes room for one that starts at the same moment.
    changes.sort_by(|one, two| one.0.total_cmp(&two.0).then(one.1.cmp(&two.1)));
    let (mut now, mut most) = (0_isize, 0_isize);
    for (_, change) in changes {
        now += change;
        most = most.max(now);
    }
    most.unsigned_abs()
}

/// Of all answers, complete or not: a stream that hangs must not go unseen because it never ended.
fn worst_stall(records: &[Record]) -> Option<Stall> {
    let stalls = records.iter().flat_map(|record| {
        record.gaps().map(|(ms, at_s)| Stall {
            ms,
            request: record.index,
            at_s,
        })
    });
    stalls.max_by(|one, two| one.ms.total_cmp(&two.ms))
}

fn drafts(records: &[&Record]) -> Option<Drafts> {
    let mut sum = Drafts::default();
    let (mut steps, mut tokens, mut told) = (0, 0.0, false);
    for report in records.iter().filter_map(|record| record.usage?.speculation) {
        told = true;
        sum.drafted += report.drafted;
        sum.accepted += report.accepted;
        steps += report.steps;
        tokens += report.mean_acceptance_length.unwrap_or(1.0) * report.steps as f64;
    }
    sum.mean_acceptance_length = if steps > 0 { tokens / steps as f64 } else { 1.0 };
    told.then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::answer;
    use super::*;

    fn close(one: f64, two: f64) -> bool {
        (one - two).abs() < 1e-6
    }

    fn failure(start: f64, end: f64, kind: &str) -> Record {
        Record {
            end,
            outcome: Outcome::Failed {
                kind: kind.to_owned(),
                message: format!("{kind} at {start}"),
            },
            ..answer(start, &[], None)
        }
    }

    #[test]
    fn percentiles_are_values_that_occur() {
        let summary = Summary::of((1..=200).rev().map(f64::from));
        let numbers = summary.columns().map(|(_, value)| value);
        for (number, expected) in numbers
            .into_iter()
            .zip([100.5, 100.0, 180.0, 190.0, 198.0, 200.0])
        {
            assert!(close(number, expected), "{summary:?}");
        }
        assert_eq!(Summary::of([]), Summary::default());
        let one = Summary::of([7.0]);
        assert!(close(one.p50, 7.0) && close(one.p99, 7.0) && close(one.max, 7.0));
    }

    #[test]
    fn rates_count_complete_answers_over_the_whole_run() {
        let records = [
            answer(0.0, &[0.5, 1.0], Some(4)),
            answer(1.0, &[1.5, 2.0], Some(6)),
            failure(1.0, 4.0, "HTTP 429"),
        ];
        let figures = Figures::of(&records, None);
        assert_eq!((figures.requests, figures.completed, figures.failed), (3, 2, 1));
        assert!(close(figures.elapsed_s, 4.0));
        assert!(close(figures.output_tok_s, 2.5) && close(figures.total_tok_s, 7.5));
        assert!(close(figures.requests_s, 0.5));
        assert!(close(figures.stream_tok_s, 5.0));
        assert!(close(figures.tokens_per_chunk, 2.5));
        // 1 + 1 + 3 seconds of requests in 4 seconds.
        assert!(close(figures.concurrency_mean, 1.25));
        assert_eq!(figures.concurrency_max, 2);
    }

    #[test]
    fn failures_are_counted_by_kind() {
        let records = [
            failure(0.0, 1.0, "timeout"),
            failure(1.0, 2.0, "HTTP 429"),
            failure(2.0, 3.0, "timeout"),
        ];
        let errors = Figures::of(&records, None).errors;
        assert_eq!(errors["timeout"].count, 2);
        assert_eq!(errors["timeout"].first, "timeout at 0");
        assert_eq!(errors["HTTP 429"].count, 1);
    }

    #[test]
    fn good_requests_keep_every_limit_and_failed_ones_are_not_good() {
        let slo: Slo = "ttft:500,e2e:1000".parse().unwrap();
        let mut cancelled = answer(0.0, &[0.1], None);
        cancelled.outcome = Outcome::Cancelled;
        let records = [
            answer(0.0, &[0.4, 1.0], Some(2)),
            answer(0.0, &[0.6, 0.9], Some(2)),
            answer(0.0, &[0.4, 2.0], Some(2)),
            failure(0.0, 0.1, "HTTP 500"),
            cancelled,
        ];
        let goodput = Figures::of(&records, Some(&slo)).goodput.unwrap();
        assert_eq!(goodput.met, 1);
        assert!(close(goodput.share, 0.25) && close(goodput.requests_s, 0.5));
    }

    #[test]
    fn the_worst_stall_may_be_in_an_answer_that_never_ended() {
        let mut hung = answer(0.0, &[0.1, 5.1], None);
        hung.index = 3;
        hung.outcome = Outcome::Cancelled;
        let records = [answer(0.0, &[0.1, 0.3], Some(2)), hung];
        let stall = Figures::of(&records, None).worst_stall.unwrap();
        assert_eq!(stall.request, 3);
        assert!(close(stall.ms, 5000.0) && close(stall.at_s, 5.1));
    }

    #[test]
    fn a_run_of_nothing_has_figures_too() {
        let figures = Figures::of(&[], Some(&"ttft:1".parse().unwrap()));
        assert!(close(figures.output_tok_s, 0.0) && close(figures.goodput.unwrap().share, 0.0));
    }
}
