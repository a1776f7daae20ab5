//! The parts of an answer: text, reasoning, tool calls.

use crate::identifiers;
use paceline_text::{OutputParser, OutputPart};
use serde::Serialize;

/// A part of a message, or all of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content: Option<String>,
    /// The name that `DeepSeek` gave it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reasoning_content: Option<String>,
    /// The name that vLLM and others give it now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reasoning: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tool_calls: Vec<ToolCall>,
}

/// A tool call, or more of one.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct ToolCall {
    /// Only streams number the calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: Function,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Function {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

impl Delta {
    /// Whether there is nothing in it.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn add(&mut self, part: OutputPart) {
        match part {
            OutputPart::Content(text) => self.content.get_or_insert_default().push_str(&text),
            OutputPart::Reasoning(text) => {
                self.reasoning_content.get_or_insert_default().push_str(&text);
                self.reasoning.get_or_insert_default().push_str(&text);
            }
            OutputPart::ToolCallStart { index, name } => self.tool_calls.push(ToolCall {
                index: Some(index),
                id: Some(identifiers::identifier("call_")),
                kind: Some("function"),
                function: Function {
                    name: Some(name),
                    arguments: String::new(),
                },
            }),
            OutputPart::ToolCallArguments { index, delta } => {
                self.call(index).function.arguments.push_str(&delta);
            }
            OutputPart::ToolCallEnd { .. } => {}
        }
    }

    fn call(&mut self, index: usize) -> &mut ToolCall {
        let known = self.tool_calls.iter().position(|call| call.index == Some(index));
        let position = known.unwrap_or_else(|| {
            self.tool_calls.push(ToolCall {
                index: Some(index),
                ..ToolCall::default()
            });
            self.tool_calls.len() - 1
        });
        &mut self.tool_calls[position]
    }
}

/// Reads one answer while it comes.
#[derive(Debug)]
pub(super) struct AnswerReader {
    parser: OutputParser,
    /// Calls after the first are left out.
    one_call: bool,
    called: bool,
}

impl AnswerReader {
    pub(super) fn new(parser: OutputParser, parallel_calls: bool) -> Self {
        Self {
            parser,
            one_call: !parallel_calls,
            called: false,
        }
    }

    /// More text.
    pub(super) fn push(&mut self, text: &str) -> Delta {
        let parts = self.parser.push(text);
        self.delta(parts)
    }

    /// The end of the text.
    pub(super) fn finish(&mut self) -> Delta {
        let parts = self.parser.finish();
        self.delta(parts)
    }

    /// Whether a tool was called.
    pub(super) fn called(&self) -> bool {
        self.called
    }

    fn delta(&mut self, parts: Vec<OutputPart>) -> Delta {
        let mut delta = Delta::default();
        for part in parts {
            let call = match &part {
                OutputPart::ToolCallStart { index, .. }
                | OutputPart::ToolCallArguments { index, .. }
                | OutputPart::ToolCallEnd { index, .. } => Some(*index),
                OutputPart::Content(_) | OutputPart::Reasoning(_) => None,
            };
            self.called |= call.is_some();
            if !(self.one_call && call.is_some_and(|index| index > 0)) {
                delta.add(part);
            }
        }
        delta
    }
}

/// The calls of a whole message, from its first parts and its last.
pub(super) fn join_calls(first: Vec<ToolCall>, rest: Vec<ToolCall>) -> Vec<ToolCall> {
    let mut calls = first;
    for call in rest {
        match calls.iter_mut().find(|known| known.index == call.index) {
            Some(known) => known.function.arguments.push_str(&call.function.arguments),
            None => calls.push(call),
        }
    }
    for call in &mut calls {
        call.index = None;
    }
    calls
}
