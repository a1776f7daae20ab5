//! The content of an answer: blocks, and the events that tell how they came about.

use crate::identifiers;
use crate::sse::Frames;
use paceline_text::OutputPart;
use serde::Serialize;
use serde_json::{Map, Value};

/// A block of an answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Block {
    Text {
        text: String,
    },
    Thinking {
        thinking: String,
        signature: String,
    },
    ToolUse {
        id: String,
        name: String,
        /// Empty until the call has ended.
        input: Map<String, Value>,
        /// The input as it was written.
        #[serde(skip)]
        written: String,
        #[serde(skip)]
        complete: bool,
    },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(clippy::enum_variant_names, reason = "the names of the interface")]
enum Event<'a> {
    ContentBlockStart { index: usize, content_block: &'a Block },
    ContentBlockDelta { index: usize, delta: Delta<'a> },
    ContentBlockStop { index: usize },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(clippy::enum_variant_names, reason = "the names of the interface")]
enum Delta<'a> {
    TextDelta { text: &'a str },
    ThinkingDelta { thinking: &'a str },
    InputJsonDelta { partial_json: &'a str },
}

/// The blocks so far. What happens to them goes into frames as well; a reply that is no stream drops those.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    blocks: Vec<Block>,
    /// The last one still grows.
    open: bool,
}

impl Blocks {
    /// One more part.
    pub(super) fn add(&mut self, part: OutputPart, frames: &mut Frames) {
        match part {
            OutputPart::Content(piece) => {
                if !matches!(self.current(), Some(Block::Text { .. })) {
                    self.start(Block::Text { text: String::new() }, frames);
                }
                self.delta(Delta::TextDelta { text: &piece }, frames);
                if let Some(Block::Text { text }) = self.current() {
                    text.push_str(&piece);
                }
            }
            OutputPart::Reasoning(piece) => {
                if !matches!(self.current(), Some(Block::Thinking { .. })) {
                    let (thinking, signature) = (String::new(), String::new());
                    self.start(Block::Thinking { thinking, signature }, frames);
                }
                self.delta(Delta::ThinkingDelta { thinking: &piece }, frames);
                if let Some(Block::Thinking { thinking, .. }) = self.current() {
                    thinking.push_str(&piece);
                }
            }
            OutputPart::ToolCallStart { name, .. } => {
                let block = Block::ToolUse {
                    id: identifiers::identifier("toolu_"),
                    name,
                    input: Map::new(),
                    written: String::new(),
                    complete: false,
                };
                self.start(block, frames);
            }
            OutputPart::ToolCallArguments { delta, .. } => {
                self.delta(Delta::InputJsonDelta { partial_json: &delta }, frames);
                if let Some(Block::ToolUse { written, .. }) = self.current() {
                    written.push_str(&delta);
                }
            }
            OutputPart::ToolCallEnd { complete: whole, .. } => self.end_call(whole, frames),
        }
    }

    fn end_call(&mut self, whole: bool, frames: &mut Frames) {
        if let Some(Block::ToolUse {
            input,
            written,
            complete,
            ..
        }) = self.current()
            && whole
            && let Ok(object) = serde_json::from_str(written)
        {
            *input = object;
            *complete = true;
        }
        self.stop(frames);
    }

    /// Ends the last block.
    pub(super) fn stop(&mut self, frames: &mut Frames) {
        if self.open {
            self.open = false;
            let index = self.blocks.len() - 1;
            frames.event("content_block_stop", &Event::ContentBlockStop { index });
        }
    }

    /// The whole content. A call that was cut off has no usable input: it is shown as the text that
    /// there is of it.
    pub(super) fn into_content(self) -> Vec<Block> {
        let whole = |block| match block {
            Block::ToolUse {
                complete: false,
                written,
                ..
            } => Block::Text { text: written },
            block => block,
        };
        self.blocks.into_iter().map(whole).collect()
    }

    fn current(&mut self) -> Option<&mut Block> {
        self.blocks.last_mut().filter(|_| self.open)
    }

    fn start(&mut self, content_block: Block, frames: &mut Frames) {
        self.stop(frames);
        let event = Event::ContentBlockStart {
            index: self.blocks.len(),
            content_block: &content_block,
        };
        frames.event("content_block_start", &event);
        self.blocks.push(content_block);
        self.open = true;
    }

    fn delta(&self, delta: Delta<'_>, frames: &mut Frames) {
        let index = self.blocks.len().saturating_sub(1);
        frames.event("content_block_delta", &Event::ContentBlockDelta { index, delta });
    }
}
