//! `/tokenize`, `/detokenize` and `/tokenizer_info`, in vLLM's shapes.

use crate::app::{App, Caller};
use crate::body::Body;
use crate::conversation::Conversation;
use crate::error::ApiError;
use crate::model::ServedModel;
use crate::openai::chat::normalise;
use crate::preparation::Preparing;
use axum::extract::State;
use axum::{Extension, Json};
use paceline_types::TokenId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

#[derive(Deserialize)]
struct TokenizeFields {
    model: Option<String>,
    prompt: Option<String>,
    messages: Option<Vec<Map<String, Value>>>,
    tools: Option<Vec<Map<String, Value>>>,
    add_special_tokens: Option<bool>,
    add_generation_prompt: Option<bool>,
    return_token_strs: Option<bool>,
    chat_template_kwargs: Option<Map<String, Value>>,
}

#[derive(Serialize)]
pub(crate) struct Tokenized {
    count: usize,
    max_model_len: usize,
    tokens: Vec<TokenId>,
    token_strs: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct DetokenizeFields {
    model: Option<String>,
    tokens: Option<Vec<TokenId>>,
}

#[derive(Serialize)]
pub(crate) struct Detokenized {
    prompt: String,
}

pub(crate) async fn tokenize(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Json<Tokenized>, ApiError> {
    let work = |model: &Preparing<'_>, body: &Body| tokens_of(model, body.read()?);
    app.with_model(&caller, body, work).await.map(Json)
}

fn tokens_of(model: &Preparing<'_>, fields: TokenizeFields) -> Result<Tokenized, ApiError> {
    model.named(fields.model.as_deref())?;
    let tokens = match (fields.prompt, fields.messages) {
        (Some(prompt), None) => {
            let special = fields.add_special_tokens.unwrap_or(true);
            model.encode("prompt", &prompt, special)?
        }
        (None, Some(messages)) => {
            let tools = fields.tools.unwrap_or_default();
            let conversation = Conversation {
                messages: normalise(messages)?,
                tools: tools.into_iter().map(Value::Object).collect(),
                documents: None,
                variables: fields.chat_template_kwargs.unwrap_or_default(),
                open_turn: fields.add_generation_prompt.unwrap_or(true),
            };
            conversation.prepare(model)?.0
        }
        _ => {
            let message = "exactly one of `prompt` and `messages` must be given";
            return Err(ApiError::field("prompt", message));
        }
    };
    let spelled = |id: &TokenId| {
        let tokenizer = model.tokenizer.as_ref();
        let spelled = tokenizer.and_then(|tokenizer| tokenizer.id_to_token(*id));
        spelled.unwrap_or_default()
    };
    let wanted = fields.return_token_strs.unwrap_or(false);
    Ok(Tokenized {
        count: tokens.len(),
        max_model_len: model.max_model_len,
        token_strs: wanted.then(|| tokens.iter().map(spelled).collect()),
        tokens,
    })
}

pub(crate) async fn detokenize(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Json<Detokenized>, ApiError> {
    let work = |model: &Preparing<'_>, body: &Body| text_of(model, body.read()?);
    app.with_model(&caller, body, work).await.map(Json)
}

fn text_of(model: &ServedModel, fields: DetokenizeFields) -> Result<Detokenized, ApiError> {
    model.named(fields.model.as_deref())?;
    let Some(tokens) = fields.tokens else {
        return Err(ApiError::field("tokens", "`tokens` is missing"));
    };
    // A token may be a long text, so a body within its limit could stand for a reply many times its size.
    if tokens.len() > model.max_model_len {
        let value = format!("{} tokens long", tokens.len());
        let bound = format!(
            "at most {} tokens long, the context of the model",
            model.max_model_len
        );
        return Err(ApiError::bound("tokens", &value, &bound));
    }
    let tokenizer = model.require_tokenizer("tokens")?;
    let prompt = tokenizer
        .decode(&tokens, false)
        .map_err(|error| ApiError::text("tokens", &error))?;
    Ok(Detokenized { prompt })
}

/// What clients that leave tokenising to the server want to know beforehand.
#[derive(Serialize)]
pub(crate) struct TokenizerInfo {
    bos_token: Option<String>,
    eos_token: Option<String>,
    model_max_length: usize,
}

pub(crate) async fn tokenizer_info(State(app): State<App>) -> Result<Json<TokenizerInfo>, ApiError> {
    let tokenizer = app.model.require_tokenizer("tokenizer_info")?;
    let spelled = |id: Option<TokenId>| id.and_then(|id| tokenizer.id_to_token(id));
    Ok(Json(TokenizerInfo {
        bos_token: spelled(tokenizer.bos_id()),
        eos_token: spelled(tokenizer.eos_id()),
        model_max_length: app.model.max_model_len,
    }))
}
