//! Chat templates: from a conversation to the text a model was trained on.
//!
//! Templates are Jinja programs that come with a model and are written for Python. They are untrusted: they
//! cannot reach anything outside the conversation, and steps, nesting and output are bounded. The size of a
//! single value is not: a template that doubles a string again and again can exhaust the memory.

mod json;
mod python;

use std::error::Error as _;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind};
use serde_json::{Map, Value};

use crate::config::TokenizerConfig;
use crate::error::{Result, TextError};

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

/// Instructions one rendering may take; a long conversation takes some ten thousand.
const MAX_STEPS: u64 = 20_000_000;

/// Longest rendered text, in bytes.
const MAX_OUTPUT: usize = 64 << 20;

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
    has_tool_use: bool,
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
        let mut environment = python::environment();
        environment.set_fuel(Some(MAX_STEPS));
        let sources = [(DEFAULT, Some(default)), (TOOL_USE, named(TOOL_USE))];
        let mut has_tool_use = false;
        for (name, template) in sources {
            let Some(template) = template else { continue };
            if template.source.trim().is_empty() {
                return Err(TextError::NoTemplate);
            }
            environment
                .add_template_owned(name, python::without_generation_tags(&template.source))
                .map_err(|error| TextError::InvalidTemplate(describe(&error)))?;
            has_tool_use |= name == TOOL_USE;
        }
        Ok(Self {
            environment,
            has_tool_use,
            bos_token: config.bos_token.clone(),
            eos_token: config.eos_token.clone(),
        })
    }

    /// The text of a conversation. A template that refuses it gives [`TextError::TemplateRaised`] with its own
    /// words.
    pub fn render(&self, input: &ChatInput) -> Result<String> {
        let with_tools = self.has_tool_use && input.tools.as_ref().is_some_and(|tools| !tools.is_empty());
        let name = if with_tools { TOOL_USE } else { DEFAULT };
        let template = self
            .environment
            .get_template(name)
            .map_err(|error| TextError::Render(describe(&error)))?;
        let context = minijinja::Value::from(Serde(input.context(self)));
        let mut output = Bounded(Vec::new());
        // Some operations on hostile values break an assertion inside the engine; the rendering is dropped whole.
        let attempt = AssertUnwindSafe(|| template.render_captured_to(context, &mut output).map(drop));
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
        String::from_utf8(output.0).map_err(|error| TextError::Render(error.to_string()))
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("has_tool_use", &self.has_tool_use)
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

/// Collects up to [`MAX_OUTPUT`] bytes.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > MAX_OUTPUT - self.0.len() {
            return Err(io::Error::other(format!(
                "the text is longer than {MAX_OUTPUT} bytes"
            )));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
