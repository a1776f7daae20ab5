//! One request: what came of it, and when.

use paceline_client::Usage;
use serde::{Deserialize, Serialize};

/// What came of a request. Times are seconds since the start of the run.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) index: usize,
    /// When it was due.
    pub(super) start: f64,
    /// When it was over.
    pub(super) end: f64,
    pub(super) outcome: Outcome,
    /// Pieces of text, in order.
    pub(super) pieces: Vec<Piece>,
    pub(super) usage: Option<Usage>,
    pub(super) finish_reason: Option<String>,
    /// The answer, where it is going to be compared.
    pub(super) text: String,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The answer is complete.
    Completed,
    /// It is not.
    Failed { kind: String, message: String },
    /// The user stopped the run.
    Cancelled,
}

/// A piece of text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Piece {
    pub(super) at: f64,
    /// How many tokens it carries, if the server lists them.
    pub(super) tokens: Option<u64>,
}

/// How tokens were counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum TokenSource {
    /// By the server.
    Usage,
    /// By the ids it sent.
    Ids,
    /// Not at all: the pieces of text were.
    Chunks,
}

/// What an answer took, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Times {
    /// Nothing came: there is none.
    pub(super) ttft: Option<f64>,
    /// Of two tokens or more.
    pub(super) tpot: Option<f64>,
    pub(super) e2e: f64,
    /// The longest time between two pieces.
    pub(super) stall: Option<f64>,
}

impl Record {
    /// One that has only begun.
    pub(super) fn new(index: usize, start: f64) -> Self {
        Self {
            index,
            start,
            end: start,
            outcome: Outcome::Cancelled,
            pieces: Vec::new(),
            usage: None,
            finish_reason: None,
            text: String::new(),
        }
    }

    pub(super) fn is_completed(&self) -> bool {
        self.outcome == Outcome::Completed
    }

    /// Tokens of the answer, and how they were counted.
    pub(super) fn tokens(&self) -> (u64, TokenSource) {
        if let Some(usage) = self.usage {
            return (usage.completion_tokens, TokenSource::Usage);
        }
        let listed: Option<u64> = self.pieces.iter().map(|piece| piece.tokens).sum();
        match listed {
            Some(tokens) if !self.pieces.is_empty() => (tokens, TokenSource::Ids),
            _ => (self.pieces.len() as u64, TokenSource::Chunks),
        }
    }

    pub(super) fn times(&self) -> Times {
        let first = self.pieces.first().map(|piece| piece.at);
        let last = self.pieces.last().map(|piece| piece.at);
        let behind_first = self.tokens().0.saturating_sub(1);
        let decoding = first.zip(last).filter(|_| behind_first > 0);
        Times {
            ttft: first.map(|first| (first - self.start) * 1e3),
            tpot: decoding.map(|(first, last)| (last - first) * 1e3 / behind_first as f64),
            e2e: (self.end - self.start) * 1e3,
            stall: self.gaps().map(|(gap, _)| gap).reduce(f64::max),
        }
    }

    /// Milliseconds between two pieces, and when the second came.
    pub(super) fn gaps(&self) -> impl Iterator<Item = (f64, f64)> {
        let pairs = self.pieces.iter().zip(self.pieces.iter().skip(1));
        pairs.map(|(one, two)| ((two.at - one.at) * 1e3, two.at))
    }

    /// Tokens of a piece that the server does not list: the mean of the stream, at least 1.
    pub(super) fn tokens_of(&self, piece: &Piece) -> f64 {
        let mean = || self.tokens().0 as f64 / self.pieces.len().max(1) as f64;
        piece.tokens.map_or_else(mean, |tokens| tokens as f64).max(1.0)
    }

    /// Milliseconds between tokens, once for each token behind the first piece.
    pub(super) fn token_gaps(&self) -> impl Iterator<Item = f64> {
        let pieces = self.pieces.iter().skip(1);
        self.gaps().zip(pieces).flat_map(|((gap, _), piece)| {
            let tokens = self.tokens_of(piece);
            std::iter::repeat_n(gap / tokens, tokens.round() as usize)
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A complete answer, due at `start`, with pieces at these times.
    pub(in super::super) fn answer(start: f64, pieces: &[f64], tokens: Option<u64>) -> Record {
        let piece = |at: &f64| Piece {
            at: *at,
            tokens: None,
        };
        Record {
            end: pieces.last().copied().unwrap_or(start),
            outcome: Outcome::Completed,
            pieces: pieces.iter().map(piece).collect(),
            usage: tokens.map(|completion_tokens| Usage {
                prompt_tokens: 10,
                completion_tokens,
                ..Usage::default()
            }),
            ..Record::new(0, start)
        }
    }

    fn close(one: f64, two: f64) -> bool {
        (one - two).abs() < 1e-6
    }

    #[test]
    fn times_start_when_the_request_is_due() {
        let record = answer(1.0, &[1.5, 1.6, 1.9], Some(5));
        let times = record.times();
        assert!(close(times.ttft.unwrap(), 500.0));
        assert!(close(times.tpot.unwrap(), 100.0), "{times:?}");
        assert!(close(times.e2e, 900.0));
        assert!(close(times.stall.unwrap(), 300.0));
    }

    #[test]
    fn an_answer_of_one_token_has_no_time_between_tokens() {
        let times = answer(0.0, &[0.1], Some(1)).times();
        assert_eq!((times.tpot, times.stall), (None, None));
        let times = answer(0.0, &[], Some(0)).times();
        assert_eq!(times.ttft, None);
    }

    #[test]
    fn a_piece_with_several_tokens_counts_for_each() {
        let mut record = answer(0.0, &[0.1, 0.4, 0.5], Some(6));
        for (piece, tokens) in record.pieces.iter_mut().zip([2, 3, 1]) {
            piece.tokens = Some(tokens);
        }
        let gaps: Vec<f64> = record.token_gaps().collect();
        assert_eq!(gaps.len(), 4);
        assert!(gaps.iter().all(|gap| close(*gap, 100.0)), "{gaps:?}");
        // Not listed: two tokens a piece on average.
        let gaps: Vec<f64> = answer(0.0, &[0.1, 0.4, 0.5], Some(6)).token_gaps().collect();
        assert_eq!(gaps.len(), 4);
        assert!(close(gaps[0], 150.0) && close(gaps[3], 50.0), "{gaps:?}");
    }

    #[test]
    fn tokens_are_counted_by_the_server_or_by_what_there_is() {
        assert_eq!(
            answer(0.0, &[0.1, 0.2], Some(7)).tokens(),
            (7, TokenSource::Usage)
        );
        let mut record = answer(0.0, &[0.1, 0.2], None);
        assert_eq!(record.tokens(), (2, TokenSource::Chunks));
        record.pieces[0].tokens = Some(3);
        assert_eq!(record.tokens(), (2, TokenSource::Chunks));
        record.pieces[1].tokens = Some(1);
        assert_eq!(record.tokens(), (4, TokenSource::Ids));
    }
}
