//! `/v1/responses`: the Responses interface of OpenAI, with our own extensions. Responses are not stored.

mod events;
mod input;
mod items;
mod reply;
mod tools;
mod truncate;

use crate::app::{App, Caller, Checked};
use crate::body::{Body, shorten};
use crate::constraint::Forced;
use crate::conversation::Conversation;
use crate::error::ApiError;
use crate::generation::{self, GenerationTask};
use crate::model::ServedModel;
use crate::openai::fields::{Seed, SpeculationField, float};
use crate::openai::sampling::SamplingFields;
use crate::preparation::Preparing;
use crate::{identifiers, sse};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use reply::{Reply, Writer};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The engine's names for fields, and those of this interface.
const NAMES: [(&str, &str); 2] = [("prompt", "input"), ("max_tokens", "max_output_tokens")];

/// How to answer.
#[derive(Debug, Deserialize)]
struct AnswerFields {
    max_output_tokens: Option<u64>,
    #[serde(default, deserialize_with = "float")]
    temperature: Option<f32>,
    #[serde(default, deserialize_with = "float")]
    top_p: Option<f32>,
    top_k: Option<i64>,
    seed: Option<Seed>,
    ignore_eos: Option<bool>,
    priority: Option<i32>,
    deadline_ms: Option<u64>,
    cache_salt: Option<String>,
    speculation: Option<SpeculationField>,
}

/// What to answer, and in which form.
#[derive(Debug, Deserialize)]
struct Fields {
    model: Option<String>,
    input: Option<Value>,
    instructions: Option<String>,
    stream: Option<bool>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    text: Option<Map<String, Value>>,
    reasoning: Option<Map<String, Value>>,
    metadata: Option<Map<String, Value>>,
    truncation: Option<String>,
    max_tool_calls: Option<u64>,
    user: Option<String>,
    chat_template_kwargs: Option<Map<String, Value>>,
}

/// What exists elsewhere and not here.
#[derive(Debug, Deserialize)]
struct ForeignFields {
    previous_response_id: Option<Value>,
    conversation: Option<Value>,
    prompt: Option<Value>,
    background: Option<bool>,
    top_logprobs: Option<u64>,
    include: Option<Vec<String>>,
}

