//! Ollama's interface: `/api/chat`, `/api/generate`, `/api/embed`, and what tells of the model. It generates as every other
//! interface does; streams are lines of JSON, and a reply is a stream unless it is told not to be.

mod embed;
mod errors;
mod models;
mod options;
mod reply;

pub(crate) use embed::embed;
pub(crate) use errors::speak;
pub(crate) use models::{ps, show, tags, version};

use crate::app::{App, Caller};
use crate::body::{Body, shorten};
use crate::constraint::{Forced, Form, json_schema};
use crate::conversation::{Conversation, ConversationEnd, Reading};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::interface::{Interface, Understood, create};
use crate::openai::chat::normalise;
use crate::preparation::Preparing;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use paceline_grammar::GrammarSpec;
use paceline_types::TokenId;
use reply::{Kind, Writer};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

/// A body of more bytes asks for more than to load a model.
const SMALL: usize = 1024;

/// Names for the engine's fields.
const NAMES: &[(&str, &str)] = &[("prompt", "messages"), ("max_tokens", "options.num_predict")];

/// `POST /api/chat`.
struct Chat;

/// `POST /api/generate`.
struct Generate;

/// A request without anything to answer: clients send it so that a model is loaded, or let go.
#[derive(Deserialize)]
struct Load {
    model: String,
    #[serde(default)]
    prompt: String,
    #[serde(default)]
    messages: Vec<IgnoredAny>,
}

/// The model's name if a request only wants it to be there, which it is.
fn loads(body: &Body) -> Option<String> {
    let small = Some(body.bytes()).filter(|bytes| bytes.len() <= SMALL)?;
    let load: Load = serde_json::from_slice(small).ok()?;
    (load.prompt.is_empty() && load.messages.is_empty()).then_some(load.model)
}

/// Answers at once if the model only has to be there, and generates otherwise.
async fn answer<I: Interface>(
    kind: Kind,
    app: App,
    caller: Caller,
    body: Body,
) -> Result<Response, ApiError> {
    let Some(model) = loads(&body) else {
        return create::<I>(State(app), Extension(caller), body).await;
    };
    let name = models::named(&app.model, Some(&model))?;
    Ok(Json(reply::loaded(kind, &name)).into_response())
}

