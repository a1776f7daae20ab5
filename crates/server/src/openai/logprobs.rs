//! Log-probabilities as completions report them.

use crate::generation::GeneratedToken;
use crate::model::ServedModel;
use paceline_types::{TokenId, TokenLogprobs};
use serde::{Serialize, Serializer};

/// JSON has no infinity; nothing is this unlikely.
const LEAST: f32 = -9999.0;

/// A log-probability that JSON can write.
pub(crate) fn finite(logprob: f32) -> f32 {
    logprob.max(LEAST)
}

/// Four lists of the same length, one entry per token.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Vec<Option<TopLogprobs>>,
    text_offset: Vec<usize>,
}

/// Texts of tokens with their log-probabilities, as an object. The numbers have the type of those in
/// `token_logprobs`, so that they have its digits too: clients compare the two.
#[derive(Clone, Debug, Default)]
struct TopLogprobs(Vec<(String, f32)>);

impl TopLogprobs {
    /// Tokens may share a text when it is a part of a character; the likelier one, which comes first, counts.
    fn add(&mut self, text: String, logprob: f32) {
        if !self.0.iter().any(|(known, _)| *known == text) {
            self.0.push((text, finite(logprob)));
        }
    }
}

impl Serialize for TopLogprobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(text, logprob)| (text, logprob)))
    }
}

/// How tokens are written.
#[derive(Clone, Copy)]
pub(crate) struct TokenNames<'a> {
    pub(crate) model: &'a ServedModel,
    /// As `token_id:7` rather than as text, which several tokens may share.
    pub(crate) as_ids: bool,
}

impl TokenNames<'_> {
    fn name(self, token: TokenId) -> String {
        if self.as_ids {
            format!("token_id:{token}")
        } else {
            self.model.token_text(token)
        }
    }
}

/// Writes log-probabilities and knows where in the text it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogprobWriter {
    /// Characters of the tokens so far.
    offset: usize,
}

impl LogprobWriter {
    /// Those of a prompt; nothing comes before the first token, so it has none.
    pub(crate) fn prompt(
        &mut self,
        names: TokenNames<'_>,
        tokens: &[TokenId],
        logprobs: &[TokenLogprobs],
    ) -> CompletionLogprobs {
        let mut lists = CompletionLogprobs::default();
        let known = [None].into_iter().chain(logprobs.iter().map(Some));
        for (token, logprobs) in tokens.iter().zip(known) {
            self.push(names, (*token, logprobs), &mut lists);
        }
        lists
    }

    /// These tokens have been told elsewhere.
    pub(crate) fn skip(&mut self, model: &ServedModel, tokens: &[TokenId]) {
        let characters = |token: &TokenId| model.token_text(*token).chars().count();
        self.offset += tokens.iter().map(characters).sum::<usize>();
    }

    /// Those of generated tokens, after what is there.
    pub(crate) fn add(
        &mut self,
        names: TokenNames<'_>,
        tokens: &[GeneratedToken],
        lists: &mut CompletionLogprobs,
    ) {
        for token in tokens {
            self.push(names, (token.id, token.logprobs.as_ref()), lists);
        }
    }

    fn push(
        &mut self,
        names: TokenNames<'_>,
        (token, logprobs): (TokenId, Option<&TokenLogprobs>),
        lists: &mut CompletionLogprobs,
    ) {
        let name = names.name(token);
        lists.text_offset.push(self.offset);
        self.offset += names.model.token_text(token).chars().count();
        lists
            .token_logprobs
            .push(logprobs.map(|logprobs| finite(logprobs.chosen)));
        lists.top_logprobs.push(logprobs.map(|logprobs| {
            let mut top = TopLogprobs::default();
            for (id, logprob) in &logprobs.top {
                top.add(names.name(*id), *logprob);
            }
            top.add(name.clone(), logprobs.chosen);
            top
        }));
        lists.tokens.push(name);
    }
}
