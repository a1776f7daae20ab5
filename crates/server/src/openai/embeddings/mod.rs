//! `/v1/embeddings`: texts become vectors.

mod reply;

use crate::app::{App, Caller};
use crate::body::{Body, shorten};
use crate::embedding::{self, Texts};
use crate::error::ApiError;
use crate::fields::{Fields, Inputs};
use crate::generation::cache_salt;
use crate::interface;
use crate::preparation::Preparing;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use paceline::{EmbeddingRequest, Options, Request, RequestOption};
use paceline_types::{Pooling, TokenId};
use reply::{Reply, Shape};

/// What the engine calls a text, and what this interface does.
const NAMES: [(&str, &str); 1] = [("prompt", "input")];

/// `POST /v1/embeddings`.
pub(crate) async fn create(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Response, ApiError> {
    let (width, pooling) = (app.engine.width(), app.config.pooling);
    let check = move |model: &Preparing<'_>, fields: &mut Fields<'_>| check(model, fields, width, pooling);
    let ((name, shape), vectors, unknown) = embedding::vectors((&app, &caller), body, check, &NAMES).await?;
    let mut response = Json(Reply::new(name, vectors, shape)).into_response();
    interface::warn(&mut response, unknown);
    Ok(response)
}

fn check(
    model: &Preparing<'_>,
    fields: &mut Fields<'_>,
    width: usize,
    pooling: Pooling,
) -> Result<((String, Shape), Texts), ApiError> {
    let name = model.named(fields.take::<String>("model")?.as_deref())?;
    let Inputs(inputs) = fields.require("input")?;
    let dimensions = fields.take("dimensions")?.unwrap_or(width);
    if !(1..=width).contains(&dimensions) {
        let bound = format!("within 1..={width}, the width of the model");
        return Err(ApiError::bound("dimensions", &dimensions, &bound));
    }
    let pooling = one_of(
        fields,
        "pooling",
        [("mean", Pooling::Mean), ("last", Pooling::Last)],
    )?
    .unwrap_or(pooling);
    let base64 = one_of(fields, "encoding_format", [("float", false), ("base64", true)])?.unwrap_or(false);
    let normalize = fields.take("normalize")?.unwrap_or(true);
    // Of the options there are, those that are not about generating.
    let mut asked = Request::default();
    let mut options = Options::default();
    for option in ["priority", "deadline_ms"]
        .into_iter()
        .filter_map(RequestOption::named)
    {
        fields.take_option(option, option.name, &mut options)?;
    }
    options.apply(&mut asked);
    let cache_salt = cache_salt(fields)?;
    let special = fields.take("add_special_tokens")?.unwrap_or(true);
    let place = |index: usize| match inputs.len() {
        1 => "input".to_owned(),
        _ => format!("input[{index}]"),
    };
    let texts = inputs.iter().enumerate();
    let texts = texts.map(|(index, text)| embedding::tokens(model, &place(index), text, special));
    let texts: Vec<Vec<TokenId>> = texts.collect::<Result<_, _>>()?;
    let request = |prompt| EmbeddingRequest {
        priority: asked.priority,
        deadline: asked.deadline,
        ..EmbeddingRequest::new(prompt, pooling)
    };
    let shape = Shape {
        dimensions,
        normalize,
        base64,
    };
    let requests = texts.into_iter().map(request).collect();
    Ok(((name, shape), Texts { requests, cache_salt }))
}

/// A field that is one of a few words.
fn one_of<T: Copy>(
    fields: &mut Fields<'_>,
    name: &str,
    known: [(&str, T); 2],
) -> Result<Option<T>, ApiError> {
    let Some(given) = fields.take::<String>(name)? else {
        return Ok(None);
    };
    if let Some((_, value)) = known.iter().find(|(word, _)| *word == given) {
        return Ok(Some(*value));
    }
    let bound = format!("{} or {}", known[0].0, known[1].0);
    Err(ApiError::bound(name, &shorten(&given), &bound))
}