/// `POST /api/chat`.
pub(crate) async fn chat(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Response, ApiError> {
    answer::<Chat>(Kind::Chat, app, caller, body).await
}

/// `POST /api/generate`.
pub(crate) async fn generate(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Response, ApiError> {
    answer::<Generate>(Kind::Generate, app, caller, body).await
}

impl Interface for Chat {
    const NAMES: &'static [(&'static str, &'static str)] = NAMES;
    type Writer = Writer;

    fn check(model: &Preparing<'_>, fields: &mut Fields<'_>) -> Result<Understood<Writer>, ApiError> {
        let messages: Vec<Map<String, Value>> = fields.require("messages")?;
        let messages: Result<Vec<_>, _> = messages.into_iter().enumerate().map(message).collect();
        let messages = normalise(messages?)?;
        let continues = messages.last().is_some_and(|last| last["role"] == "assistant");
        let conversation = Conversation {
            messages,
            tools: fields.take("tools")?.unwrap_or_default(),
            variables: thinking(fields)?,
            end: if continues {
                ConversationEnd::InLastMessage
            } else {
                ConversationEnd::OpenTurn
            },
            ..Conversation::default()
        };
        let (tokens, reading) = conversation.prepare(model)?;
        understood(model, fields, (Kind::Chat, tokens, reading), continues)
    }
}

impl Interface for Generate {
    const NAMES: &'static [(&'static str, &'static str)] = NAMES;
    type Writer = Writer;

    fn check(model: &Preparing<'_>, fields: &mut Fields<'_>) -> Result<Understood<Writer>, ApiError> {
        let prompt: String = fields.require("prompt")?;
        fields.refuse("suffix", "the models here continue text and fill no gaps")?;
        fields.refuse(
            "template",
            "templates are the model's own; use `raw` and write the prompt out",
        )?;
        refuse_images(fields.take::<Vec<Value>>("images")?.as_deref(), "images")?;
        let raw = fields.flag("raw")? || model.template.is_none();
        let system = fields.take::<String>("system")?.filter(|text| !text.is_empty());
        let mut tokens: Vec<TokenId> = fields.take("context")?.unwrap_or_default();
        let variables = thinking(fields)?;
        let (more, reading) = if raw {
            let special = tokens.is_empty();
            (model.encode("prompt", &prompt, special)?, Reading::default())
        } else {
            let system = system.map(|content| json!({ "role": "system", "content": content }));
            let user = json!({ "role": "user", "content": prompt });
            let conversation = Conversation {
                messages: system.into_iter().chain([user]).collect(),
                variables,
                ..Conversation::default()
            };
            conversation.prepare(model)?
        };
        tokens.extend(more);
        understood(model, fields, (Kind::Generate, tokens, reading), raw)
    }
}

/// What both have in common. `continues`: the text goes on where the prompt ended.
fn understood(
    model: &Preparing<'_>,
    fields: &mut Fields<'_>,
    (kind, tokens, reading): (Kind, Vec<TokenId>, Reading),
    continues: bool,
) -> Result<Understood<Writer>, ApiError> {
    let name = models::named(model, fields.take::<String>("model")?.as_deref())?;
    let mut task = options::task(model, fields)?;
    task.decoding.continues = continues;
    let wanted = reading.wanted(form(fields)?, &Forced::No, true)?;
    let stream = fields.take("stream")?.unwrap_or(true);
    fields.ignore(&["keep_alive", "truncate", "shift"]);
    fields.refuse("logprobs", "use /v1/chat/completions or /v1/completions")?;
    let writer = Writer {
        kind,
        model: name,
        reading,
        prompt: task.add_prompt(tokens),
    };
    Ok(Understood {
        task,
        wanted,
        writer,
        stream,
    })
}

/// A message in OpenAI's form.
fn message((index, mut message): (usize, Map<String, Value>)) -> Result<Map<String, Value>, ApiError> {
    let images = message.remove("images");
    let images = images.as_ref().and_then(Value::as_array).map(Vec::as_slice);
    refuse_images(images, &format!("messages[{index}].images"))?;
    if let Some(thinking) = message.remove("thinking") {
        message.insert("reasoning".to_owned(), thinking);
    }
    if let Some(name) = message.remove("tool_name") {
        message.insert("name".to_owned(), name);
    }
    for call in message
        .get_mut("tool_calls")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        if let Some(call) = call.as_object_mut() {
            call.entry("type").or_insert("function".into());
        }
    }
    Ok(message)
}

fn refuse_images(images: Option<&[Value]>, param: &str) -> Result<(), ApiError> {
    match images {
        Some([_, ..]) => Err(ApiError::field(
            param,
            format!("`{param}`: the model reads text and nothing else"),
        )),
        _ => Ok(()),
    }
}

/// The field `think`: yes or no, or how much.
fn thinking(fields: &mut Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    let mut variables = Map::new();
    match fields.take::<Value>("think")?.unwrap_or_default() {
        Value::Null => {}
        Value::Bool(thinks) => drop(variables.insert("enable_thinking".to_owned(), thinks.into())),
        Value::String(effort) => {
            variables.insert("enable_thinking".to_owned(), true.into());
            variables.insert("reasoning_effort".to_owned(), effort.into());
        }
        other => {
            let bound = "true, false or how much: low, medium, high";
            return Err(ApiError::bound("think", &shorten(&other.to_string()), bound));
        }
    }
    Ok(variables)
}

/// The field `format`: `json`, or a schema.
fn form(fields: &mut Fields<'_>) -> Result<Option<Form>, ApiError> {
    const FIELD: &str = "format";
    let spec = match fields.take::<Value>(FIELD)?.unwrap_or_default() {
        Value::Null => return Ok(None),
        Value::String(text) if text.is_empty() => return Ok(None),
        Value::String(text) if text == "json" => GrammarSpec::JsonObject,
        schema @ Value::Object(_) => json_schema(FIELD, &schema)?,
        other => {
            return Err(ApiError::bound(
                FIELD,
                &shorten(&other.to_string()),
                "json or a schema",
            ));
        }
    };
    Ok(Some(Form::answer(FIELD, spec)))
}
