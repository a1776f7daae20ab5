//! A response as a whole.

use super::events::{EventWriter, Events};
use super::items::{Item, Items};
use crate::conversation::Reading;
use crate::error::{ApiError, ErrorKind};
use crate::generation::{Collected, Finish, PartReader, SpeculationUsage};
use crate::identifiers;
use crate::interface;
use crate::sse::Frames;
use paceline_types::FinishReason;
use serde::Serialize;
use serde_json::{Map, Value};

/// A response, with what was asked for.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Reply {
    pub(super) id: String,
    pub(super) object: &'static str,
    pub(super) created_at: u64,
    pub(super) completed_at: Option<u64>,
    pub(super) status: &'static str,
    pub(super) background: bool,
    pub(super) error: Option<Fault>,
    pub(super) incomplete_details: Option<Incomplete>,
    pub(super) instructions: Option<String>,
    pub(super) max_output_tokens: Option<u64>,
    pub(super) max_tool_calls: Option<u64>,
    pub(super) metadata: Map<String, Value>,
    pub(super) model: String,
    pub(super) output: Vec<Item>,
    pub(super) parallel_tool_calls: bool,
    /// Nothing is stored, so nothing can be continued.
    pub(super) previous_response_id: Option<String>,
    pub(super) reasoning: Value,
    pub(super) service_tier: &'static str,
    pub(super) store: bool,
    pub(super) temperature: f32,
    pub(super) text: Value,
    pub(super) tool_choice: Value,
    pub(super) tools: Vec<Value>,
    pub(super) top_logprobs: u32,
    pub(super) top_p: f32,
    pub(super) truncation: &'static str,
    pub(super) usage: Option<UsageReply>,
    pub(super) user: Option<String>,
}

/// Why a response failed.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Fault {
    code: &'static str,
    message: String,
}

/// Why a response ended too early.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Incomplete {
    reason: &'static str,
    /// What its constraint ran into, where that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

/// Counts of tokens.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct UsageReply {
    input_tokens: usize,
    input_tokens_details: InputDetails,
    output_tokens: usize,
    output_tokens_details: OutputDetails,
    total_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    speculation: Option<SpeculationUsage>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct InputDetails {
    cached_tokens: usize,
    cache_write_tokens: usize,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct OutputDetails {
    reasoning_tokens: usize,
}

/// What every state of one response has in common.
#[derive(Debug)]
pub(crate) struct Writer {
    /// The response as it begins.
    pub(super) reply: Reply,
    pub(super) reading: Reading,
    pub(super) input_tokens: usize,
}

impl Writer {
    pub(super) fn reader(&self) -> PartReader {
        PartReader::new(self.reading.parser(), self.reply.parallel_tool_calls)
    }

    /// The response at its end.
    pub(super) fn ended(&self, items: &[Item], finish: &Finish) -> Reply {
        let reason = match finish.reason {
            FinishReason::Stop => None,
            FinishReason::Length => Some("max_output_tokens"),
            other => Some(other.name()),
        };
        let usage = &finish.usage;
        Reply {
            completed_at: Some(identifiers::unix_time()),
            status: if reason.is_none() {
                "completed"
            } else {
                "incomplete"
            },
            incomplete_details: reason.map(|reason| Incomplete {
                reason,
                message: finish.detail.clone(),
            }),
            output: items.to_vec(),
            usage: Some(UsageReply {
                input_tokens: self.input_tokens,
                input_tokens_details: InputDetails {
                    cached_tokens: usage.cached_tokens,
                    ..InputDetails::default()
                },
                output_tokens: usage.completion_tokens,
                output_tokens_details: OutputDetails::default(),
                total_tokens: self.input_tokens + usage.completion_tokens,
                speculation: SpeculationUsage::of(&usage.speculation),
            }),
            ..self.reply.clone()
        }
    }

    /// The response after a failure.
    pub(super) fn failed(&self, items: &[Item], error: &ApiError) -> Reply {
        let code = match error.kind {
            ErrorKind::Busy => "rate_limit_exceeded",
            ErrorKind::Invalid => "invalid_prompt",
            _ => "server_error",
        };
        Reply {
            status: "failed",
            error: Some(Fault {
                code,
                message: error.message.clone(),
            }),
            output: items.to_vec(),
            ..self.reply.clone()
        }
    }
}

impl interface::Writer for Writer {
    type Encoder = Events;
    type Reply = Reply;

    fn stream(self) -> Events {
        Events::new(self)
    }

    fn whole(self, collected: Collected) -> Reply {
        let completion = collected.first();
        let (mut items, mut reader) = (Items::default(), self.reader());
        let (mut events, mut frames) = (EventWriter::default(), Frames::default());
        let mut parts = reader.push(&completion.whole.text);
        parts.extend(reader.finish());
        for part in parts {
            items.add(part, &mut events, &mut frames);
        }
        let Some(finish) = &completion.finish else {
            return self.reply;
        };
        let complete = finish.reason == FinishReason::Stop;
        items.close(complete, &mut events, &mut frames);
        self.ended(items.list(), finish)
    }
}
