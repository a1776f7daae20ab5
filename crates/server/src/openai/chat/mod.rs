//! `/v1/chat/completions`: a conversation is continued.

mod messages;
mod parts;
mod reply;
mod stream;

pub(crate) use messages::normalise;

use super::format::FormatFields;
use crate::body::shorten;
use crate::constraint::{Forced, allow};
use crate::conversation::{Conversation, ConversationEnd};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::{GenerationTask, stream};
use crate::identifiers;
use crate::interface::{Interface, Understood};
use crate::preparation::Preparing;
use reply::Writer;
use serde_json::{Map, Value};

/// Longest template that a request may bring along, in bytes.
const MAX_TEMPLATE: usize = 64 << 10;

/// `POST /v1/chat/completions`.
pub(crate) struct Chat;

impl Interface for Chat {
    const NAMES: &'static [(&'static str, &'static str)] = &[
        ("prompt", "messages"),
        ("logprobs", "top_logprobs"),
        ("generated", "continuation.token_ids"),
    ];
    type Writer = Writer;

    fn check(model: &Preparing<'_>, fields: &mut Fields<'_>) -> Result<Understood<Writer>, ApiError> {
        let name = model.named(fields.take::<String>("model")?.as_deref())?;
        let logprobs = logprobs(fields)?;
        let own = &["logprobs", "prompt_logprobs"];
        let mut task = GenerationTask::take(model, fields, (model.max_model_len, own))?;
        task.request.sampling_mut().logprobs = logprobs;
        refuse_foreign(fields)?;
        let (stream, stream_options) = stream(fields)?;
        let parallel_calls = fields.take("parallel_tool_calls")?.unwrap_or(true);
        let token_ids = fields.flag("return_token_ids")?;
        let origins = task.take_origins(fields)?;
        let form = FormatFields::take(fields)?.form()?;
        let (conversation, forced) = conversation(fields)?;
        task.decoding.continues = conversation.end == ConversationEnd::InLastMessage;
        let (tokens, reading) = conversation.prepare(model)?;
        let wanted = reading.wanted(form, &forced, parallel_calls)?;
        let prompt_tokens = task.add_prompt(tokens);
        let resumed = task.take_continuation(model, fields)?;
        let writer = Writer {
            model: model.shared(),
            model_name: name,
            id: identifiers::identifier("chatcmpl-"),
            created: identifiers::unix_time(),
            n: task.n(),
            reading,
            parallel_calls,
            logprobs: logprobs.is_some(),
            token_ids,
            origins,
            stream_options,
            prompt_tokens,
            resumed,
        };
        Ok(Understood {
            task,
            wanted,
            writer,
            stream,
        })
    }
}

/// What exists elsewhere and not here.
fn refuse_foreign(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    fields.refuse("functions", "describe them in `tools`")?;
    fields.refuse("function_call", "use `tool_choice`")?;
    fields.refuse(
        "prompt_logprobs",
        "use /v1/completions with `echo` and `logprobs` for log-probabilities of a prompt",
    )?;
    fields.refuse("echo", "the reply is the new message alone")
}

fn logprobs(fields: &mut Fields<'_>) -> Result<Option<usize>, ApiError> {
    let wanted = fields.flag("logprobs")?;
    match fields.take::<usize>("top_logprobs")? {
        Some(count) if !wanted => {
            let message = format!("`top_logprobs` is {count} although `logprobs` is not true");
            Err(ApiError::field("top_logprobs", message))
        }
        count => Ok(wanted.then(|| count.unwrap_or(0))),
    }
}

/// The conversation, and whether a tool must be called.
fn conversation(fields: &mut Fields<'_>) -> Result<(Conversation, Forced), ApiError> {
    let messages = normalise(fields.require("messages")?)?;
    let tools = fields.take::<Vec<Value>>("tools")?.unwrap_or_default();
    check_tools(&tools)?;
    let (tools, forced) = offered(
        tools,
        fields.take_known("tool_choice", &["type", "function"])?.as_ref(),
    )?;
    let mut variables: Map<String, Value> = fields.take("chat_template_kwargs")?.unwrap_or_default();
    if let Some(effort) = fields.take::<String>("reasoning_effort")? {
        variables.entry("reasoning_effort").or_insert(effort.into());
    }
    let documents = fields.take::<Vec<Map<String, Value>>>("documents")?;
    let conversation = Conversation {
        end: end(fields, &messages)?,
        messages,
        tools,
        documents: documents.map(|documents| documents.into_iter().map(Value::Object).collect()),
        variables,
        template: template(fields)?,
    };
    Ok((conversation, forced))
}

/// How the conversation ends.
pub(crate) fn end(fields: &mut Fields<'_>, messages: &[Value]) -> Result<ConversationEnd, ApiError> {
    let open = fields.take::<bool>("add_generation_prompt")?;
    if !fields.flag("continue_final_message")? {
        return Ok(if open.unwrap_or(true) {
            ConversationEnd::OpenTurn
        } else {
            ConversationEnd::Closed
        });
    }
    let refuse = |message: &str| Err(ApiError::field("continue_final_message", message));
    if open == Some(true) {
        return refuse("`continue_final_message` and `add_generation_prompt` exclude each other");
    }
    if messages.last().is_none_or(|last| last["role"] != "assistant") {
        return refuse("`continue_final_message` is true, but the last message is not the assistant's");
    }
    Ok(ConversationEnd::InLastMessage)
}

/// A template of the request's own.
pub(crate) fn template(fields: &mut Fields<'_>) -> Result<Option<String>, ApiError> {
    const FIELD: &str = "chat_template";
    let template = fields.take::<String>(FIELD)?;
    if let Some(length) = template
        .as_ref()
        .map(String::len)
        .filter(|length| *length > MAX_TEMPLATE)
    {
        let bound = format!("at most {MAX_TEMPLATE} bytes long");
        return Err(ApiError::bound(FIELD, &format!("{length} bytes long"), &bound));
    }
    Ok(template)
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
