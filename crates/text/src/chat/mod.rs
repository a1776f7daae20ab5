//! Chat templates: from a conversation to the text a model was trained on.
//!
//! Templates are Jinja programs that come with a model and are written for Python. They are untrusted: they
//! cannot reach anything outside the conversation, and the steps they take, the bytes they handle and the nesting of
//! values are bounded, and with these time and memory.

mod amplifying;
mod budget;
mod json;
mod metered;
mod python;
mod tools;

use std::error::Error as _;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use tools::describe_tools;

use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, ErrorKind, machinery};
use serde_json::{Map, Value};

use crate::config::{NamedTemplate, TokenizerConfig};
use crate::error::{Result, TextError};

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

/// Instructions one rendering may take; a long conversation takes some ten thousand.
const MAX_STEPS: u64 = 20_000_000;

/// What a template is rendered with.
#[derive(Clone, Debug, Default)]
pub struct ChatInput {
    /// The conversation: objects with "role", "content" and what else the template knows.
    pub messages: Vec<Value>,
    /// Descriptions of the tools on offer.
    pub tools: Option<Vec<Value>>,
    /// Documents to answer from.
    pub documents: Option<Vec<Value>>,
    /// End the text with the start of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Further variables, such as `enable_thinking`. They win over those above.
    pub extra: Map<String, Value>,
}

impl ChatInput {
    /// Replaces tool-call arguments that are JSON text, as clients send them, by the objects they describe,
    /// as templates expect them. Text that is no JSON object stays.
    pub fn parse_tool_arguments(&mut self) {
        let calls = self
            .messages
            .iter_mut()
            .filter_map(|message| message.get_mut("tool_calls"));
        for call in calls.filter_map(Value::as_array_mut).flatten() {
            let target = if call.get("function").is_some() {
                call.get_mut("function")
            } else {
                Some(call)
            };
            let Some(arguments) = target.and_then(|target| target.get_mut("arguments")) else {
                continue;
            };
            let parsed = arguments
                .as_str()
                .and_then(|text| serde_json::from_str::<Value>(text).ok());
            if let Some(object @ Value::Object(_)) = parsed {
                *arguments = object;
            }
        }
    }

    fn context(&self, template: &ChatTemplate) -> Map<String, Value> {
        let mut context = Map::new();
        let tokens = [
            ("bos_token", &template.bos_token),
            ("eos_token", &template.eos_token),
        ];
        for (name, token) in tokens {
            if let Some(token) = token {
                context.insert(name.to_owned(), token.as_str().into());
            }
        }
        let optional = |list: &Option<Vec<Value>>| list.clone().map_or(Value::Null, Value::Array);
        context.insert("messages".to_owned(), self.messages.clone().into());
        context.insert("tools".to_owned(), optional(&self.tools));
        context.insert("documents".to_owned(), optional(&self.documents));
        context.insert(
            "add_generation_prompt".to_owned(),
            self.add_generation_prompt.into(),
        );
        context.extend(self.extra.clone());
        context
    }
}

/// A model's chat template, compiled.
pub struct ChatTemplate {
    environment: Environment<'static>,
    default: String,
    tool_use: Option<String>,
    bos_token: Option<String>,
    eos_token: Option<String>,
}

impl ChatTemplate {
    /// Compiles a template.
    pub fn new(source: &str, bos_token: Option<&str>, eos_token: Option<&str>) -> Result<Self> {
        let config = TokenizerConfig {
            bos_token: bos_token.map(str::to_owned),
            eos_token: eos_token.map(str::to_owned),
            ..TokenizerConfig::default()
        };
        Self::from_config(&config.with_chat_template(source))
    }

    /// Compiles a template to be used in place of another, with the same special tokens.
    pub fn replacing(other: Option<&Self>, source: &str) -> Result<Self> {
        let token = |of: fn(&Self) -> Option<&str>| other.and_then(of);
        let begin = token(|template| template.bos_token.as_deref());
        Self::new(source, begin, token(|template| template.eos_token.as_deref()))
    }

    /// Compiles the templates of a configuration. The one named "tool_use", if any, serves conversations with
    /// tools, and the one named "default" the others; a single template serves all, whatever its name.
    pub fn from_config(config: &TokenizerConfig) -> Result<Self> {
        let named = |name: &str| {
            config
                .chat_templates
                .iter()
                .find(|template| template.name == name)
        };
        let only = || {
            config
                .chat_templates
                .first()
                .filter(|_| config.chat_templates.len() == 1)
        };
        let default = named(DEFAULT).or_else(only).ok_or(TextError::NoTemplate)?;
        let source = |template: &NamedTemplate| {
            if template.source.trim().is_empty() {
                return Err(TextError::NoTemplate);
            }
            let source = python::without_generation_tags(&template.source);
            metered::compile(DEFAULT, &source)
                .map_err(|error| TextError::InvalidTemplate(describe(&error)))?;
            Ok(source)
        };
        let mut environment = python::environment();
        environment.set_fuel(Some(MAX_STEPS));
        Ok(Self {
            environment,
            default: source(default)?,
            tool_use: named(TOOL_USE).map(source).transpose()?,
            bos_token: config.bos_token.clone(),
            eos_token: config.eos_token.clone(),
        })
    }

    /// The template as it was written, but for what only training needs.
    pub fn source(&self) -> &str {
        &self.default
    }

    /// The text of a conversation. A template that refuses it gives [`TextError::TemplateRaised`] with its own
    /// words.
    pub fn render(&self, input: &ChatInput) -> Result<String> {
        let with_tools = input.tools.as_ref().is_some_and(|tools| !tools.is_empty());
        let tool_use = self.tool_use.as_ref().filter(|_| with_tools);
        let source = tool_use.unwrap_or(&self.default);
        let context = minijinja::Value::from(Serde(input.context(self)));
        let mut text = String::new();
        // Some operations on hostile values break an assertion inside the engine; the rendering is dropped whole.
        let attempt = AssertUnwindSafe(|| {
            let program = metered::compile(DEFAULT, source)?;
            let output = &mut machinery::make_string_output(&mut text);
            let (instructions, blocks) = (&program.instructions, &program.blocks);
            machinery::eval(
                &self.environment,
                instructions,
                context,
                blocks,
                output,
                AutoEscape::None,
            )
            .map(drop)
        });
        let rendered =
            catch_unwind(attempt).map_err(|_| TextError::Render("the template engine gave up".to_owned()))?;
        if let Err(error) = rendered {
            let mut source = error.source();
            while let Some(cause) = source {
                if let Some(python::Raised(message)) = cause.downcast_ref() {
                    return Err(TextError::TemplateRaised(message.clone()));
                }
                source = cause.source();
            }
            return Err(TextError::Render(describe(&error)));
        }
        Ok(text)
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("has_tool_use", &self.tool_use.is_some())
            .field("bos_token", &self.bos_token)
            .field("eos_token", &self.eos_token)
            .finish_non_exhaustive()
    }
}

/// An error of the template engine in one line, with what the template was doing.
fn describe(error: &minijinja::Error) -> String {
    let what = match (error.kind(), error.detail()) {
        (ErrorKind::OutOfFuel, _) => format!("it takes more than {MAX_STEPS} steps"),
        (kind, Some(detail)) => format!("{kind}: {detail}"),
        (kind, None) => kind.to_string(),
    };
    let place = error
        .line()
        .map(|line| format!(" (line {line})"))
        .unwrap_or_default();
    let cause = error
        .source()
        .map(|cause| format!(": {cause}"))
        .unwrap_or_default();
    format!("{what}{place}{cause}")
}

#[cfg(test)]
mod tests;
