//! How the tokens and heads of a step become pieces.

use super::{Attend, Piece, ROWS, SECTION};
use crate::ops::Step;
use std::ops::Range;

/// How the rows of a step are cut into pieces.
pub(super) struct Work<'a> {
    pub(super) args: &'a Attend<'a>,
    /// Consecutive tokens of one request.
    spans: Vec<Range<usize>>,
    /// Query heads per key-value head, and per piece.
    group: usize,
    heads: usize,
    /// Most rows of a piece.
    pub(super) rows: usize,
    /// Sections of the longest context.
    pub(super) sections: usize,
}

/// Pieces per thread below which sections become pieces.
const PIECES_PER_THREAD: usize = 4;

/// Most numbers that the sections of all pieces may leave to be merged. What needs more has so many tokens that its pieces
/// are long.
const SHARED_NUMBERS: usize = 4 << 20;

impl<'a> Work<'a> {
    pub(super) fn new(args: &'a Attend<'a>) -> Self {
        let shape = args.cache.shape();
        let group = args.q.columns / shape.head_dim / shape.heads;
        let heads = group.min(ROWS);
        let most_tokens = (ROWS / heads).max(1);
        let spans = spans(args.step, args.q.rows, most_tokens);
        let longest = spans.iter().map(Range::len).max().unwrap_or(0);
        let positions = args.step.tokens[..args.q.rows].iter().map(|token| token.position);
        Self {
            args,
            spans,
            group,
            heads,
            rows: longest * heads,
            sections: positions.max().unwrap_or(0) as usize / SECTION + 1,
        }
    }

    pub(super) fn pieces(&self) -> usize {
        self.spans.len() * self.args.cache.shape().heads * self.group.div_ceil(self.heads)
    }

    /// Whether sections are to be pieces of their own, because there are too few others for the threads.
    pub(super) fn is_split(&self, threads: usize) -> bool {
        threads > 1
            && self.sections > 1
            && self.pieces() < PIECES_PER_THREAD * threads
            && self.pieces() * self.sections * self.rows * self.args.cache.shape().head_dim <= SHARED_NUMBERS
    }

    pub(super) fn piece(&self, index: usize) -> Piece<'a> {
        // The longest contexts first, so that the last pieces to finish are short ones; one head's blocks at a
        // time, so that neighbouring pieces find them in the cache.
        let (chunks, spans) = (self.group.div_ceil(self.heads), self.spans.len());
        let (kv_head, chunk) = (index / spans / chunks, index / spans % chunks);
        let first_head = kv_head * self.group + chunk * self.heads;
        let last_head = ((kv_head + 1) * self.group).min(first_head + self.heads);
        Piece {
            args: self.args,
            tokens: self.spans[spans - 1 - index % spans].clone(),
            kv_head,
            heads: first_head..last_head,
        }
    }
}

/// Runs of at most `most` consecutive tokens of one request.
fn spans(step: Step<'_>, tokens: usize, most: usize) -> Vec<Range<usize>> {
    let mut spans: Vec<Range<usize>> = Vec::new();
    for token in 0..tokens {
        match spans.last_mut() {
            Some(span)
                if span.len() < most
                    && step.tokens[token - 1].request == step.tokens[token].request
                    && step.tokens[token - 1].position + 1 == step.tokens[token].position =>
            {
                span.end = token + 1;
            }
            _ => spans.push(token..token + 1),
        }
    }
    spans
}
