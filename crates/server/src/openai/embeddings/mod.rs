//! `/v1/embeddings`: texts become vectors.

mod reply;

use super::fields::{Inputs, Prompt};
use super::sampling::{cache_salt, deadline};
use crate::app::{App, Caller};
use crate::body::Body;
use crate::embedding;
use crate::error::ApiError;
use crate::preparation::Preparing;
use axum::extract::State;
use axum::{Extension, Json};
use paceline::EmbeddingRequest;
use paceline_types::{Pooling, TokenId};
use reply::{Reply, Shape};
use serde::Deserialize;

/// What the engine calls a text, and what this interface does.
const NAMES: [(&str, &str); 1] = [("prompt", "input")];

#[derive(Debug, Deserialize)]
struct Fields {
    model: Option<String>,
    input: Option<Inputs>,
    encoding_format: Option<Encoding>,
    dimensions: Option<usize>,
    pooling: Option<PoolingField>,
    normalize: Option<bool>,
    add_special_tokens: Option<bool>,
    priority: Option<i32>,
    deadline_ms: Option<u64>,
    cache_salt: Option<String>,
}

/// How vectors are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Encoding {
    #[default]
    Float,
    Base64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PoolingField {
    Mean,
    Last,
}

/// A request that has been understood.
struct Checked {
    name: String,
    cache_salt: Option<String>,
    requests: Vec<EmbeddingRequest>,
    shape: Shape,
}

/// `POST /v1/embeddings`.
pub(crate) async fn create(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Json<Reply>, ApiError> {
    let (width, pooling) = (app.engine.width(), app.config.pooling);
    let mut permit = app.permit(&caller)?;
    let check = move |model: &Preparing<'_>, body: &Body| check(model, body, width, pooling);
    let checked = app.with_model(&caller, body, check).await?;
    let Checked {
        name,
        cache_salt,
        mut requests,
        shape,
    } = checked;
    // A few at a time are handed to the engine, so that many texts of one caller do not fill its queue.
    let at_a_time = (2 * app.engine.memory().slots).min(permit.most());
    permit.count(requests.len().min(at_a_time), 1)?;
    for request in &mut requests {
        request.priority = app.priority(&caller, request.priority)?;
        request.deadline = app.deadline(request.deadline);
        request.tenant = caller.tenant();
        request.salt = app.salts.salt(request.tenant, cache_salt.as_deref());
    }
    caller
        .usage
        .prompt(requests.iter().map(|request| request.prompt.len()).sum());
    let vectors = embedding::embed(&app, (permit, at_a_time), requests, &NAMES).await?;
    Ok(Json(Reply::new(name, vectors, shape)))
}

fn check(model: &Preparing<'_>, body: &Body, width: usize, pooling: Pooling) -> Result<Checked, ApiError> {
    let fields: Fields = body.read()?;
    let name = model.named(fields.model.as_deref())?;
    let Some(Inputs(inputs)) = fields.input else {
        return Err(ApiError::field("input", "`input` is missing"));
    };
    let dimensions = fields.dimensions.unwrap_or(width);
    if !(1..=width).contains(&dimensions) {
        let bound = format!("within 1..={width}, the width of the model");
        return Err(ApiError::bound("dimensions", &dimensions, &bound));
    }
    let pooling = match fields.pooling {
        Some(PoolingField::Mean) => Pooling::Mean,
        Some(PoolingField::Last) => Pooling::Last,
        None => pooling,
    };
    let deadline = deadline(fields.deadline_ms)?;
    let special = fields.add_special_tokens.unwrap_or(true);
    let place = |index: usize| match inputs.len() {
        1 => "input".to_owned(),
        _ => format!("input[{index}]"),
    };
    let texts = inputs.iter().enumerate();
    let texts = texts.map(|(index, text)| understand(model, &place(index), text, special));
    let texts: Vec<Vec<TokenId>> = texts.collect::<Result<_, _>>()?;
    let request = |prompt| EmbeddingRequest {
        priority: fields.priority.unwrap_or(0),
        deadline,
        ..EmbeddingRequest::new(prompt, pooling)
    };
    Ok(Checked {
        name,
        cache_salt: cache_salt(fields.cache_salt)?,
        requests: texts.into_iter().map(request).collect(),
        shape: Shape {
            dimensions,
            normalize: fields.normalize.unwrap_or(true),
            base64: fields.encoding_format.unwrap_or_default() == Encoding::Base64,
        },
    })
}

/// The tokens of a text. Their number is checked here, before any text is run.
fn understand(
    model: &Preparing<'_>,
    param: &str,
    text: &Prompt,
    special: bool,
) -> Result<Vec<TokenId>, ApiError> {
    let tokens = match text {
        Prompt::Text(text) => model.encode(param, text, special)?,
        Prompt::Tokens(tokens) => tokens.clone(),
    };
    let most = model.max_model_len;
    if (1..=most).contains(&tokens.len()) {
        return Ok(tokens);
    }
    if tokens.is_empty() {
        return Err(ApiError::bound(
            param,
            &"0 tokens long",
            "at least one token long",
        ));
    }
    Err(ApiError::too_long(param, tokens.len(), (most, false)))
}
