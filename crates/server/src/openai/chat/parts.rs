//! The parts of an answer: text, reasoning, tool calls.

use crate::identifiers;
use paceline_text::OutputPart;
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
    /// These parts of a message.
    pub(super) fn of(parts: Vec<OutputPart>) -> Self {
        let mut delta = Self::default();
        for part in parts {
            delta.add(part);
        }
        delta
    }

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
