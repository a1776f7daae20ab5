//! `/v1/chat/completions`: a conversation is continued.

mod messages;
mod parts;
mod reply;
mod stream;

pub(crate) use messages::normalise;

use super::format::FormatFields;
use super::sampling::SamplingFields;
use crate::app::{App, Caller, Checked};
use crate::body::{Body, shorten};
use crate::constraint::{Forced, allow};
use crate::conversation::Conversation;
use crate::error::ApiError;
use crate::generation;
use crate::preparation::Preparing;
use crate::{identifiers, sse};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use reply::Writer;
use serde::Deserialize;
use serde_json::{Map, Value};

/// The engine's names for fields, and those of this endpoint.
const NAMES: [(&str, &str); 3] = [
    ("stop_tokens", "stop_token_ids"),
    ("prompt", "messages"),
    ("logprobs", "top_logprobs"),
];

/// The fields that only this endpoint has.
#[derive(Debug, Deserialize)]
struct Fields {
    model: Option<String>,
    messages: Option<Vec<Map<String, Value>>>,
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    functions: Option<Value>,
    documents: Option<Vec<Map<String, Value>>>,
    reasoning_effort: Option<String>,
    chat_template_kwargs: Option<Map<String, Value>>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
}

/// `POST /v1/chat/completions`.
pub(crate) async fn create(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Response, ApiError> {
    let shared = app.model.clone();
    let check = move |model: &Preparing<'_>, body: &Body| check(model, body, Writer::new(shared));
    let admitted = app.admit(&caller, body, check).await?;
    let checked = &admitted.checked;
    let stream = checked.stream;
    let choices = checked.task.n;
    let (outputs, writer) = app.run(&caller, admitted, &NAMES).await?;
    if stream {
        return Ok(sse::reply(outputs, stream::Chunks::new(writer)));
    }
    let collected = generation::collect(outputs, (1, choices)).await;
    let collected = collected.map_err(|failure| failure.error())?;
    Ok(Json(writer.whole(collected)).into_response())
}

fn check(model: &Preparing<'_>, body: &Body, mut writer: Writer) -> Result<Checked<Writer>, ApiError> {
    let fields: Fields = body.read()?;
    let shared: SamplingFields = body.read()?;
    let name = model.named(fields.model.as_deref())?;
    let mut task = shared.task(model, model.max_model_len)?;
    task.sampling.logprobs = logprobs(&fields)?;
    let parallel = fields.parallel_tool_calls.unwrap_or(true);
    let form = body.read::<FormatFields>()?.form()?;
    let (conversation, forced) = conversation(fields)?;
    let (tokens, reading) = conversation.prepare(model)?;
    let wanted = reading.wanted(form, &forced, parallel)?;
    writer.id = identifiers::identifier("chatcmpl-");
    writer.model_name = name;
    writer.n = task.n;
    writer.reading = reading;
    writer.parallel_calls = parallel;
    writer.logprobs = task.sampling.logprobs.is_some();
    writer.token_ids = shared.return_token_ids.unwrap_or(false);
    writer.include_usage = shared.include_usage();
    writer.prompt_tokens.clone_from(&tokens);
    task.prompts = vec![tokens];
    Ok(Checked {
        task,
        wanted,
        writer,
        stream: shared.streams(),
    })
}

fn logprobs(fields: &Fields) -> Result<Option<usize>, ApiError> {
    let wanted = fields.logprobs.unwrap_or(false);
    match fields.top_logprobs {
        Some(count) if !wanted => {
            let message = format!("`top_logprobs` is {count} although `logprobs` is not true");
            Err(ApiError::field("top_logprobs", message))
        }
        count => Ok(wanted.then(|| count.unwrap_or(0))),
    }
}

/// The conversation, and whether a tool must be called.
fn conversation(fields: Fields) -> Result<(Conversation, Forced), ApiError> {
    if fields.functions.is_some_and(|functions| !functions.is_null()) {
        let message = "`functions` is not supported; describe them in `tools`";
        return Err(ApiError::field("functions", message));
    }
    if fields.continue_final_message == Some(true) {
        let message = "`continue_final_message` is not supported; use /v1/completions to continue a text";
        return Err(ApiError::field("continue_final_message", message));
    }
    let Some(messages) = fields.messages else {
        return Err(ApiError::field("messages", "`messages` is missing"));
    };
    let tools = fields.tools.unwrap_or_default();
    check_tools(&tools)?;
    let (tools, forced) = offered(tools, fields.tool_choice.as_ref())?;
    let mut variables = fields.chat_template_kwargs.unwrap_or_default();
    if let Some(effort) = fields.reasoning_effort {
        variables.entry("reasoning_effort").or_insert(effort.into());
    }
    let conversation = Conversation {
        messages: normalise(messages)?,
        tools,
        documents: fields
            .documents
            .map(|documents| documents.into_iter().map(Value::Object).collect()),
        variables,
        open_turn: fields.add_generation_prompt.unwrap_or(true),
    };
    Ok((conversation, forced))
}

/// The tools that the model is shown, and whether one must be called.
fn offered(tools: Vec<Value>, choice: Option<&Value>) -> Result<(Vec<Value>, Forced), ApiError> {
    const FIELD: &str = "tool_choice";
    let Some(choice) = choice.filter(|choice| !choice.is_null()) else {
        return Ok((tools, Forced::No));
    };
    match (choice.as_str(), choice["type"].as_str()) {
        (Some("auto"), _) => Ok((tools, Forced::No)),
        (Some("none"), _) => Ok((Vec::new(), Forced::No)),
        (Some("required"), _) => Ok((tools, Forced::Any)),
        (_, Some("function")) => {
            let name = name_of(FIELD, choice)?;
            Ok((tools, Forced::One(name.to_owned())))
        }
        (_, Some("allowed_tools")) => {
            let field = "tool_choice.allowed_tools";
            allow(field, &tools, &choice["allowed_tools"], name_of)
        }
        _ => {
            let shown = shorten(&choice.to_string());
            let bound = "auto, none, required, a named function or allowed tools";
            Err(ApiError::bound(FIELD, &shown, bound))
        }
    }
}

fn name_of<'a>(field: &str, tool: &'a Value) -> Result<&'a str, ApiError> {
    tool["function"]["name"].as_str().ok_or_else(|| {
        let field = format!("{field}.function.name");
        let message = format!("`{field}` is missing or not a string");
        ApiError::field(field, message)
    })
}

fn check_tools(tools: &[Value]) -> Result<(), ApiError> {
    for (index, tool) in tools.iter().enumerate() {
        let name = &tool["function"]["name"];
        if tool["type"] != "function" || name.as_str().is_none_or(str::is_empty) {
            let param = format!("tools[{index}]");
            let message = format!("`{param}` must be of type function and its function must have a name");
            return Err(ApiError::field(param, message));
        }
        let (description, parameters) = (&tool["function"]["description"], &tool["function"]["parameters"]);
        let checked = [
            (
                "description",
                description.is_string() || description.is_null(),
                "a string",
            ),
            (
                "parameters",
                parameters.is_object() || parameters.is_null(),
                "an object",
            ),
        ];
        if let Some((name, _, kind)) = checked.iter().find(|(_, right, _)| !right) {
            let param = format!("tools[{index}].function.{name}");
            let message = format!("`{param}` is not {kind}");
            return Err(ApiError::field(param, message));
        }
    }
    Ok(())
}
