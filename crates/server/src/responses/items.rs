//! The output of a response: items, and the events that tell how they came about.

use super::events::EventWriter;
use crate::identifiers::identifier;
use crate::sse::Frames;
use paceline_text::OutputPart;
use serde::Serialize;

/// How far an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    InProgress,
    Completed,
    Incomplete,
}

/// An item of the output.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Item {
    id: String,
    status: Status,
    #[serde(flatten)]
    kind: Kind,
}

#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Kind {
    Message {
        role: &'static str,
        content: Vec<Part>,
    },
    Reasoning {
        /// Empty: no summary is made.
        summary: [(); 0],
        content: Vec<Part>,
    },
    FunctionCall {
        call_id: String,
        name: String,
        arguments: String,
    },
}

/// The content of an item; it has one at most.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part {
    OutputText {
        text: String,
        annotations: [(); 0],
        logprobs: [(); 0],
    },
    ReasoningText {
        text: String,
    },
}

/// Where in the output an event happened.
#[derive(Serialize)]
struct Place<'a, T> {
    item_id: &'a str,
    output_index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_index: Option<usize>,
    #[serde(flatten)]
    rest: T,
}

#[derive(Serialize)]
struct ItemEvent<'a> {
    output_index: usize,
    item: &'a Item,
}

#[derive(Serialize)]
struct PartEvent<'a> {
    part: &'a Part,
}

/// More of a text; those of a message have a place for log-probabilities.
#[derive(Serialize)]
struct DeltaEvent<'a> {
    delta: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<[(); 0]>,
}

#[derive(Serialize)]
struct TextEvent<'a> {
    text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<[(); 0]>,
}

#[derive(Serialize)]
struct ArgumentsEvent<'a> {
    name: &'a str,
    arguments: &'a str,
}

impl Part {
    fn text(&self) -> &str {
        match self {
            Self::OutputText { text, .. } | Self::ReasoningText { text } => text,
        }
    }

    /// The names of its events, and its log-probabilities where it has a place for them.
    fn events(&self) -> (&'static str, &'static str, Option<[(); 0]>) {
        match self {
            Self::OutputText { .. } => (
                "response.output_text.delta",
                "response.output_text.done",
                Some([]),
            ),
            Self::ReasoningText { .. } => (
                "response.reasoning_text.delta",
                "response.reasoning_text.done",
                None,
            ),
        }
    }
}

impl Item {
    fn new(prefix: &str, kind: Kind) -> Self {
        Self {
            id: identifier(prefix),
            status: Status::InProgress,
            kind,
        }
    }

    fn part(&mut self) -> Option<&mut Part> {
        match &mut self.kind {
            Kind::Message { content, .. } | Kind::Reasoning { content, .. } => content.first_mut(),
            Kind::FunctionCall { .. } => None,
        }
    }
}

/// The items so far. What happens to them goes into frames as well; a reply that is no stream drops those.
#[derive(Debug, Default)]
pub(super) struct Items {
    items: Vec<Item>,
}

impl Items {
    /// The items.
    pub(super) fn list(&self) -> &[Item] {
        &self.items
    }

    /// One more part.
    pub(super) fn add(&mut self, part: OutputPart, events: &mut EventWriter, frames: &mut Frames) {
        match part {
            OutputPart::Content(text) => {
                if !matches!(self.current(), Some(Kind::Message { .. })) {
                    let kind = Kind::Message {
                        role: "assistant",
                        content: Vec::new(),
                    };
                    let part = Part::OutputText {
                        text: String::new(),
                        annotations: [],
                        logprobs: [],
                    };
                    self.open(Item::new("msg_", kind), Some(part), events, frames);
                }
                self.more_text(&text, events, frames);
            }
            OutputPart::Reasoning(text) => {
                if !matches!(self.current(), Some(Kind::Reasoning { .. })) {
                    let (summary, content) = ([], Vec::new());
                    let item = Item::new("rs_", Kind::Reasoning { summary, content });
                    let part = Part::ReasoningText { text: String::new() };
                    self.open(item, Some(part), events, frames);
                }
                self.more_text(&text, events, frames);
            }
            OutputPart::ToolCallStart { name, .. } => {
                let kind = Kind::FunctionCall {
                    call_id: identifier("call_"),
                    name,
                    arguments: String::new(),
                };
                self.open(Item::new("fc_", kind), None, events, frames);
            }
            OutputPart::ToolCallArguments { delta, .. } => self.more_arguments(&delta, events, frames),
            OutputPart::ToolCallEnd { complete, .. } => self.close(complete, events, frames),
        }
    }

