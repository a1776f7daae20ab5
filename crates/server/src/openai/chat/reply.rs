//! Replies of `/v1/chat/completions`, whole and in pieces.

use super::parts::Delta;
use super::stream::Chunks;
use crate::conversation::Reading;
use crate::generation::{
    Collected, Continuation, Finish, GeneratedToken, PartReader, Piece, Resumed, Step, StreamOptions,
    has_moved,
};
use crate::interface;
use crate::model::ServedModel;
use crate::openai::logprobs::finite;
use crate::openai::origins::StepReply;
use crate::openai::shared_ids;
use crate::openai::usage::{UsageField, UsageReply, finish_reason};
use paceline_types::{FinishReason, TokenId};
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
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "shared_ids")]
    pub(super) prompt_token_ids: Option<Arc<[TokenId]>>,
}

/// A choice, or more of it.
#[derive(Debug, Default, Serialize)]
pub(super) struct ChoiceReply {
    pub(super) index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Message>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) delta: Option<Delta>,
    pub(super) logprobs: Option<ChatLogprobs>,
    pub(super) finish_reason: Option<&'static str>,
    /// The stop string that was found.
    stop_reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token_ids: Option<Vec<TokenId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_origins: Option<Vec<StepReply>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) continuation: Option<Continuation>,
}

/// A whole message; unlike in pieces of one, its content is always there.
#[derive(Debug, Serialize)]
struct Message {
    role: &'static str,
    content: Option<String>,
    refusal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<super::parts::ToolCall>,
}

/// Log-probabilities of the tokens of an answer.
#[derive(Debug, Serialize)]
pub(super) struct ChatLogprobs {
    content: Vec<ChatLogprob>,
    refusal: Option<Vec<ChatLogprob>>,
}

#[derive(Debug, Serialize)]
struct ChatLogprob {
    #[serde(flatten)]
    chosen: TopLogprob,
    top_logprobs: Vec<TopLogprob>,
}

#[derive(Debug, Serialize)]
struct TopLogprob {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

/// What replies to one request have in common.
pub(crate) struct Writer {
    pub(super) model: Arc<ServedModel>,
    pub(super) model_name: String,
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) n: usize,
    pub(super) reading: Reading,
    pub(super) parallel_calls: bool,
    pub(super) logprobs: bool,
    pub(super) token_ids: bool,
    pub(super) origins: bool,
    pub(super) stream_options: StreamOptions,
    pub(super) prompt_tokens: Arc<[TokenId]>,
    pub(super) resumed: Resumed,
}

impl Writer {
    /// What was taken before anything is generated.
    pub(super) fn usage(&self) -> UsageReply {
        UsageReply::of_prompts(self.prompt_tokens.len())
    }

    /// Reads a choice, behind what has been given out of it elsewhere.
    pub(super) fn reader(&self) -> PartReader {
        let mut reader = PartReader::new(self.reading.parser(), self.parallel_calls);
        reader.push(&self.resumed.text);
        reader
    }

    pub(super) fn reply(&self, object: &'static str, choices: Vec<ChoiceReply>) -> Reply {
        Reply {
            id: self.id.clone(),
            object,
            created: self.created,
            model: self.model_name.clone(),
            system_fingerprint: crate::openai::FINGERPRINT,
            choices,
            usage: UsageField::Absent,
            prompt_token_ids: None,
        }
    }

    /// What a choice says of these tokens and steps.
    pub(super) fn choice(&self, index: usize, tokens: &[GeneratedToken], steps: Vec<Step>) -> ChoiceReply {
        let logprobs = self.logprobs.then(|| ChatLogprobs {
            content: tokens.iter().map(|token| self.logprob(token)).collect(),
            refusal: None,
        });
        let token_ids = self
            .token_ids
            .then(|| tokens.iter().map(|token| token.id).collect());
        ChoiceReply {
            index,
            logprobs,
            token_ids,
            token_origins: self.origins.then(|| {
                let steps = steps.into_iter();
                steps.map(|step| StepReply::of(&self.model, step)).collect()
            }),
            ..ChoiceReply::default()
        }
    }

    fn logprob(&self, token: &GeneratedToken) -> ChatLogprob {
        let logprobs = token.logprobs.as_ref();
        let entry = |id: TokenId, logprob: f32| TopLogprob {
            token: self.model.token_text(id),
            logprob: finite(logprob),
            bytes: self.model.token_bytes(id).to_vec(),
        };
        let top = logprobs.map_or(&[][..], |logprobs| &logprobs.top);
        ChatLogprob {
            chosen: entry(token.id, logprobs.map_or(f32::MIN, |logprobs| logprobs.chosen)),
            top_logprobs: top.iter().map(|(id, logprob)| entry(*id, *logprob)).collect(),
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
            let mut reader = self.reader();
            let told = self.resumed.told.clone();
            let continuation = told.and_then(|told| told.whole(&completion));
            let Piece { text, tokens, steps } = completion.whole;
            let mut choice = self.choice(index, &tokens, steps);
            let first = Delta::of(reader.push(&text));
            choice.continuation = continuation;
            let moved = completion.finish.as_ref().is_some_and(has_moved);
            let rest = if moved { Vec::new() } else { reader.finish() };
            choice.message = Some(message(first, Delta::of(rest)));
            if let Some(finish) = &completion.finish {
                choice.finish(finish, &reader);
                usage.add(finish);
            }
            choices.push(choice);
        }
        Reply {
            usage: UsageField::Known(usage),
            prompt_token_ids: self.token_ids.then(|| Arc::clone(&self.prompt_tokens)),
            ..self.reply("chat.completion", choices)
        }
    }
}

/// A message from its parts.
fn message(first: Delta, rest: Delta) -> Message {
    let join = |first: Option<String>, rest: Option<String>| match (first, rest) {
        (Some(first), Some(rest)) => Some(first + &rest),
        (first, rest) => first.or(rest),
    };
    let tool_calls = super::parts::join_calls(first.tool_calls, rest.tool_calls);
    let content = join(first.content, rest.content);
    Message {
        role: "assistant",
        // Clients expect text unless there are calls instead.
        content: content.or_else(|| tool_calls.is_empty().then(String::new)),
        refusal: None,
        reasoning_content: join(first.reasoning_content, rest.reasoning_content),
        reasoning: join(first.reasoning, rest.reasoning),
        tool_calls,
    }
}

impl ChoiceReply {
    pub(super) fn finish(&mut self, finish: &Finish, reader: &PartReader) {
        let calls = finish.reason == FinishReason::Stop && reader.called();
        self.finish_reason = Some(if calls {
            "tool_calls"
        } else {
            finish_reason(finish)
        });
        self.stop_reason = finish.stop.clone().or_else(|| finish.detail.clone());
    }
}
