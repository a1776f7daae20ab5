//! The Anthropic interface: `/v1/messages` and `/v1/messages/count_tokens`, with our own extensions.

mod blocks;
mod content;
mod errors;
mod messages;
mod reply;
mod tools;

pub(crate) use errors::speak;

use crate::app::{App, Caller, Checked};
use crate::body::{Body, shorten};
use crate::constraint::{Forced, Form, json_schema};
use crate::conversation::Conversation;
use crate::error::ApiError;
use crate::generation::{self, GenerationTask};
use crate::openai::fields::{Seed, SpeculationField, Stops, float};
use crate::openai::sampling::SamplingFields;
use crate::preparation::Preparing;
use crate::{identifiers, sse};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use reply::Writer;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The engine's names for fields, and those of this interface.
const NAMES: [(&str, &str); 1] = [("prompt", "messages")];

/// What is said, and with which tools: the fields of both endpoints.
#[derive(Debug, Deserialize)]
struct ConversationFields {
    model: Option<String>,
    messages: Option<Vec<Map<String, Value>>>,
    system: Option<Value>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    thinking: Option<Value>,
    output_config: Option<Map<String, Value>>,
}

/// How to answer.
#[derive(Debug, Deserialize)]
struct AnswerFields {
    max_tokens: Option<u64>,
    stop_sequences: Option<Stops>,
    #[serde(default, deserialize_with = "float")]
    temperature: Option<f32>,
    #[serde(default, deserialize_with = "float")]
    top_p: Option<f32>,
    top_k: Option<i64>,
    stream: Option<bool>,
    seed: Option<Seed>,
    ignore_eos: Option<bool>,
    priority: Option<i32>,
    deadline_ms: Option<u64>,
    cache_salt: Option<String>,
    speculation: Option<SpeculationField>,
}

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

/// `/v1/messages`: a conversation is continued.
pub(crate) async fn create(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Response, ApiError> {
    let admitted = app.admit(&caller, body, check).await?;
    let stream = admitted.checked.stream;
    let (outputs, writer) = app.run(&caller, admitted, &NAMES).await?;
    if stream {
        return Ok(sse::reply(outputs, reply::Events::new(writer)));
    }
    let completion = generation::collect_one(outputs).await;
    let completion = completion.map_err(|failure| failure.error())?;
    Ok(Json(writer.whole(&completion)).into_response())
}

/// `/v1/messages/count_tokens`: how long a conversation is.
pub(crate) async fn count_tokens(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Json<TokenCount>, ApiError> {
    let count = |model: &Preparing<'_>, body: &Body| {
        let fields: ConversationFields = body.read()?;
        model.named(fields.model.as_deref())?;
        let (tokens, _) = fields.asked()?.conversation.prepare(model)?;
        Ok(TokenCount {
            input_tokens: tokens.len(),
        })
    };
    app.with_model(&caller, body, count).await.map(Json)
}

fn check(model: &Preparing<'_>, body: &Body) -> Result<Checked<Writer>, ApiError> {
    let fields: ConversationFields = body.read()?;
    let answer: AnswerFields = body.read()?;
    let name = model.named(fields.model.as_deref())?;
    let stream = answer.stream.unwrap_or(false);
    let mut task = answer.task(model)?;
    let asked = fields.asked()?;
    let parallel_calls = asked.parallel_calls;
    let (tokens, reading) = asked.conversation.prepare(model)?;
    let wanted = reading.wanted(asked.form, &asked.forced, parallel_calls)?;
    let writer = Writer {
        id: identifiers::identifier("msg_"),
        model: name,
        input_tokens: tokens.len(),
        reading,
        parallel_calls,
    };
    task.prompts = vec![tokens];
    Ok(Checked {
        task,
        wanted,
        writer,
        stream,
    })
}

impl AnswerFields {
    fn task(self, model: &Preparing<'_>) -> Result<GenerationTask, ApiError> {
        if self.max_tokens.is_none() {
            return Err(ApiError::field("max_tokens", "`max_tokens` is missing"));
        }
        if self
            .stop_sequences
            .as_ref()
            .is_some_and(|stops| !stops.0.is_empty())
        {
            model.require_tokenizer("stop_sequences")?;
        }
        let shared = SamplingFields {
            max_tokens: self.max_tokens,
            stop: self.stop_sequences,
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

impl ConversationFields {
    fn asked(self) -> Result<Asked, ApiError> {
        let Some(messages) = self.messages else {
            return Err(ApiError::field("messages", "`messages` is missing"));
        };
        let choice = self.tool_choice.as_ref();
        let offered = tools::offered(self.tools.unwrap_or_default(), choice)?;
        let mut variables = Map::new();
        if let Some(thinking) = self.thinking.as_ref().filter(|thinking| !thinking.is_null()) {
            variables.insert("enable_thinking".to_owned(), thinks(thinking)?.into());
        }
        let config = Value::Object(self.output_config.unwrap_or_default());
        let form = form(&config["format"])?;
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
            messages: messages::conversation(self.system, messages)?,
            tools: offered.tools,
            documents: None,
            variables,
            open_turn: true,
        };
        Ok(Asked {
            conversation,
            parallel_calls: offered.parallel,
            forced: offered.forced,
            form,
        })
    }
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

/// What `output_config.format` asks for.
fn form(format: &Value) -> Result<Option<Form>, ApiError> {
    const FIELD: &str = "output_config.format";
    if format.is_null() {
        return Ok(None);
    }
    if format["type"] != "json_schema" {
        let kind = shorten(&format["type"].to_string());
        return Err(ApiError::bound(&format!("{FIELD}.type"), &kind, "json_schema"));
    }
    let spec = json_schema("output_config.format.schema", &format["schema"])?;
    Ok(Some(Form::answer(FIELD, spec)))
}
