//! The whole of a generation at once.

use super::{Failure, Finish, Output, Outputs, Piece};
use futures_util::StreamExt;
use paceline::Usage;
use paceline_types::TokenLogprobs;

/// Everything that a task gave.
#[derive(Clone, Debug, Default)]
pub struct Collected {
    /// One per choice, in order.
    pub completions: Vec<Completion>,
    /// Per prompt, if asked for: log-probabilities of its tokens from the second on.
    pub prompt_logprobs: Vec<Vec<TokenLogprobs>>,
}

/// A choice that has ended.
#[derive(Clone, Debug, Default)]
pub struct Completion {
    /// All of its text, up to the stop string, with its tokens.
    pub whole: Piece,
    /// How it ended; always there when all went well.
    pub finish: Option<Finish>,
}

impl Collected {
    /// The first choice, for interfaces that have no other.
    pub fn first(self) -> Completion {
        self.completions.into_iter().next().unwrap_or_default()
    }

    /// What each choice took.
    pub fn usages(&self) -> impl Iterator<Item = &Usage> {
        let finishes = self.completions.iter().filter_map(|one| one.finish.as_ref());
        finishes.map(|finish| &finish.usage)
    }
}

/// Waits for the end of a generation with `prompts` prompts and `choices` choices in all.
pub async fn collect(mut outputs: Outputs, (prompts, choices): (usize, usize)) -> Result<Collected, Failure> {
    let mut collected = Collected {
        completions: vec![Completion::default(); choices],
        prompt_logprobs: vec![Vec::new(); prompts],
    };
    while let Some(output) = outputs.next().await {
        match output {
            Output::Prompt { prompt, logprobs } => collected.prompt_logprobs[prompt] = logprobs,
            Output::Delta { choice, output } => collected.completions[choice].whole.append(output),
            Output::Finished { choice, finish } => collected.completions[choice].finish = Some(finish),
            Output::Failed(failure) => return Err(failure),
        }
    }
    Ok(collected)
}
