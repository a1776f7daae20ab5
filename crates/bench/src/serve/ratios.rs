//! Figures of two servers that took turns, as ratios with their spread.

use super::figures::quantile;
use super::record::Record;
use crate::load::Random;
use serde::Serialize;

/// Resamples of the turns that an interval is made of.
const RESAMPLES: usize = 2_000;

/// What a server did in one turn of a crowd.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Turn {
    /// Median over the crowd.
    pub(super) ttft_ms: f64,
    /// Of the whole crowd, from its start to the end of its last answer.
    pub(super) tok_s: f64,
    /// The longest time between two pieces of text, of any answer.
    pub(super) stall_ms: f64,
    /// Median over the crowd.
    pub(super) e2e_ms: f64,
}

impl Turn {
    /// Of answers that came together; nothing if one of them is incomplete or empty.
    pub(super) fn of(records: &[Record]) -> Option<Self> {
        let median = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            quantile(&values, 0.5)
        };
        let complete = records.iter().all(Record::is_completed);
        let times: Vec<_> = records.iter().map(Record::times).collect();
        let first: Option<Vec<f64>> = times.iter().map(|times| times.ttft).collect();
        let first = first.filter(|first| complete && !first.is_empty())?;
        let start = records
            .iter()
            .map(|record| record.start)
            .fold(f64::INFINITY, f64::min);
        let end = records.iter().map(|record| record.end).fold(0.0, f64::max);
        let tokens: u64 = records.iter().map(|record| record.tokens().0).sum();
        Some(Self {
            ttft_ms: median(first),
            tok_s: tokens as f64 / (end - start).max(1e-9),
            stall_ms: times.iter().filter_map(|times| times.stall).fold(0.0, f64::max),
            e2e_ms: median(times.iter().map(|times| times.e2e).collect()),
        })
    }
}

/// A figure of a turn.
struct Figure {
    name: &'static str,
    of: fn(&Turn) -> f64,
    more_is_better: bool,
}

const FIGURES: [Figure; 4] = [
    Figure {
        name: "first token, ms",
        of: |turn| turn.ttft_ms,
        more_is_better: false,
    },
    Figure {
        name: "generated, tok/s",
        of: |turn| turn.tok_s,
        more_is_better: true,
    },
    Figure {
        name: "worst stall, ms",
        of: |turn| turn.stall_ms,
        more_is_better: false,
    },
    Figure {
        name: "end to end, ms",
        of: |turn| turn.e2e_ms,
        more_is_better: false,
    },
];

/// A figure of both servers over all turns.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PairedFigure {
    pub(super) figure: &'static str,
    /// Medians over the turns.
    pub(super) ours: f64,
    pub(super) peer: f64,
    /// Median over the turns of ours by the peer's, and where 95 % of its resamples are. Nothing if there were no turns in
    /// which both have the figure.
    pub(super) ratio: Option<[f64; 3]>,
    /// Worst of all turns.
    pub(super) ours_worst: f64,
    pub(super) peer_worst: f64,
}

impl PairedFigure {
    /// All figures of turns, ours and the peer's of each.
    pub(super) fn all(turns: &[(Turn, Turn)], seed: u64) -> Vec<Self> {
        FIGURES
            .iter()
            .map(|figure| Self::of(figure, turns, seed))
            .collect()
    }

    fn of(figure: &Figure, turns: &[(Turn, Turn)], seed: u64) -> Self {
        let sorted = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values
        };
        let ours = sorted(turns.iter().map(|(ours, _)| (figure.of)(ours)).collect());
        let peer = sorted(turns.iter().map(|(_, peer)| (figure.of)(peer)).collect());
        let pairs = turns
            .iter()
            .map(|(ours, peer)| ((figure.of)(ours), (figure.of)(peer)));
        let ratios = pairs.filter(|(ours, peer)| *ours > 0.0 && *peer > 0.0);
        let worst = |values: &[f64]| quantile(values, if figure.more_is_better { 0.0 } else { 1.0 });
        Self {
            figure: figure.name,
            ours: quantile(&ours, 0.5),
            peer: quantile(&peer, 0.5),
            ratio: interval(&sorted(ratios.map(|(ours, peer)| ours / peer).collect()), seed),
            ours_worst: worst(&ours),
            peer_worst: worst(&peer),
        }
    }
}

