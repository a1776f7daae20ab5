//! Conversations, for every interface that has them: from messages to tokens, and from text back to parts.

use crate::constraint::{Forced, Form, Offer, Wanted, wanted};
use crate::error::ApiError;
use crate::model::ServedModel;
use crate::preparation::Preparing;
use paceline_grammar::Lead;
use paceline_text::{
    ChatInput, OutputParser, OutputParserOptions, ReasoningFormat, ToolFormat, describe_tools,
};
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
    /// How it ends.
    pub(crate) end: ConversationEnd,
    /// A template in place of the model's.
    pub(crate) template: Option<String>,
}

/// How the text of a conversation ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ConversationEnd {
    /// With the start of the model's turn.
    #[default]
    OpenTurn,
    /// With the end of the last message.
    Closed,
    /// In the last message, which the model goes on with.
    InLastMessage,
}

/// How to read what the model writes in a conversation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    reasoning: Option<ReasoningFormat>,
    inside_reasoning: bool,
    /// The model may begin with its reasoning, or not.
    may_reason: bool,
    tool_format: Option<ToolFormat>,
    tools: Vec<Value>,
}

impl Conversation {
    /// The tokens of the conversation, and how to read the answer.
    pub(crate) fn prepare(self, model: &Preparing<'_>) -> Result<(Vec<TokenId>, Reading), ApiError> {
        let tools = self.tools;
        let mut input = ChatInput {
            messages: self.messages,
            tools: (!tools.is_empty()).then(|| tools.clone()),
            documents: self.documents,
            add_generation_prompt: self.end == ConversationEnd::OpenTurn,
            extra: self.variables,
        };
        input.parse_tool_arguments();
        let mut text = render(model, &mut input, self.template.as_deref())?;
        if self.end == ConversationEnd::InLastMessage {
            cut_behind_last_message(&mut text, &input)?;
        }
        let tokenizer = model.require_tokenizer("messages")?;
        // The template writes the special tokens itself.
        let tokens = model.encode("messages", &text, false)?;
        let inside_reasoning = model
            .reasoning_format
            .is_some_and(|format| format.starts_inside(&text));
        // A model that reasons has a token for it. One whose prompt has closed the block is done with that.
        let may_reason = model.reasoning_format.map(ReasoningFormat::tags);
        let may_reason = may_reason.is_some_and(|(open, close)| {
            tokenizer.token_to_id(open).is_some() && !text.trim_end().ends_with(close)
        });
        let reading = Reading {
            reasoning: model.reasoning_format,
            inside_reasoning,
            may_reason,
            tool_format: model.tool_format.filter(|_| !tools.is_empty()),
            tools,
        };
        Ok((tokens, reading))
    }
}

/// The text of a conversation. Where the template was not made for tools, they and what was said with them are written
/// into the messages: into the system message, unless the template takes none.
fn render(model: &ServedModel, input: &mut ChatInput, own: Option<&str>) -> Result<String, ApiError> {
    if model.tool_format != Some(ToolFormat::Generic) {
        return model.render(input, own);
    }
    input.spell_out_calls();
    let Some(tools) = input.tools.take() else {
        return model.render(input, own);
    };
    let told = describe_tools(&tools);
    let mut with_system = input.clone();
    with_system.begin_with(&told, true);
    match model.render(&with_system, own) {
        Ok(text) if text.contains(&told) => Ok(text),
        _ => {
            input.begin_with(&told, false);
            model.render(input, own)
        }
    }
}

/// Takes away what the template writes behind the last message, so that the model goes on with it.
fn cut_behind_last_message(text: &mut String, input: &ChatInput) -> Result<(), ApiError> {
    let last = input
        .messages
        .last()
        .and_then(|message| message["content"].as_str());
    let content = last.map(str::trim).filter(|content| !content.is_empty());
    let end = content.and_then(|content| Some(text.rfind(content)? + content.len()));
    let end = end.ok_or_else(|| {
        let message =
            "`continue_final_message` is true, but the last message has no text that the template writes";
        ApiError::field("continue_final_message", message)
    })?;
    text.truncate(end);
    Ok(())
}

impl Reading {
    /// The grammar that an answer must follow, if a form is asked for or calls are forced by `tool_choice`. It holds
    /// behind the reasoning.
    pub(crate) fn wanted(
        &self,
        form: Option<Form>,
        forced: &Forced,
        parallel_calls: bool,
    ) -> Result<Option<Wanted>, ApiError> {
        let offer = Offer {
            tools: &self.tools,
            format: self.tool_format,
            parallel: parallel_calls,
        };
        let wanted = wanted(form, (forced, "tool_choice"), &offer)?;
        Ok(wanted.map(|wanted| Wanted {
            lead: self.lead(),
            ..wanted
        }))
    }

    fn lead(&self) -> Lead {
        let Some((open, close)) = self.reasoning.map(ReasoningFormat::tags) else {
            return Lead::None;
        };
        if self.inside_reasoning {
            Lead::Until(close.to_owned())
        } else if self.may_reason {
            Lead::Block(open.to_owned(), close.to_owned())
        } else {
            Lead::None
        }
    }

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