    /// Ends the last item, as a whole one or as one that was cut off.
    pub(super) fn close(&mut self, complete: bool, events: &mut EventWriter, frames: &mut Frames) {
        let output_index = self.items.len().saturating_sub(1);
        let Some(item) = self.last_open() else {
            return;
        };
        item.status = if complete {
            Status::Completed
        } else {
            Status::Incomplete
        };
        let place = |content_index| (item.id.as_str(), output_index, content_index);
        match &item.kind {
            Kind::Message { content, .. } | Kind::Reasoning { content, .. } => {
                for (index, part) in content.iter().enumerate() {
                    let (_, done, logprobs) = part.events();
                    let text = TextEvent {
                        text: part.text(),
                        logprobs,
                    };
                    events.send(done, &at(place(Some(index)), text), frames);
                    let event = at(place(Some(index)), PartEvent { part });
                    events.send("response.content_part.done", &event, frames);
                }
            }
            Kind::FunctionCall { name, arguments, .. } => {
                let event = at(place(None), ArgumentsEvent { name, arguments });
                events.send("response.function_call_arguments.done", &event, frames);
            }
        }
        events.send(
            "response.output_item.done",
            &ItemEvent { output_index, item },
            frames,
        );
    }

    /// The last item if it still grows.
    fn last_open(&mut self) -> Option<&mut Item> {
        self.items
            .last_mut()
            .filter(|item| item.status == Status::InProgress)
    }

    fn current(&mut self) -> Option<&Kind> {
        self.last_open().map(|item| &item.kind)
    }

    fn open(&mut self, item: Item, part: Option<Part>, events: &mut EventWriter, frames: &mut Frames) {
        self.close(true, events, frames);
        let output_index = self.items.len();
        let added = ItemEvent {
            output_index,
            item: &item,
        };
        events.send("response.output_item.added", &added, frames);
        if let Some(part) = &part {
            let event = at((&item.id, output_index, Some(0)), PartEvent { part });
            events.send("response.content_part.added", &event, frames);
        }
        let mut item = item;
        if let Kind::Message { content, .. } | Kind::Reasoning { content, .. } = &mut item.kind {
            content.extend(part);
        }
        self.items.push(item);
    }

    fn more_text(&mut self, delta: &str, events: &mut EventWriter, frames: &mut Frames) {
        let output_index = self.items.len().saturating_sub(1);
        let Some(item) = self.last_open() else {
            return;
        };
        let Some(part) = item.part() else {
            return;
        };
        let (name, _, logprobs) = part.events();
        match part {
            Part::OutputText { text, .. } | Part::ReasoningText { text } => text.push_str(delta),
        }
        let event = at((&item.id, output_index, Some(0)), DeltaEvent { delta, logprobs });
        events.send(name, &event, frames);
    }

    fn more_arguments(&mut self, delta: &str, events: &mut EventWriter, frames: &mut Frames) {
        let output_index = self.items.len().saturating_sub(1);
        let Some(item) = self.last_open() else {
            return;
        };
        if let Kind::FunctionCall { arguments, .. } = &mut item.kind {
            arguments.push_str(delta);
        }
        let logprobs = None;
        let event = at((&item.id, output_index, None), DeltaEvent { delta, logprobs });
        events.send("response.function_call_arguments.delta", &event, frames);
    }
}

fn at<T>((item_id, output_index, content_index): (&str, usize, Option<usize>), rest: T) -> Place<'_, T> {
    Place {
        item_id,
        output_index,
        content_index,
        rest,
    }
}
