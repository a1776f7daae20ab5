//! A response as it comes.

use super::items::Items;
use super::reply::{Reply, Writer};
use crate::error::ApiError;
use crate::generation::{Finish, Output, PartReader};
use crate::sse::{Encoder, Frames};
use paceline_types::FinishReason;
use serde::Serialize;

/// Numbers events and writes them.
#[derive(Debug, Default)]
pub(super) struct EventWriter {
    next: u64,
}

#[derive(Serialize)]
struct Numbered<'a, T> {
    r#type: &'static str,
    sequence_number: u64,
    #[serde(flatten)]
    event: &'a T,
}

#[derive(Serialize)]
struct ResponseEvent<'a> {
    response: &'a Reply,
}

impl EventWriter {
    pub(super) fn send(&mut self, name: &'static str, event: &impl Serialize, frames: &mut Frames) {
        let numbered = Numbered {
            r#type: name,
            sequence_number: self.next,
            event,
        };
        self.next += 1;
        frames.event(name, &numbered);
    }

    fn response(&mut self, name: &'static str, response: &Reply, frames: &mut Frames) {
        self.send(name, &ResponseEvent { response }, frames);
    }
}

/// Writes the events of one response.
pub(crate) struct Events {
    writer: Writer,
    reader: PartReader,
    items: Items,
    sent: EventWriter,
    /// The end of a response that was cancelled, until it is known whether a failure did that.
    cancelled: Option<Finish>,
}

impl Events {
    pub(super) fn new(writer: Writer) -> Self {
        Self {
            reader: writer.reader(),
            writer,
            items: Items::default(),
            sent: EventWriter::default(),
            cancelled: None,
        }
    }

    fn finish(&mut self, finish: &Finish, frames: &mut Frames) {
        for part in self.reader.finish() {
            self.items.add(part, &mut self.sent, frames);
        }
        let complete = finish.reason == FinishReason::Stop;
        self.items.close(complete, &mut self.sent, frames);
        // If a failure cancelled it, that comes next and is what the client is told.
        if finish.reason == FinishReason::Cancelled {
            self.cancelled = Some(finish.clone());
        } else {
            self.tell_end(finish, frames);
        }
    }

    fn tell_end(&mut self, finish: &Finish, frames: &mut Frames) {
        let reply = self.writer.ended(self.items.list(), finish);
        let name = if finish.reason == FinishReason::Stop {
            "response.completed"
        } else {
            "response.incomplete"
        };
        self.sent.response(name, &reply, frames);
    }
}

impl Encoder for Events {
    fn start(&mut self, frames: &mut Frames) {
        let reply = &self.writer.reply;
        self.sent.response("response.created", reply, frames);
        self.sent.response("response.in_progress", reply, frames);
    }

    fn output(&mut self, output: Output, frames: &mut Frames) {
        match output {
            Output::Prompt { .. } => {}
            Output::Delta { output, .. } => {
                for part in self.reader.push(&output.text) {
                    self.items.add(part, &mut self.sent, frames);
                }
            }
            Output::Finished { finish, .. } => self.finish(&finish, frames),
            Output::Failed(failure) => {
                self.cancelled = None;
                self.items.close(false, &mut self.sent, frames);
                let reply = self.writer.failed(self.items.list(), &ApiError::failed(&failure));
                self.sent.response("response.failed", &reply, frames);
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
