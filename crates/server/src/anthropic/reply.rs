//! Replies of `/v1/messages`, whole and as events.

use super::blocks::{Block, Blocks};
use super::errors::error_body;
use crate::conversation::Reading;
use crate::error::ApiError;
use crate::generation::{Collected, Finish, Output, PartReader, SpeculationUsage};
use crate::interface;
use crate::sse::{Encoder, Frames};
use paceline_types::FinishReason;
use serde::Serialize;

/// A reply of Anthropic's Messages.
#[derive(Debug, Serialize)]
pub(crate) struct Message {
    id: String,
    r#type: &'static str,
    role: &'static str,
    model: String,
    content: Vec<Block>,
    #[serde(flatten)]
    ending: Ending,
    usage: UsageReply,
}

/// How an answer ended; nothing until it has.
#[derive(Clone, Debug, Default, Serialize)]
#[expect(clippy::struct_field_names, reason = "the fields have Anthropic's names")]
struct Ending {
    stop_reason: Option<&'static str>,
    stop_sequence: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_details: Option<StopDetails>,
}

/// What ended an answer, where the reason alone does not say it.
#[derive(Clone, Debug, Serialize)]
struct StopDetails {
    r#type: &'static str,
    explanation: String,
}

/// Counts of tokens.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct UsageReply {
    input_tokens: usize,
    cache_creation_input_tokens: usize,
    cache_read_input_tokens: usize,
    output_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    speculation: Option<SpeculationUsage>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Event {
    MessageStart { message: Message },
    Ping,
    MessageDelta { delta: Ending, usage: UsageReply },
    MessageStop,
}

/// What replies to one request have in common.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(super) id: String,
    pub(super) model: String,
    pub(super) input_tokens: usize,
    pub(super) reading: Reading,
    pub(super) parallel_calls: bool,
}

impl Writer {
    fn reader(&self) -> PartReader {
        PartReader::new(self.reading.parser(), self.parallel_calls)
    }

    fn message(&self, content: Vec<Block>, finish: Option<&Finish>, reader: &PartReader) -> Message {
        Message {
            id: self.id.clone(),
            r#type: "message",
            role: "assistant",
            model: self.model.clone(),
            content,
            ending: finish.map_or_else(Ending::default, |finish| ending(finish, reader)),
            usage: self.usage(finish),
        }
    }

    fn usage(&self, finish: Option<&Finish>) -> UsageReply {
        let cached = finish.map_or(0, |finish| finish.usage.cached_tokens);
        UsageReply {
            // Those from the cache are counted apart; at the start of a stream their number is not known.
            input_tokens: self.input_tokens - cached.min(self.input_tokens),
            cache_read_input_tokens: cached,
            output_tokens: finish.map_or(0, |finish| finish.usage.completion_tokens),
            speculation: finish.and_then(|finish| SpeculationUsage::of(&finish.usage.speculation)),
            ..UsageReply::default()
        }
    }
}

impl interface::Writer for Writer {
    type Encoder = Events;
    type Reply = Message;

    fn stream(self) -> Events {
        Events::new(self)
    }

    fn whole(self, collected: Collected) -> Message {
        let completion = collected.first();
        let (mut reader, mut blocks, mut frames) = (self.reader(), Blocks::default(), Frames::default());
        let mut parts = reader.push(&completion.whole.text);
        parts.extend(reader.finish());
        for part in parts {
            blocks.add(part, &mut frames);
        }
        self.message(blocks.into_content(), completion.finish.as_ref(), &reader)
    }
}

/// The end in Anthropic's words; it has none for a deadline.
fn ending(finish: &Finish, reader: &PartReader) -> Ending {
    let stop_reason = match finish.reason {
        FinishReason::Stop if finish.stop.is_some() => "stop_sequence",
        FinishReason::Stop if reader.called() => "tool_use",
        FinishReason::Stop => "end_turn",
        FinishReason::Length => "max_tokens",
        other => other.name(),
    };
    Ending {
        stop_reason: Some(stop_reason),
        stop_sequence: finish.stop.clone(),
        stop_details: finish.detail.clone().map(|explanation| StopDetails {
            r#type: stop_reason,
            explanation,
        }),
    }
}

/// Writes an answer as it comes.
pub(crate) struct Events {
    writer: Writer,
    reader: PartReader,
    blocks: Blocks,
    /// The end of an answer that was cancelled, until it is known whether a failure did that.
    cancelled: Option<Finish>,
}

impl Events {
    pub(super) fn new(writer: Writer) -> Self {
        Self {
            reader: writer.reader(),
            blocks: Blocks::default(),
            writer,
            cancelled: None,
        }
    }

    fn finish(&mut self, finish: &Finish, frames: &mut Frames) {
        for part in self.reader.finish() {
            self.blocks.add(part, frames);
        }
        self.blocks.stop(frames);
        // If a failure cancelled it, that comes next and is what the client is told.
        if finish.reason == FinishReason::Cancelled {
            self.cancelled = Some(finish.clone());
        } else {
            self.tell_end(finish, frames);
        }
    }

    fn tell_end(&self, finish: &Finish, frames: &mut Frames) {
        let event = Event::MessageDelta {
            delta: ending(finish, &self.reader),
            usage: self.writer.usage(Some(finish)),
        };
        frames.event("message_delta", &event);
        frames.event("message_stop", &Event::MessageStop);
    }
}

impl Encoder for Events {
    fn start(&mut self, frames: &mut Frames) {
        let message = self.writer.message(Vec::new(), None, &self.reader);
        frames.event("message_start", &Event::MessageStart { message });
        frames.event("ping", &Event::Ping);
    }

    fn output(&mut self, output: Output, frames: &mut Frames) {
        match output {
            Output::Prompt { .. } => {}
            Output::Delta { output, .. } => {
                for part in self.reader.push(&output.text) {
                    self.blocks.add(part, frames);
                }
            }
            Output::Finished { finish, .. } => self.finish(&finish, frames),
            Output::Failed(failure) => {
                self.cancelled = None;
                frames.event("error", &error_body(&ApiError::failed(&failure)));
            }
        }
    }

    fn end(&mut self, frames: &mut Frames) {
        if let Some(finish) = self.cancelled.take() {
            self.tell_end(&finish, frames);
        }
    }
}

#[cfg(test)]
mod tests;
