//! `/tokenize`, `/detokenize` and `/tokenizer_info`, in vLLM's shapes.

use crate::app::{App, Caller};
use crate::body::Body;
use crate::conversation::Conversation;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::interface;
use crate::openai::chat::{end, normalise, template};
use crate::preparation::Preparing;
use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use paceline_types::TokenId;
use serde::Serialize;
use serde_json::{Map, Value};

#[derive(Serialize)]
pub(crate) struct Tokenized {
    count: usize,
    max_model_len: usize,
    tokens: Vec<TokenId>,
    token_strs: Option<Vec<String>>,
}

#[derive(Serialize)]
pub(crate) struct Detokenized {
    prompt: String,
}

pub(crate) async fn tokenize(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Response, ApiError> {
    interface::reply(&app, &caller, body, tokens_of).await
}

fn tokens_of(model: &Preparing<'_>, fields: &mut Fields<'_>) -> Result<Tokenized, ApiError> {
    model.named(fields.take::<String>("model")?.as_deref())?;
    let special = fields.take("add_special_tokens")?.unwrap_or(true);
    let wanted = fields.flag("return_token_strs")?;
    let tools: Vec<Map<String, Value>> = fields.take("tools")?.unwrap_or_default();
    let variables = fields.take("chat_template_kwargs")?.unwrap_or_default();
    let template = template(fields)?;
    let tokens = match (fields.take::<String>("prompt")?, fields.take("messages")?) {
        (Some(prompt), None) => model.encode("prompt", &prompt, special)?,
        (None, Some(messages)) => {
            let messages = normalise(messages)?;
            let conversation = Conversation {
                end: end(fields, &messages)?,
                messages,
                tools: tools.into_iter().map(Value::Object).collect(),
                documents: None,
                variables,
                template,
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
) -> Result<Response, ApiError> {
    interface::reply(&app, &caller, body, text_of).await
}

fn text_of(model: &Preparing<'_>, fields: &mut Fields<'_>) -> Result<Detokenized, ApiError> {
    model.named(fields.take::<String>("model")?.as_deref())?;
    let tokens: Vec<TokenId> = fields.require("tokens")?;
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
    /// Clients that fill up prompts ask for it; the end serves as well as any.
    pad_token: Option<String>,
    model_max_length: usize,
    /// The model's own, for clients that write conversations out themselves.
    chat_template: Option<String>,
    tokenizer_class: &'static str,
}

pub(crate) async fn tokenizer_info(State(app): State<App>) -> Result<Json<TokenizerInfo>, ApiError> {
    let tokenizer = app.model.require_tokenizer("tokenizer_info")?;
    let spelled = |id: Option<TokenId>| id.and_then(|id| tokenizer.id_to_token(id));
    Ok(Json(TokenizerInfo {
        bos_token: spelled(tokenizer.bos_id()),
        eos_token: spelled(tokenizer.eos_id()),
        pad_token: spelled(tokenizer.eos_id()),
        model_max_length: app.model.max_model_len,
        chat_template: app
            .model
            .template
            .as_ref()
            .map(|template| template.source().to_owned()),
        tokenizer_class: "PreTrainedTokenizerFast",
    }))
}
