//! What a model wrote, as parts: answer, reasoning and tool calls, while the text still arrives.
//!
//! Reasoning is outermost: tags inside it are text. What follows it goes to the tool format, if there is one. Text
//! that may be the beginning of a tag or of a call's head is held back until it is decided; everything else comes
//! out at once. The parts, with neighbours of a kind joined, do not depend on how the text was cut into pieces.
//!
//! White space that only separates is dropped: newlines next to the tags of reasoning, and white space between
//! calls, before a call that nothing precedes, and after the last call.

mod format;
mod reasoning;
mod scan;

use serde_json::Value;

pub use format::{CallFrame, ReasoningFormat, ToolFormat};
use reasoning::ReasoningParser;

/// A part of a model's output, or a piece of one.
///
/// The parts of a call come in order: one start, its arguments, one end; no other part comes between them. Calls
/// are numbered from 0. The formats carry no identifiers of calls; whoever needs one makes it at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputPart {
    /// Text of the answer.
    Content(String),
    /// Text of the model's reasoning.
    Reasoning(String),
    /// A call begins. It has a name and the beginning of an object of arguments.
    ToolCallStart {
        /// Which call.
        index: usize,
        /// The tool's name, never empty.
        name: String,
    },
    /// More of a call's arguments, as JSON text.
    ToolCallArguments {
        /// Which call.
        index: usize,
        /// What to append to the arguments so far.
        delta: String,
    },
    /// A call ends.
    ToolCallEnd {
        /// Which call.
        index: usize,
        /// Whether its arguments are a whole JSON object. Otherwise the text ended or went wrong in the midst of
        /// them: they are not empty and not valid JSON, so that no client takes them for something to execute.
        /// They are not repaired, for the same reason.
        complete: bool,
    },
}

/// What an output is expected to look like. The default is plain text.
#[derive(Clone, Debug, Default)]
pub struct OutputParserOptions<'a> {
    /// How reasoning is marked; without it, the tags are text.
    pub reasoning: Option<ReasoningFormat>,
    /// The text begins inside the reasoning; see [`ReasoningFormat::starts_inside`].
    pub inside_reasoning: bool,
    /// How calls are written; without it, they are text.
    pub tool_format: Option<ToolFormat>,
    /// The tools on offer, as OpenAI or Anthropic clients describe them. Formats without types of their own take
    /// the types of the arguments from here.
    pub tools: &'a [Value],
}

/// Splits the text of one output into parts as it arrives.
#[derive(Debug)]
pub struct OutputParser {
    reasoning: Option<ReasoningParser>,
}

impl OutputParser {
    /// A parser for one output.
    pub fn new(options: &OutputParserOptions<'_>) -> Self {
        Self {
            reasoning: options
                .reasoning
                .map(|_| ReasoningParser::new(options.inside_reasoning)),
        }
    }

    /// Takes the next piece of text and returns what it decides.
    pub fn push(&mut self, text: &str) -> Vec<OutputPart> {
        let mut parts = Parts::default();
        match &mut self.reasoning {
            Some(reasoning) => {
                let content = reasoning.push(text, &mut parts);
                parts.content(&content);
            }
            None => parts.content(text),
        }
        parts.list
    }

    /// Ends the text and returns what was held back. A call that is not finished ends incomplete.
    pub fn finish(&mut self) -> Vec<OutputPart> {
        let mut parts = Parts::default();
        if let Some(reasoning) = &mut self.reasoning {
            let content = reasoning.finish(&mut parts);
            parts.content(&content);
        }
        parts.list
    }
}

/// Collects parts; neighbours of a kind become one, and empty ones none.
#[derive(Debug, Default)]
struct Parts {
    list: Vec<OutputPart>,
}

impl Parts {
    fn content(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if let Some(OutputPart::Content(last)) = self.list.last_mut() {
            last.push_str(text);
        } else {
            self.list.push(OutputPart::Content(text.to_owned()));
        }
    }

    fn reasoning(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if let Some(OutputPart::Reasoning(last)) = self.list.last_mut() {
            last.push_str(text);
        } else {
            self.list.push(OutputPart::Reasoning(text.to_owned()));
        }
    }
}
