//! What is drawn of a run, small enough for a page however long the run was.

use super::figures::quantile;
use super::record::{Outcome, Record};
use serde::{Deserialize, Serialize};

/// Steps of a distribution.
const STEPS: usize = 200;
/// Most points of a curve over time.
const MOMENTS: usize = 120;
/// Most points of a cloud.
const POINTS: usize = 4000;

/// Curves and clouds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Plots {
    /// Values that 0, 1/200, 2/200, … of all do not exceed.
    pub(super) ttft_ms: Vec<f64>,
    pub(super) itl_ms: Vec<f64>,
    pub(super) chunk_gap_ms: Vec<f64>,
    pub(super) e2e_ms: Vec<f64>,
    /// Seconds between the points of the next two.
    pub(super) step_s: f64,
    /// Tokens per second over time.
    pub(super) output_tok_s: Vec<f64>,
    /// Requests under way over time, on average.
    pub(super) concurrency: Vec<f64>,
    /// Of complete answers: when they were due in seconds, TTFT and E2E in milliseconds.
    pub(super) answers: Vec<(f64, f64, f64)>,
    /// When failed ones were due.
    pub(super) failures: Vec<f64>,
}

impl Plots {
    pub(super) fn of(records: &[Record]) -> Self {
        let complete: Vec<&Record> = records.iter().filter(|record| record.is_completed()).collect();
        let times: Vec<_> = complete
            .iter()
            .map(|record| (record.start, record.times()))
            .collect();
        let end = records.iter().map(|record| record.end).fold(0.0, f64::max);
        let step_s = step(end);
        let answers = times
            .iter()
            .map(|(start, times)| (*start, times.ttft.unwrap_or(times.e2e), times.e2e));
        let failed = records
            .iter()
            .filter(|record| matches!(record.outcome, Outcome::Failed { .. }))
            .map(|record| record.start);
        Self {
            ttft_ms: distribution(times.iter().filter_map(|(_, times)| times.ttft)),
            itl_ms: distribution(complete.iter().flat_map(|record| record.token_gaps())),
            chunk_gap_ms: distribution(complete.iter().flat_map(|record| record.gaps().map(|gap| gap.0))),
            e2e_ms: distribution(times.iter().map(|(_, times)| times.e2e)),
            step_s,
            output_tok_s: output_over_time(records, step_s, end),
            concurrency: concurrency_over_time(records, step_s, end),
            answers: thinned(answers.collect()),
            failures: thinned(failed.collect()),
        }
    }
}

/// A round time of which there are at most `MOMENTS`.
fn step(end: f64) -> f64 {
    let least = end / MOMENTS as f64;
    let mut step = 0.05;
    for factor in [2.0, 2.5, 2.0].into_iter().cycle() {
        if step >= least || step > 1e9 {
            break;
        }
        step *= factor;
    }
    step
}

fn moments(step_s: f64, end: f64) -> usize {
    ((end / step_s).ceil() as usize).clamp(1, MOMENTS)
}

fn distribution(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    if values.is_empty() {
        return values;
    }
    values.sort_by(f64::total_cmp);
    let share = |step: usize| step as f64 / STEPS as f64;
    (0..=STEPS)
        .map(|step| rounded(quantile(&values, share(step))))
        .collect()
}

fn output_over_time(records: &[Record], step_s: f64, end: f64) -> Vec<f64> {
    let mut tokens = vec![0.0; moments(step_s, end)];
    for record in records {
        for piece in &record.pieces {
            let last = tokens.len() - 1;
            tokens[((piece.at / step_s) as usize).min(last)] += record.tokens_of(piece);
        }
    }
    tokens.iter().map(|tokens| rounded(tokens / step_s)).collect()
}

fn concurrency_over_time(records: &[Record], step_s: f64, end: f64) -> Vec<f64> {
    let count = moments(step_s, end);
    let mut busy = vec![0.0; count];
    for record in records {
        let first = ((record.start / step_s) as usize).min(count - 1);
        let last = ((record.end / step_s) as usize).min(count - 1);
        for (moment, busy) in busy.iter_mut().enumerate().take(last + 1).skip(first) {
            let from = moment as f64 * step_s;
            *busy += (record.end.min(from + step_s) - record.start.max(from)).max(0.0);
        }
    }
    busy.iter().map(|busy| rounded(busy / step_s)).collect()
}

/// At most [`POINTS`] of them, evenly spread.
fn thinned<T>(points: Vec<T>) -> Vec<T> {
    let every = points.len().div_ceil(POINTS).max(1);
    points.into_iter().step_by(every).collect()
}

/// Three decimals are more than a page can show.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::answer;
    use super::*;

    #[test]
    fn tokens_and_time_under_way_are_all_there() {
        let records = [
            answer(0.0, &[0.5, 1.0, 7.0], Some(9)),
            answer(2.0, &[2.5, 3.0], Some(4)),
        ];
        let plots = Plots::of(&records);
        let tokens: f64 = plots.output_tok_s.iter().map(|rate| rate * plots.step_s).sum();
        assert!((tokens - 13.0).abs() < 0.05, "{tokens}");
        let busy: f64 = plots.concurrency.iter().map(|count| count * plots.step_s).sum();
        assert!((busy - 8.0).abs() < 0.05, "{busy}");
        assert_eq!(plots.answers.len(), 2);
    }

    #[test]
    fn a_long_run_has_no_more_points_than_a_short_one() {
        let records: Vec<_> = (0..10_000)
            .map(|index| answer(f64::from(index), &[f64::from(index) + 0.5], Some(1)))
            .collect();
        let plots = Plots::of(&records);
        assert!(plots.answers.len() <= POINTS && plots.output_tok_s.len() <= MOMENTS);
        assert_eq!(plots.ttft_ms.len(), STEPS + 1);
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        let plots = Plots::of(&[]);
        assert!(plots.ttft_ms.is_empty() && plots.answers.is_empty());
    }
}