/// Median of sorted values, and the bounds of 95 % of the medians of resamples.
fn interval(values: &[f64], seed: u64) -> Option<[f64; 3]> {
    if values.is_empty() {
        return None;
    }
    let mut random = Random(seed);
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let mut draw: Vec<usize> = values
                .iter()
                .map(|_| (random.next() % values.len() as u64) as usize)
                .collect();
            draw.sort_unstable();
            values[draw[(draw.len() - 1) / 2]]
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    Some([
        quantile(values, 0.5),
        quantile(&medians, 0.025),
        quantile(&medians, 0.975),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::record::Outcome;
    use super::super::record::tests::answer;
    use super::*;

    fn turn(ttft_ms: f64, tok_s: f64) -> Turn {
        Turn {
            ttft_ms,
            tok_s,
            stall_ms: 0.0,
            e2e_ms: 100.0,
        }
    }

    #[test]
    fn a_turn_is_the_crowd_as_a_whole() {
        let records = [
            answer(0.0, &[0.1, 0.2, 0.6], Some(10)),
            answer(0.1, &[0.4, 1.1], Some(20)),
            answer(0.0, &[0.5, 2.0], Some(30)),
        ];
        let turn = Turn::of(&records).unwrap();
        assert!((turn.ttft_ms - 300.0).abs() < 1e-6, "{turn:?}");
        assert!((turn.tok_s - 30.0).abs() < 1e-6, "{turn:?}");
        assert!((turn.stall_ms - 1500.0).abs() < 1e-6, "{turn:?}");
        assert!((turn.e2e_ms - 1000.0).abs() < 1e-6, "{turn:?}");
        let mut broken = records;
        broken[1].outcome = Outcome::Cancelled;
        assert_eq!(Turn::of(&broken), None);
        assert_eq!(Turn::of(&[answer(0.0, &[], Some(0))]), None);
    }

    #[test]
    fn ratios_are_of_one_turn_each() {
        // Both are ten times as slow in the second half; one is always twice as fast.
        let turns: Vec<(Turn, Turn)> = (0..20)
            .map(|index| {
                let slow = if index < 10 { 1.0 } else { 10.0 };
                (turn(10.0 * slow, 200.0 / slow), turn(20.0 * slow, 100.0 / slow))
            })
            .collect();
        let figures = PairedFigure::all(&turns, 1);
        assert_eq!(figures[0].ratio, Some([0.5; 3]));
        assert_eq!(figures[1].ratio, Some([2.0; 3]));
        assert_eq!((figures[0].ours_worst, figures[0].peer_worst), (100.0, 200.0));
        assert_eq!((figures[1].ours_worst, figures[1].peer_worst), (20.0, 10.0));
        assert_eq!(figures[2].ratio, None, "no answer had two pieces");
    }

    #[test]
    fn the_interval_holds_the_median_and_is_wider_where_turns_differ() {
        let spread = |step: f64| {
            let turns: Vec<(Turn, Turn)> = (0..21)
                .map(|index| (turn(100.0 + step * f64::from(index - 10), 1.0), turn(100.0, 1.0)))
                .collect();
            let [median, low, high] = PairedFigure::all(&turns, 7)[0].ratio.unwrap();
            assert!((median - 1.0).abs() < 1e-9 && low <= median && median <= high);
            high - low
        };
        let (narrow, wide) = (spread(0.1), spread(5.0));
        assert!(
            narrow > 0.0 && (wide / narrow - 50.0).abs() < 1.0,
            "{narrow} {wide}"
        );
    }
}
