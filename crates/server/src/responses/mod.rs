//! `/v1/responses`: the Responses interface of OpenAI, with our own extensions. Responses are not stored.

mod events;
mod input;
mod items;
mod reply;
mod tools;
mod truncate;

use crate::body::shorten;
use crate::constraint::Forced;
use crate::conversation::Conversation;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::GenerationTask;
use crate::identifiers;
use crate::interface::{Interface, Understood};
use crate::model::ServedModel;
use crate::preparation::Preparing;
use reply::{Reply, Writer};
use serde_json::{Map, Value, json};

/// `POST /v1/responses`.
pub(crate) struct Responses;

impl Interface for Responses {
    const NAMES: &'static [(&'static str, &'static str)] =
        &[("prompt", "input"), ("max_tokens", "max_output_tokens")];
    type Writer = Writer;

    fn check(model: &Preparing<'_>, fields: &mut Fields<'_>) -> Result<Understood<Writer>, ApiError> {
        refuse_foreign(fields)?;
        let own = &["n", "logprobs", "prompt_logprobs"];
        let limited = fields.gives("max_output_tokens");
        let mut task = GenerationTask::take(model, fields, (model.max_model_len, own))?;
        let mut reply = begin(model, fields)?;
        reply.max_output_tokens = limited.then_some(task.request.sampling.max_tokens as u64);
        reply.temperature = task.request.sampling.temperature;
        reply.top_p = task.request.sampling.top_p;
        let stream = fields.flag("stream")?;
        fields.take_known("stream_options", &["include_obfuscation"])?;
        let form = tools::form(&reply.text["format"])?;
        let (conversation, forced) = conversation(fields, &reply)?;
        let (tokens, reading) = if reply.truncation == "auto" {
            truncate::prepare(&conversation, model)?
        } else {
            conversation.prepare(model).map_err(of_input)?
        };
        let wanted = reading.wanted(form, &forced, reply.parallel_tool_calls)?;
        let writer = Writer {
            reply,
            reading,
            input_tokens: task.add_prompt(tokens).len(),
        };
        Ok(Understood {
            task,
            wanted,
            writer,
            stream,
        })
    }
}

/// What is wrong with the messages is wrong with the input here.
fn of_input(error: ApiError) -> ApiError {
    if error.param.as_deref() != Some("messages") {
        return error;
    }
    ApiError {
        param: Some("input".to_owned()),
        message: error.message.replacen("`messages`", "`input`", 1),
        ..error
    }
}

/// The response as it begins: what was asked for, and what holds where nothing was.
fn begin(model: &ServedModel, fields: &mut Fields<'_>) -> Result<Reply, ApiError> {
    let truncation = match fields.take::<String>("truncation")?.as_deref() {
        None | Some("disabled") => "disabled",
        Some("auto") => "auto",
        Some(other) => return Err(ApiError::bound("truncation", &shorten(other), "auto or disabled")),
    };
    let mut text: Map<String, Value> = fields.take("text")?.unwrap_or_default();
    let unknown = fields.unknown();
    unknown.note_but("text", Some(&text), &["format", "verbosity"]);
    let format = text.get("format").and_then(Value::as_object);
    let known = ["type", "name", "description", "schema", "strict"];
    unknown.note_but("text.format", format, &known);
    let format = text.entry("format").or_insert(Value::Null);
    if format.is_null() {
        *format = json!({ "type": "text" });
    }
    let mut reasoning: Map<String, Value> = fields.take("reasoning")?.unwrap_or_default();
    let known = ["effort", "summary", "generate_summary"];
    fields.unknown().note_but("reasoning", Some(&reasoning), &known);
    for name in ["effort", "summary"] {
        reasoning.entry(name).or_insert(Value::Null);
    }
    Ok(Reply {
        id: identifiers::identifier("resp_"),
        object: "response",
        created_at: identifiers::unix_time(),
        status: "in_progress",
        instructions: fields.take("instructions")?,
        max_tool_calls: fields.take("max_tool_calls")?,
        metadata: fields.take("metadata")?.unwrap_or_default(),
        model: model.named(fields.take::<String>("model")?.as_deref())?,
        parallel_tool_calls: fields.take("parallel_tool_calls")?.unwrap_or(true),
        reasoning: reasoning.into(),
        service_tier: "default",
        text: text.into(),
        tool_choice: fields.take("tool_choice")?.unwrap_or_else(|| "auto".into()),
        tools: fields.take("tools")?.unwrap_or_default(),
        truncation,
        user: fields.take("user")?,
        ..Reply::default()
    })
}

/// The conversation, and whether a tool must be called.
fn conversation(fields: &mut Fields<'_>, reply: &Reply) -> Result<(Conversation, Forced), ApiError> {
    let mut variables: Map<String, Value> = fields.take("chat_template_kwargs")?.unwrap_or_default();
    if let Some(effort) = reply.reasoning["effort"].as_str() {
        variables.entry("reasoning_effort").or_insert(effort.into());
        if effort == "none" {
            variables.entry("enable_thinking").or_insert(false.into());
        }
    }
    let input = fields.take("input")?.unwrap_or_default();
    let (tools, forced) = tools::offered(&reply.tools, &reply.tool_choice)?;
    let conversation = Conversation {
        messages: input::conversation(reply.instructions.as_deref(), input)?,
        tools,
        variables,
        ..Conversation::default()
    };
    Ok((conversation, forced))
}

/// What exists elsewhere and not here.
fn refuse_foreign(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    for (name, reason) in [
        (
            "previous_response_id",
            "responses are not stored; give the conversation so far in `input`",
        ),
        (
            "conversation",
            "conversations are not stored; give the conversation so far in `input`",
        ),
        ("prompt", "prompts are not stored; give the text in `input`"),
        (
            "background",
            "responses are not stored, so this one could not be fetched later",
        ),
    ] {
        fields.refuse(name, reason)?;
    }
    if !fields.take_zero("top_logprobs") {
        fields.refuse("top_logprobs", "use /v1/chat/completions for log-probabilities")?;
    }
    let include = fields.take::<Vec<String>>("include")?.unwrap_or_default();
    if include.iter().any(|name| name == "message.output_text.logprobs") {
        let message =
            "`include` is not supported: use /v1/chat/completions for log-probabilities of the text";
        return Err(ApiError::field("include", message));
    }
    Ok(())
}
