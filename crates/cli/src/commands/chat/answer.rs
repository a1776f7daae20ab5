//! Questions and answers, of an engine or of a server.

use super::conversation::Conversation;
use crate::commands::generate::Settings;
use crate::format::{Fact, fact};
use std::time::Duration;

/// What is asked.
pub(super) struct Question<'a> {
    pub(super) conversation: &'a Conversation,
    pub(super) settings: &'a Settings,
    /// Where the settings have none.
    pub(super) seed: u64,
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// What the model says.
    Text(String),
    /// What it thinks before that.
    Reasoning(String),
}

/// An answer, complete or stopped.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    pub(super) text: String,
    /// Why it ended: `stop`, `length`, `cancelled`...
    pub(super) end: String,
    pub(super) figures: AnswerFigures,
    /// Messages at the start of the conversation that the context had no room for.
    pub(super) left_out: usize,
}

/// What an answer took, or many.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct AnswerFigures {
    pub(super) prompt_tokens: u64,
    /// Of the prompt, found in the cache; unknown where the server does not tell.
    pub(super) cached_tokens: Option<u64>,
    pub(super) tokens: u64,
    /// From the question to the first piece.
    pub(super) first: Duration,
    /// From the question to the end.
    pub(super) total: Duration,
    /// Steps behind the first token, and the tokens they gave.
    pub(super) steps: u64,
    pub(super) step_tokens: f64,
    pub(super) drafted: u64,
    pub(super) accepted: u64,
}

impl AnswerFigures {
    /// Takes in another answer's.
    pub(super) fn add(&mut self, other: &Self) {
        self.prompt_tokens += other.prompt_tokens;
        if let Some(cached) = other.cached_tokens {
            *self.cached_tokens.get_or_insert(0) += cached;
        }
        self.tokens += other.tokens;
        self.first += other.first;
        self.total += other.total;
        self.steps += other.steps;
        self.step_tokens += other.step_tokens;
        self.drafted += other.drafted;
        self.accepted += other.accepted;
    }

    /// What they tell, for a line.
    pub(super) fn facts(&self) -> Vec<Fact> {
        let decoding = self.total.saturating_sub(self.first).as_secs_f64();
        let mut facts = vec![fact(0, format!("{} tokens", self.tokens))];
        if self.tokens > 1 && decoding > 0.0 {
            let speed = (self.tokens - 1) as f64 / decoding;
            facts.push(fact(1, format!("{speed:.1} tok/s")));
        }
        facts.push(fact(2, format!("first after {} ms", self.first.as_millis())));
        if self.drafted > 0 {
            let drafts = format!("drafts: {} of {} accepted", self.accepted, self.drafted);
            facts.push(fact(3, drafts));
        }
        if self.drafted > 0 && self.steps > 0 {
            let per_step = self.step_tokens / self.steps as f64;
            facts.push(fact(4, format!("{per_step:.2} tokens per step")));
        }
        match self.cached_tokens {
            Some(cached) => {
                let prompt = format!("prompt: {cached} of {} tokens cached", self.prompt_tokens);
                facts.push(fact(5, prompt));
            }
            None if self.prompt_tokens > 0 => {
                facts.push(fact(5, format!("prompt: {} tokens", self.prompt_tokens)));
            }
            None => {}
        }
        facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::status;

    #[test]
    fn a_line_tells_what_is_known_and_no_more() {
        let line = |figures: &AnswerFigures| status(&figures.facts(), None);
        let mut figures = AnswerFigures {
            prompt_tokens: 9,
            tokens: 11,
            first: Duration::from_millis(20),
            total: Duration::from_millis(120),
            ..AnswerFigures::default()
        };
        assert_eq!(
            line(&figures),
            "[11 tokens, 100.0 tok/s, first after 20 ms, prompt: 9 tokens]"
        );
        figures.cached_tokens = Some(8);
        figures.drafted = 6;
        figures.accepted = 5;
        figures.steps = 4;
        figures.step_tokens = 10.0;
        figures.add(&figures.clone());
        assert_eq!(
            line(&figures),
            "[22 tokens, 105.0 tok/s, first after 40 ms, drafts: 10 of 12 accepted, 2.50 tokens per step, \
             prompt: 16 of 18 tokens cached]"
        );
    }
}
