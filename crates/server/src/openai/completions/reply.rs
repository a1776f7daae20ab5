//! Replies of `/v1/completions`, whole and in pieces.

use super::stream::Chunks;
use crate::generation::{Collected, Continuation, Finish, Piece, Resumed, StreamOptions};
use crate::interface;
use crate::model::ServedModel;
use crate::openai::logprobs::{CompletionLogprobs, LogprobWriter, TokenNames};
use crate::openai::origins::StepReply;
use crate::openai::shared_ids;
use crate::openai::usage::{UsageField, UsageReply, finish_reason};
use paceline_types::{TokenId, TokenLogprobs};
use serde::Serialize;
use std::sync::Arc;

/// A reply, or a chunk of one.
#[derive(Debug, Serialize)]
pub(crate) struct Reply {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    system_fingerprint: &'static str,
    pub(super) choices: Vec<ChoiceReply>,
    #[serde(skip_serializing_if = "UsageField::is_absent")]
    pub(super) usage: UsageField,
}

/// A choice, or more of it.
#[derive(Debug, Default, Serialize)]
pub(super) struct ChoiceReply {
    index: usize,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<&'static str>,
    /// The stop string that was found.
    stop_reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<TokenId>>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "shared_ids")]
    prompt_token_ids: Option<Arc<[TokenId]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_origins: Option<Vec<StepReply>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) continuation: Option<Continuation>,
}

/// What replies to one request have in common.
pub(crate) struct Writer {
    pub(super) model: Arc<ServedModel>,
    pub(super) model_name: String,
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) n: usize,
    pub(super) echo: bool,
    /// Nothing is shown of what is generated.
    pub(super) only_prompt: bool,
    pub(super) logprobs: bool,
    /// Log-probabilities name tokens by their ids.
    pub(super) names_as_ids: bool,
    pub(super) token_ids: bool,
    pub(super) origins: bool,
    pub(super) stream_options: StreamOptions,
    pub(super) prompts: Vec<PromptText>,
    pub(super) prompt_tokens: usize,
    pub(super) resumed: Resumed,
}

/// A prompt, and its text if that is to be echoed.
pub(super) struct PromptText {
    tokens: Arc<[TokenId]>,
    text: String,
}

/// Where the reply to one choice stands.
#[derive(Clone)]
pub(super) struct Progress {
    offsets: LogprobWriter,
    begun: bool,
}

impl Writer {
    pub(super) fn add_prompt(&mut self, tokens: Arc<[TokenId]>, text: String) {
        self.prompt_tokens += tokens.len();
        self.prompts.push(PromptText { tokens, text });
    }

    /// Of a choice before its first piece here.
    pub(super) fn progress(&self) -> Progress {
        let mut progress = Progress {
            offsets: LogprobWriter::default(),
            begun: false,
        };
        let given_out = &self.resumed.tokens;
        if !given_out.is_empty() {
            let prompt = self.prompts.first().filter(|_| self.echo);
            let prompt = prompt.map_or(&[][..], |prompt| &prompt.tokens);
            progress.offsets.skip(&self.model, prompt);
            progress.offsets.skip(&self.model, given_out);
        }
        progress
    }

    pub(super) fn choices(&self) -> usize {
        self.prompts.len() * self.n
    }

    pub(super) fn prompt_count(&self) -> usize {
        self.prompts.len()
    }

    /// What was taken before anything is generated.
    pub(super) fn usage(&self) -> UsageReply {
        UsageReply::of_prompts(self.prompt_tokens)
    }

    pub(super) fn reply(&self, choices: Vec<ChoiceReply>, usage: UsageField) -> Reply {
        Reply {
            id: self.id.clone(),
            object: "text_completion",
            created: self.created,
            model: self.model_name.clone(),
            system_fingerprint: crate::openai::FINGERPRINT,
            choices,
            usage,
        }
    }

    /// More of a choice. The first piece begins with the prompt if that is to be echoed.
    pub(super) fn piece(
        &self,
        index: usize,
        piece: Piece,
        prompt_logprobs: &[TokenLogprobs],
        progress: &mut Progress,
    ) -> ChoiceReply {
        let prompt = &self.prompts[index / self.n];
        // What a text began with that goes on here has been given out.
        let begins = !std::mem::replace(&mut progress.begun, true) && self.resumed.tokens.is_empty();
        let model = &self.model;
        let names = TokenNames {
            model,
            as_ids: self.names_as_ids,
        };
        let mut text = String::new();
        let mut lists = CompletionLogprobs::default();
        if begins && self.echo {
            text.push_str(&prompt.text);
            if self.logprobs {
                lists = progress.offsets.prompt(names, &prompt.tokens, prompt_logprobs);
            }
        }
        let piece = if self.only_prompt { Piece::default() } else { piece };
        text.push_str(&piece.text);
        if self.logprobs {
            progress.offsets.add(names, &piece.tokens, &mut lists);
        }
        ChoiceReply {
            index,
            text,
            logprobs: self.logprobs.then_some(lists),
            token_ids: self
                .token_ids
                .then(|| piece.tokens.iter().map(|token| token.id).collect()),
            token_origins: self.origins.then(|| {
                let steps = piece.steps.into_iter();
                steps.map(|step| StepReply::of(model, step)).collect()
            }),
            prompt_token_ids: (begins && self.token_ids).then(|| Arc::clone(&prompt.tokens)),
            ..ChoiceReply::default()
        }
    }

    /// Counts what a choice took and showed.
    pub(super) fn count(&self, usage: &mut UsageReply, finish: &Finish) {
        if !self.only_prompt {
            usage.add(finish);
        }
    }
}

impl interface::Writer for Writer {
    type Encoder = Chunks;
    type Reply = Reply;

    fn stream(self) -> Chunks {
        Chunks::new(self)
    }

    fn whole(self, collected: Collected) -> Reply {
        let mut usage = self.usage();
        let mut choices = Vec::with_capacity(collected.completions.len());
        for (index, completion) in collected.completions.into_iter().enumerate() {
            let logprobs = &collected.prompt_logprobs[index / self.n];
            let told = self.resumed.told.clone();
            let continuation = told.and_then(|told| told.whole(&completion));
            let mut choice = self.piece(index, completion.whole, logprobs, &mut self.progress());
            choice.continuation = continuation;
            if let Some(finish) = &completion.finish {
                choice.finish(finish);
                self.count(&mut usage, finish);
            }
            choices.push(choice);
        }
        self.reply(choices, UsageField::Known(usage))
    }
}

impl ChoiceReply {
    pub(super) fn finish(&mut self, finish: &Finish) {
        self.finish_reason = Some(finish_reason(finish));
        self.stop_reason = finish.stop.clone().or_else(|| finish.detail.clone());
    }
}
