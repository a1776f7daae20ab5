//! The Anthropic interface: `/v1/messages` and `/v1/messages/count_tokens`, with our own extensions.

mod blocks;
mod content;
mod errors;
mod messages;
mod reply;
mod tools;

pub(crate) use errors::speak;

use crate::app::{App, Caller};
use crate::body::{Body, shorten};
use crate::constraint::{Forced, Form, json_schema, only};
use crate::conversation::Conversation;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::GenerationTask;
use crate::identifiers;
use crate::interface::{self, Interface, Understood};
use crate::preparation::Preparing;
use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use reply::Writer;
use serde::Serialize;
use serde_json::{Map, Value};

/// The endpoint `/v1/messages`: a conversation is continued.
pub(crate) struct Messages;

/// What is said, and what the answer must be.
struct Asked {
    conversation: Conversation,
    parallel_calls: bool,
    forced: Forced,
    form: Option<Form>,
}

/// The reply of `/v1/messages/count_tokens`.
#[derive(Debug, Serialize)]
pub(crate) struct TokenCount {
    input_tokens: usize,
}

impl Interface for Messages {
    const NAMES: &'static [(&'static str, &'static str)] =
        &[("prompt", "messages"), ("stop", "stop_sequences")];
    type Writer = Writer;

    fn check(model: &Preparing<'_>, fields: &mut Fields<'_>) -> Result<Understood<Writer>, ApiError> {
        let name = model.named(fields.take::<String>("model")?.as_deref())?;
        let own = &["n", "logprobs", "prompt_logprobs"];
        let mut task = GenerationTask::take(model, fields, (0, own))?;
        if task.request.sampling.max_tokens == 0 {
            return Err(ApiError::field("max_tokens", "`max_tokens` is missing"));
        }
        let stream = fields.flag("stream")?;
        let asked = asked(fields)?;
        let parallel_calls = asked.parallel_calls;
        let (tokens, reading) = asked.conversation.prepare(model)?;
        let wanted = reading.wanted(asked.form, &asked.forced, parallel_calls)?;
        let writer = Writer {
            id: identifiers::identifier("msg_"),
            model: name,
            input_tokens: task.add_prompt(tokens).len(),
            reading,
            parallel_calls,
        };
        Ok(Understood {
            task,
            wanted,
            writer,
            stream,
        })
    }
}

/// `/v1/messages/count_tokens`: how long a conversation is.
pub(crate) async fn count_tokens(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Response, ApiError> {
    interface::reply(&app, &caller, body, |model, fields| {
        model.named(fields.take::<String>("model")?.as_deref())?;
        let (tokens, _) = asked(fields)?.conversation.prepare(model)?;
        Ok(TokenCount {
            input_tokens: tokens.len(),
        })
    })
    .await
}

/// The fields of both endpoints.
fn asked(fields: &mut Fields<'_>) -> Result<Asked, ApiError> {
    let messages: Vec<Map<String, Value>> = fields.require("messages")?;
    for (index, message) in messages.iter().enumerate() {
        let place = format!("messages[{index}]");
        fields
            .unknown()
            .note_but(&place, Some(message), &["role", "content"]);
    }
    let tools = fields.take("tools")?.unwrap_or_default();
    let known = ["type", "name", "disable_parallel_tool_use"];
    let offered = tools::offered(tools, fields.take_known("tool_choice", &known)?.as_ref())?;
    let mut variables = Map::new();
    if let Some(thinking) = fields.take_known("thinking", &["type", "budget_tokens", "display"])? {
        variables.insert("enable_thinking".to_owned(), thinks(&thinking)?.into());
    }
    let config: Map<String, Value> = fields.take("output_config")?.unwrap_or_default();
    let known = ["effort", "format"];
    fields.unknown().note_but("output_config", Some(&config), &known);
    let config = Value::Object(config);
    let newer = form("output_config.format", &config["format"])?;
    let older = form(
        "output_format",
        &fields.take("output_format")?.unwrap_or_default(),
    )?;
    match &config["effort"] {
        Value::Null => {}
        Value::String(effort) => {
            variables.insert("reasoning_effort".to_owned(), effort.as_str().into());
        }
        other => {
            let shown = shorten(&other.to_string());
            return Err(ApiError::bound("output_config.effort", &shown, "a string"));
        }
    }
    let conversation = Conversation {
        messages: messages::conversation(fields.take("system")?, messages)?,
        tools: offered.tools,
        variables,
        ..Conversation::default()
    };
    Ok(Asked {
        conversation,
        parallel_calls: offered.parallel,
        forced: offered.forced,
        form: only(newer.into_iter().chain(older))?,
    })
}

/// Whether the model is to think, for templates that know how to ask for it.
fn thinks(thinking: &Value) -> Result<bool, ApiError> {
    match thinking["type"].as_str() {
        Some("enabled" | "adaptive" | "between_tools") => Ok(true),
        Some("disabled") => Ok(false),
        _ => {
            let kind = shorten(&thinking["type"].to_string());
            let bound = "enabled, adaptive, between_tools or disabled";
            Err(ApiError::bound("thinking.type", &kind, bound))
        }
    }
}

/// What a field that describes the form of the answer asks for.
fn form(field: &str, format: &Value) -> Result<Option<Form>, ApiError> {
    if format.is_null() {
        return Ok(None);
    }
    if format["type"] != "json_schema" {
        let kind = shorten(&format["type"].to_string());
        return Err(ApiError::bound(&format!("{field}.type"), &kind, "json_schema"));
    }
    let spec = json_schema(&format!("{field}.schema"), &format["schema"])?;
    Ok(Some(Form::answer(field, spec)))
}