/// `POST /v1/responses`.
pub(crate) async fn create(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Response, ApiError> {
    let admitted = app.admit(&caller, body, check).await?;
    let stream = admitted.checked.stream;
    let (outputs, writer) = app.run(&caller, admitted, &NAMES).await?;
    if stream {
        return Ok(sse::reply(outputs, events::Events::new(writer)));
    }
    let completion = generation::collect_one(outputs).await;
    let completion = completion.map_err(|failure| failure.error())?;
    Ok(Json(writer.whole(&completion)).into_response())
}

fn check(model: &Preparing<'_>, body: &Body) -> Result<Checked<Writer>, ApiError> {
    let mut fields: Fields = body.read()?;
    let answer: AnswerFields = body.read()?;
    body.read::<ForeignFields>()?.check()?;
    let max_output_tokens = answer.max_output_tokens;
    let mut task = answer.task(model)?;
    let mut reply = fields.reply(model)?;
    reply.max_output_tokens = max_output_tokens;
    reply.temperature = task.sampling.temperature;
    reply.top_p = task.sampling.top_p;
    let stream = fields.stream.unwrap_or(false);
    let truncates = reply.truncation == "auto";
    let form = tools::form(&reply.text["format"])?;
    let (conversation, forced) = fields.conversation(&reply)?;
    let (tokens, reading) = if truncates {
        truncate::prepare(&conversation, model)?
    } else {
        conversation.prepare(model).map_err(of_input)?
    };
    let wanted = reading.wanted(form, &forced, reply.parallel_tool_calls)?;
    let writer = Writer {
        reply,
        reading,
        input_tokens: tokens.len(),
    };
    task.prompts = vec![tokens];
    Ok(Checked {
        task,
        wanted,
        writer,
        stream,
    })
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

impl AnswerFields {
    fn task(self, model: &Preparing<'_>) -> Result<GenerationTask, ApiError> {
        if self.max_output_tokens == Some(0) {
            return Err(ApiError::bound("max_output_tokens", &0, "at least 1"));
        }
        let shared = SamplingFields {
            max_tokens: self.max_output_tokens,
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            seed: self.seed,
            ignore_eos: self.ignore_eos,
            priority: self.priority,
            deadline_ms: self.deadline_ms,
            cache_salt: self.cache_salt,
            speculation: self.speculation,
            ..SamplingFields::default()
        };
        shared.task(model, model.max_model_len)
    }
}

impl Fields {
    /// The response as it begins: what was asked for, and what holds where nothing was.
    fn reply(&mut self, model: &ServedModel) -> Result<Reply, ApiError> {
        let truncation = match self.truncation.as_deref() {
            None | Some("disabled") => "disabled",
            Some("auto") => "auto",
            Some(other) => {
                let shown = shorten(other);
                return Err(ApiError::bound("truncation", &shown, "auto or disabled"));
            }
        };
        let mut text = self.text.take().unwrap_or_default();
        let format = text.entry("format").or_insert(Value::Null);
        if format.is_null() {
            *format = json!({ "type": "text" });
        }
        let mut reasoning = self.reasoning.take().unwrap_or_default();
        for name in ["effort", "summary"] {
            reasoning.entry(name).or_insert(Value::Null);
        }
        let choice = self.tool_choice.take().filter(|choice| !choice.is_null());
        Ok(Reply {
            id: identifiers::identifier("resp_"),
            object: "response",
            created_at: identifiers::unix_time(),
            status: "in_progress",
            instructions: self.instructions.clone(),
            max_tool_calls: self.max_tool_calls,
            metadata: self.metadata.take().unwrap_or_default(),
            model: model.named(self.model.as_deref())?,
            parallel_tool_calls: self.parallel_tool_calls.unwrap_or(true),
            reasoning: reasoning.into(),
            service_tier: "default",
            text: text.into(),
            tool_choice: choice.unwrap_or_else(|| "auto".into()),
            tools: self.tools.take().unwrap_or_default(),
            truncation,
            user: self.user.take(),
            ..Reply::default()
        })
    }

    /// The conversation, and whether a tool must be called.
    fn conversation(self, reply: &Reply) -> Result<(Conversation, Forced), ApiError> {
        let mut variables = self.chat_template_kwargs.unwrap_or_default();
        if let Some(effort) = reply.reasoning["effort"].as_str() {
            variables.entry("reasoning_effort").or_insert(effort.into());
            if effort == "none" {
                variables.entry("enable_thinking").or_insert(false.into());
            }
        }
        let input = self.input.unwrap_or_default();
        let (tools, forced) = tools::offered(&reply.tools, &reply.tool_choice)?;
        let conversation = Conversation {
            messages: input::conversation(reply.instructions.as_deref(), input)?,
            tools,
            documents: None,
            variables,
            open_turn: true,
        };
        Ok((conversation, forced))
    }
}

impl ForeignFields {
    fn check(self) -> Result<(), ApiError> {
        let refuse = |param: &str, reason: &str| {
            let message = format!("`{param}` is not supported: {reason}");
            Err(ApiError::field(param, message))
        };
        let given = |value: &Option<Value>| value.as_ref().is_some_and(|value| !value.is_null());
        if given(&self.previous_response_id) {
            let reason = "responses are not stored; give the conversation so far in `input`";
            return refuse("previous_response_id", reason);
        }
        if given(&self.conversation) {
            let reason = "conversations are not stored; give the conversation so far in `input`";
            return refuse("conversation", reason);
        }
        if given(&self.prompt) {
            return refuse("prompt", "prompts are not stored; give the text in `input`");
        }
        if self.background == Some(true) {
            let reason = "responses are not stored, so this one could not be fetched later";
            return refuse("background", reason);
        }
        let logprobs = |name: &String| name == "message.output_text.logprobs";
        if self.top_logprobs.is_some_and(|count| count > 0) {
            return refuse("top_logprobs", "use /v1/chat/completions for log-probabilities");
        }
        if self.include.iter().flatten().any(logprobs) {
            return refuse(
                "include",
                "use /v1/chat/completions for log-probabilities of the text",
            );
        }
        Ok(())
    }
}
