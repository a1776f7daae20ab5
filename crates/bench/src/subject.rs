//! A model to measure.

use crate::error::BenchError;
use paceline::Handle;
use paceline_types::TokenId;
use std::error::Error;

/// Why a [`Subject`] could not do what was asked of it.
pub type SubjectError = Box<dyn Error + Send + Sync>;

/// A model, its text and its engines. The measurements know neither files nor flags.
pub trait Subject {
    /// Name in the results.
    fn name(&self) -> &str;

    /// Threads that an engine computes on.
    fn threads(&self) -> usize;

    /// Tokens there are.
    fn vocabulary(&self) -> usize;

    /// Longest sequence, prompt included.
    fn context(&self) -> usize;

    /// Starts an engine.
    fn start(&self, setup: &EngineSetup) -> Result<Handle, SubjectError>;

    /// The tokens of a text, with those that a model wants at its beginning.
    fn encode(&self, text: &str) -> Result<Vec<TokenId>, SubjectError>;

    /// The text of tokens, without special ones.
    fn decode(&self, tokens: &[TokenId]) -> Result<String, SubjectError>;

    /// The tokens of a conversation of (role, content), up to the model's turn.
    fn encode_chat(&self, turns: &[(&str, &str)]) -> Result<Vec<TokenId>, SubjectError>;
}

/// What a measurement wants of an engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineSetup {
    /// Steps in flight.
    pub pipeline_depth: usize,
    /// Continuations that run at the same time.
    pub sequences: usize,
    /// Most continuations of one prompt.
    pub choices: usize,
    /// Tokens of the longest sequence, prompt included.
    pub longest: usize,
    /// Whether it drafts, as far as it is configured to; otherwise it does not.
    pub drafts: bool,
}

/// Checks that prompts of `input` tokens and `output` generated ones fit the model.
pub(crate) fn check_lengths(subject: &dyn Subject, input: usize, output: usize) -> Result<(), BenchError> {
    let limit = subject.context();
    if input + output > limit {
        return Err(BenchError::Lengths { input, output, limit });
    }
    Ok(())
}
