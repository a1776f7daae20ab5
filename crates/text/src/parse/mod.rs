//! What a model wrote, as parts: answer, reasoning and tool calls, while the text still arrives.
//!
//! Reasoning is outermost: tags inside it are text. What follows it goes to the tool format, if there is one. Text
//! that may be the beginning of a tag or of a call's head is held back until it is decided; everything else comes
//! out at once. The parts, with neighbours of a kind joined, do not depend on how the text was cut into pieces.
//!
//! White space that only separates is dropped: newlines next to the tags of reasoning, and white space between
//! calls, before a call that nothing precedes, and after the last call.

mod emit;
mod format;
mod hermes;
mod json;
mod llama3;
mod object;
mod qwen3_coder;
mod reasoning;
mod scan;
mod schema;

use std::fmt;

use serde_json::Value;

use emit::{Emitter, Parts};
pub use format::{CallFrame, ReasoningFormat, ToolFormat};
use reasoning::ReasoningParser;

/// A part of a model's output, or a piece of one.
///
/// The parts of a call come in order: one start, its arguments, one end; no other part comes between them. Calls
/// are numbered from 0. The formats carry no identifiers of calls; a caller that needs one makes it at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputPart {
    /// Text of the answer.
    Content(String),
    /// Text of the model's reasoning.
    Reasoning(String),
    /// A call begins. It has a name and the beginning of an object of arguments.
    ToolCallStart {
        /// Number of the call in this text, from 0.
        index: usize,
        /// The tool's name, never empty.
        name: String,
    },
    /// More of a call's arguments, as JSON text.
    ToolCallArguments {
        /// Number of the call in this text, from 0.
        index: usize,
        /// What to append to the arguments so far.
        delta: String,
    },
    /// A call ends.
    ToolCallEnd {
        /// Number of the call in this text, from 0.
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
    tools: Option<Box<dyn ToolParser>>,
    out: Emitter,
}

/// Finds the calls of one format in the text after the reasoning.
trait ToolParser: fmt::Debug + Send {
    fn push(&mut self, text: &str, out: &mut Emitter, parts: &mut Parts);

    /// Ends the text: writes what was held back, and ends a call that is not finished.
    fn finish(&mut self, out: &mut Emitter, parts: &mut Parts);
}

impl OutputParser {
    /// A parser for one output.
    pub fn new(options: &OutputParserOptions<'_>) -> Self {
        let inside = options.inside_reasoning;
        let tools = options.tool_format.map(|format| -> Box<dyn ToolParser> {
            match format {
                ToolFormat::Hermes | ToolFormat::Generic => Box::new(hermes::Hermes::default()),
                ToolFormat::Qwen3Coder => Box::new(qwen3_coder::Qwen3Coder::new(options.tools)),
                ToolFormat::Llama3Json => Box::new(llama3::Llama3::default()),
            }
        });
        Self {
            reasoning: options.reasoning.map(|_| ReasoningParser::new(inside)),
            tools,
            out: Emitter::default(),
        }
    }

    /// Takes the next piece of text and returns what it decides.
    pub fn push(&mut self, text: &str) -> Vec<OutputPart> {
        let mut parts = Parts::default();
        if let Some(reasoning) = &mut self.reasoning {
            let rest = reasoning.push(text, &mut parts);
            self.after_reasoning(&rest, &mut parts);
        } else {
            self.after_reasoning(text, &mut parts);
        }
        parts.into_list()
    }

    /// Ends the text and returns what was held back. A call that is not finished ends incomplete. Called once,
    /// after the last piece.
    pub fn finish(&mut self) -> Vec<OutputPart> {
        let mut parts = Parts::default();
        if let Some(reasoning) = &mut self.reasoning {
            let rest = reasoning.finish(&mut parts);
            self.after_reasoning(&rest, &mut parts);
        }
        if let Some(tools) = &mut self.tools {
            tools.finish(&mut self.out, &mut parts);
        }
        self.out.finish(&mut parts);
        parts.into_list()
    }

    fn after_reasoning(&mut self, text: &str, parts: &mut Parts) {
        match &mut self.tools {
            Some(tools) => tools.push(text, &mut self.out, parts),
            None => parts.content(text),
        }
    }
}
