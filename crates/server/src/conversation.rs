//! Conversations, for every interface that has them: from messages to tokens, and from text back to parts.

use crate::error::ApiError;
use crate::model::ServedModel;
use paceline_text::{ChatInput, OutputParser, OutputParserOptions, ReasoningFormat, ToolFormat};
use paceline_types::TokenId;
use serde_json::{Map, Value};

/// What is said so far, and with which tools.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conversation {
    /// Objects with `role`, `content` as text, and what else templates know: `tool_calls`, `reasoning_content`...
    pub(crate) messages: Vec<Value>,
    /// Tools on offer, in OpenAI's form: `{"type": "function", "function": {...}}`.
    pub(crate) tools: Vec<Value>,
    /// Documents to answer from.
    pub(crate) documents: Option<Vec<Value>>,
    /// Further variables of the template.
    pub(crate) variables: Map<String, Value>,
    /// End with the start of the model's turn.
    pub(crate) open_turn: bool,
}

/// How to read what the model writes in a conversation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    reasoning: Option<ReasoningFormat>,
    inside_reasoning: bool,
    tool_format: Option<ToolFormat>,
    tools: Vec<Value>,
}

impl Conversation {
    /// The tokens of the conversation, and how to read the answer.
    pub(crate) fn prepare(self, model: &ServedModel) -> Result<(Vec<TokenId>, Reading), ApiError> {
        let tools = self.tools;
        let mut input = ChatInput {
            messages: self.messages,
            tools: (!tools.is_empty()).then(|| tools.clone()),
            documents: self.documents,
            add_generation_prompt: self.open_turn,
            extra: self.variables,
        };
        input.parse_tool_arguments();
        let text = model.render(&input)?;
        let tokenizer = model.require_tokenizer("messages")?;
        // The template writes the special tokens itself.
        let tokens = tokenizer
            .encode(&text, false)
            .map_err(|error| ApiError::text("messages", &error))?;
        let reading = Reading {
            reasoning: model.reasoning_format,
            inside_reasoning: model
                .reasoning_format
                .is_some_and(|format| format.starts_inside(&text)),
            tool_format: model.tool_format.filter(|_| !tools.is_empty()),
            tools,
        };
        Ok((tokens, reading))
    }
}

impl Reading {
    /// A parser for one choice.
    pub(crate) fn parser(&self) -> OutputParser {
        OutputParser::new(&OutputParserOptions {
            reasoning: self.reasoning,
            inside_reasoning: self.inside_reasoning,
            tool_format: self.tool_format,
            tools: &self.tools,
        })
    }
}
