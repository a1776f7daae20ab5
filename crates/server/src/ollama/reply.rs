//! Replies of `/api/chat` and `/api/generate`, whole and line by line.

use crate::conversation::Reading;
use crate::error::ApiError;
use crate::generation::{Collected, Finish, Output, PartReader, Piece};
use crate::identifiers::rfc3339_now;
use crate::interface;
use crate::sse::{Encoder, Frames};
use paceline_text::OutputPart;
use paceline_types::{FinishReason, TokenId};
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Chat,
    Generate,
}

/// A reply, or a line of one.
#[derive(Debug, Serialize)]
pub(crate) struct Reply {
    model: String,
    created_at: String,
    #[serde(flatten)]
    said: Said,
    done: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    done_reason: Option<&'static str>,
    #[serde(flatten)]
    took: Option<Took>,
}

/// What the model says, in the form of the endpoint.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Said {
    Chat {
        message: Message,
    },
    Generate {
        response: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        thinking: String,
        /// The tokens so far, to go on from; with the last line.
        #[serde(skip_serializing_if = "Option::is_none")]
        context: Option<Vec<TokenId>>,
    },
}

#[derive(Debug, Serialize)]
struct Message {
    role: &'static str,
    content: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    thinking: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Value>,
}

/// Tokens and nanoseconds.
#[derive(Debug, Serialize)]
struct Took {
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
    prompt_eval_duration: u64,
    eval_count: usize,
    eval_duration: u64,
}

/// What replies to one request have in common.
pub(crate) struct Writer {
    pub(super) kind: Kind,
    pub(super) model: String,
    pub(super) reading: Reading,
    pub(super) prompt: Arc<[TokenId]>,
}

/// Parts of an answer that have not been written yet. A call is written when it is whole.
#[derive(Default)]
struct Parts {
    content: String,
    thinking: String,
    calls: Vec<Value>,
    /// Name and arguments of calls that are not whole, by their number.
    open: Vec<(usize, String, String)>,
}

impl Parts {
    fn add(&mut self, parts: Vec<OutputPart>) {
        for part in parts {
            match part {
                OutputPart::Content(text) => self.content.push_str(&text),
                OutputPart::Reasoning(text) => self.thinking.push_str(&text),
                OutputPart::ToolCallStart { index, name } => self.open.push((index, name, String::new())),
                OutputPart::ToolCallArguments { index, delta } => {
                    if let Some((_, _, arguments)) = self.open.iter_mut().find(|call| call.0 == index) {
                        arguments.push_str(&delta);
                    }
                }
                OutputPart::ToolCallEnd { index, complete } => self.close(index, complete),
            }
        }
    }

    fn close(&mut self, index: usize, complete: bool) {
        let place = self.open.iter().position(|call| call.0 == index);
        let call = place.map(|place| self.open.remove(place));
        let Some((index, name, arguments)) = call.filter(|_| complete) else {
            return;
        };
        let arguments: Value = serde_json::from_str(&arguments).unwrap_or_default();
        self.calls
            .push(json!({ "function": { "index": index, "name": name, "arguments": arguments } }));
    }

    fn is_empty(&self) -> bool {
        self.content.is_empty() && self.thinking.is_empty() && self.calls.is_empty()
    }

    /// Takes out what has not been written.
    fn take(&mut self) -> Self {
        let open = std::mem::take(&mut self.open);
        std::mem::replace(
            self,
            Self {
                open,
                ..Self::default()
            },
        )
    }
}

impl Writer {
    fn reader(&self) -> PartReader {
        PartReader::new(self.reading.parser(), true)
    }

    fn line(&self, parts: Parts, end: Option<(&Finish, Vec<TokenId>)>) -> Reply {
        let took = end.as_ref().map(|(finish, _)| self.took(finish));
        let done_reason = end.as_ref().map(|(finish, _)| done_reason(finish));
        let context = end.map(|(_, tokens)| self.prompt.iter().copied().chain(tokens).collect());
        Reply {
            model: self.model.clone(),
            created_at: rfc3339_now(),
            said: said(self.kind, parts, context),
            done: done_reason.is_some(),
            done_reason,
            took,
        }
    }

    fn took(&self, finish: &Finish) -> Took {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let usage = &finish.usage;
        Took {
            total_duration: nanoseconds(usage.total),
            load_duration: 0,
            prompt_eval_count: self.prompt.len(),
            prompt_eval_duration: nanoseconds(usage.first_token),
            eval_count: usage.completion_tokens,
            eval_duration: nanoseconds(usage.total.saturating_sub(usage.first_token)),
        }
    }
}

fn said(kind: Kind, parts: Parts, context: Option<Vec<TokenId>>) -> Said {
    match kind {
        Kind::Chat => Said::Chat {
            message: Message {
                role: "assistant",
                content: parts.content,
                thinking: parts.thinking,
                tool_calls: parts.calls,
            },
        },
        Kind::Generate => Said::Generate {
            response: parts.content,
            thinking: parts.thinking,
            context,
        },
    }
}

/// The reply to a request that only wants the model to be there.
pub(super) fn loaded(kind: Kind, model: &str) -> Reply {
    Reply {
        model: model.to_owned(),
        created_at: rfc3339_now(),
        said: said(kind, Parts::default(), None),
        done: true,
        done_reason: Some("load"),
        took: None,
    }
}

fn done_reason(finish: &Finish) -> &'static str {
    match finish.reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        other => other.name(),
    }
}

impl interface::Writer for Writer {
    type Encoder = Lines;
    type Reply = Reply;

    fn stream(self) -> Lines {
        Lines {
            reader: self.reader(),
            parts: Parts::default(),
            tokens: Vec::new(),
            writer: self,
        }
    }

    fn whole(self, collected: Collected) -> Reply {
        let completion = collected.first();
        let (mut reader, mut parts) = (self.reader(), Parts::default());
        parts.add(reader.push(&completion.whole.text));
        parts.add(reader.finish());
        let tokens = ids(&completion.whole);
        self.line(parts, completion.finish.as_ref().map(|finish| (finish, tokens)))
    }
}

fn ids(piece: &Piece) -> Vec<TokenId> {
    piece.tokens.iter().map(|token| token.id).collect()
}

/// Writes an answer as it comes.
pub(crate) struct Lines {
    writer: Writer,
    reader: PartReader,
    parts: Parts,
    /// Generated so far, for the context of the last line.
    tokens: Vec<TokenId>,
}

impl Encoder for Lines {
    const CONTENT_TYPE: &'static str = "application/x-ndjson";
    /// A line that is no object is more than clients can read.
    const STILL_HERE: &'static str = "";

    fn start(&mut self, _: &mut Frames) {}

    fn output(&mut self, output: Output, frames: &mut Frames) {
        match output {
            Output::Prompt { .. } => {}
            Output::Delta { output, .. } => {
                self.tokens.extend(ids(&output));
                self.parts.add(self.reader.push(&output.text));
                if !self.parts.is_empty() {
                    frames.line(&self.writer.line(self.parts.take(), None));
                }
            }
            Output::Finished { finish, .. } => {
                self.parts.add(self.reader.finish());
                let rest = self.parts.take();
                if !rest.is_empty() {
                    frames.line(&self.writer.line(rest, None));
                }
                let tokens = std::mem::take(&mut self.tokens);
                frames.line(&self.writer.line(Parts::default(), Some((&finish, tokens))));
            }
            Output::Failed(failure) => {
                frames.line(&json!({ "error": ApiError::failed(&failure).message }));
            }
        }
    }

    fn end(&mut self, _: &mut Frames) {}
}
