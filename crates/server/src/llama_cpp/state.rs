//! What llama-server tells of itself, and the text of a conversation.

use crate::app::{App, Caller};
use crate::body::Body;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::interface;
use crate::openai::chat::normalise;
use crate::preparation::Preparing;
use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use paceline_text::{ChatInput, Tokenizer};
use serde_json::{Map, Value, json};

/// `GET /props`.
pub(crate) async fn props(State(app): State<App>) -> Json<Value> {
    let model = &app.model;
    let spelled = |id| {
        let tokenizer = model.tokenizer.as_ref();
        tokenizer
            .zip(id)
            .and_then(|(tokenizer, id)| tokenizer.id_to_token(id))
    };
    let tokenizer = model.tokenizer.as_ref();
    Json(json!({
        "default_generation_settings": {
            "n_ctx": model.max_model_len,
            "params": model.page_defaults.options().to_json(),
        },
        "total_slots": app.engine.memory().slots,
        "model_alias": model.name(),
        "model_path": model.source,
        "modalities": { "vision": false, "audio": false },
        "chat_template": model.template.as_ref().map_or("", |template| template.source()),
        "bos_token": spelled(tokenizer.and_then(Tokenizer::bos_id)).unwrap_or_default(),
        "eos_token": spelled(tokenizer.and_then(Tokenizer::eos_id)).unwrap_or_default(),
        "build_info": concat!("paceline ", env!("CARGO_PKG_VERSION")),
        "is_sleeping": false,
    }))
}

/// `GET /slots`: how many are at work. What runs in each is its client's business.
pub(crate) async fn slots(State(app): State<App>) -> Json<Value> {
    let running = app.engine.stats().running;
    let speculative = app.engine.speculation().draft_tokens > 0;
    let slots = (0..app.engine.memory().slots).map(|id| {
        json!({
            "id": id,
            "n_ctx": app.model.max_model_len,
            "speculative": speculative,
            "is_processing": id < running,
        })
    });
    Json(Value::Array(slots.collect()))
}

/// `POST /apply-template`: the text that a conversation becomes.
pub(crate) async fn apply_template(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Response, ApiError> {
    interface::reply(&app, &caller, body, text_of).await
}

fn text_of(model: &Preparing<'_>, fields: &mut Fields<'_>) -> Result<Value, ApiError> {
    model.named(fields.take::<String>("model")?.as_deref())?;
    let messages = normalise(fields.require("messages")?)?;
    let tools: Vec<Map<String, Value>> = fields.take("tools")?.unwrap_or_default();
    let tools: Vec<Value> = tools.into_iter().map(Value::Object).collect();
    let mut input = ChatInput {
        messages,
        tools: (!tools.is_empty()).then_some(tools),
        documents: None,
        add_generation_prompt: fields.take("add_generation_prompt")?.unwrap_or(true),
        extra: fields.take("chat_template_kwargs")?.unwrap_or_default(),
    };
    input.parse_tool_arguments();
    Ok(json!({ "prompt": model.render(&input, None)? }))
}
