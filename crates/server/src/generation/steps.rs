//! The steps that brought the tokens of a choice, for replies that tell how each token came.

use super::GeneratedToken;
use paceline::StepOrigins;
use paceline_types::TokenId;
use std::collections::VecDeque;

/// More of a choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// Text that is certain.
    pub text: String,
    /// Tokens that are certain.
    pub tokens: Vec<GeneratedToken>,
    /// The steps whose tokens are certain by now, if asked for.
    pub steps: Vec<Step>,
}

/// A step and the tokens of it that are part of the reply.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What became of its drafts.
    pub origins: StepOrigins,
    /// Its tokens with what each adds to the text.
    pub tokens: Vec<(TokenId, String)>,
}

impl Piece {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.tokens.is_empty() && self.steps.is_empty()
    }

    /// Adds what comes next.
    pub fn append(&mut self, other: Self) {
        self.text.push_str(&other.text);
        self.tokens.extend(other.tokens);
        self.steps.extend(other.steps);
    }
}

impl From<paceline_text::Piece> for Piece {
    fn from(piece: paceline_text::Piece) -> Self {
        Self {
            text: piece.text,
            tokens: piece.tokens,
            steps: Vec::new(),
        }
    }
}

/// Joins steps with their tokens, which may become certain later, or never: those of a stop string are not part of the
/// reply, and the step is all the same.
#[derive(Debug, Default)]
pub(super) struct StepTracker {
    steps: VecDeque<StepOrigins>,
    tokens: VecDeque<(TokenId, String)>,
}

impl StepTracker {
    /// The engine has made these steps.
    pub(super) fn note(&mut self, steps: Vec<StepOrigins>) {
        self.steps.extend(steps);
    }

    /// Adds the steps to a piece that are complete with its tokens.
    pub(super) fn join(&mut self, piece: &mut Piece) {
        let tokens = piece.tokens.iter();
        self.tokens
            .extend(tokens.map(|token| (token.id, token.text.clone())));
        while let Some(origins) = self.steps.pop_front_if(|step| step.tokens <= self.tokens.len()) {
            let tokens = self.tokens.drain(..origins.tokens).collect();
            piece.steps.push(Step { origins, tokens });
        }
    }

    /// The same for the last piece: what has not become certain by now is not part of the reply.
    pub(super) fn finish(&mut self, piece: &mut Piece) {
        self.join(piece);
        for origins in self.steps.drain(..) {
            let own = origins.tokens.min(self.tokens.len());
            let tokens = self.tokens.drain(..own).collect();
            piece.steps.push(Step { origins, tokens });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(tokens: usize) -> StepOrigins {
        StepOrigins {
            decode: true,
            tokens,
            source: None,
            accepted: 0,
            rejected: Vec::new(),
        }
    }

    fn piece(ids: impl IntoIterator<Item = TokenId>) -> Piece {
        let token = |id| GeneratedToken {
            id,
            logprobs: None,
            text: format!("<{id}>"),
        };
        Piece {
            tokens: ids.into_iter().map(token).collect(),
            ..Piece::default()
        }
    }

    fn ids(piece: &Piece) -> Vec<Vec<TokenId>> {
        let ids = |step: &Step| step.tokens.iter().map(|(id, _)| *id).collect();
        piece.steps.iter().map(ids).collect()
    }

    #[test]
    fn a_step_comes_with_the_last_of_its_tokens_and_none_is_lost() {
        let mut tracker = StepTracker::default();
        tracker.note(vec![step(1), step(3)]);
        let mut first = piece([1, 2]);
        tracker.join(&mut first);
        assert_eq!(ids(&first), [vec![1]]);
        tracker.note(vec![step(2), step(0)]);
        let mut second = piece([3, 4, 5]);
        tracker.join(&mut second);
        assert_eq!(ids(&second), [vec![2, 3, 4]]);
        let mut last = piece([]);
        tracker.finish(&mut last);
        assert_eq!(ids(&last), [vec![5], vec![]]);
        assert_eq!(last.steps[0].tokens[0].1, "<5>");
    }
}
