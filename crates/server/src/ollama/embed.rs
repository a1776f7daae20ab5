//! `/api/embed`: texts become vectors of unit length.

use super::models::named;
use crate::app::{App, Caller};
use crate::body::Body;
use crate::embedding::{self, Texts, normalise};
use crate::error::{ApiError, CONTEXT_LENGTH_EXCEEDED};
use crate::fields::{Fields, Inputs, Prompt};
use crate::interface;
use crate::preparation::Preparing;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use paceline::EmbeddingRequest;
use paceline_types::{Pooling, TokenId};
use serde::Serialize;
use std::time::Instant;

/// The vectors of a request, and nanoseconds.
#[derive(Debug, Serialize)]
struct Reply {
    model: String,
    embeddings: Vec<Vec<f32>>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
}

/// `POST /api/embed`.
pub(crate) async fn embed(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Response, ApiError> {
    let started = Instant::now();
    let (width, pooling) = (app.engine.width(), app.config.pooling);
    let check = move |model: &Preparing<'_>, fields: &mut Fields<'_>| check(model, fields, (width, pooling));
    let names = [("prompt", "input")];
    let ((name, dimensions), vectors, unknown) =
        embedding::vectors((&app, &caller), body, check, &names).await?;
    let tokens: usize = vectors.iter().map(|vector| vector.usage.prompt_tokens).sum();
    let vectors = vectors.into_iter().map(|vector| {
        let mut values = vector.values;
        values.truncate(dimensions);
        normalise(&mut values);
        values
    });
    let reply = Reply {
        model: name,
        embeddings: vectors.collect(),
        total_duration: u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX),
        load_duration: 0,
        prompt_eval_count: tokens,
    };
    let mut response = Json(reply).into_response();
    interface::warn(&mut response, unknown);
    Ok(response)
}

fn check(
    model: &Preparing<'_>,
    fields: &mut Fields<'_>,
    (width, pooling): (usize, Pooling),
) -> Result<((String, usize), Texts), ApiError> {
    let name = named(model, fields.take::<String>("model")?.as_deref())?;
    let Inputs(inputs) = fields.require("input")?;
    let dimensions = fields.take("dimensions")?.unwrap_or(width);
    if !(1..=width).contains(&dimensions) {
        let bound = format!("within 1..={width}, the width of the model");
        return Err(ApiError::bound("dimensions", &dimensions, &bound));
    }
    // What does not fit is cut at its end, unless the request says otherwise.
    let truncate = fields.take("truncate")?.unwrap_or(true);
    fields.ignore(&["keep_alive", "options"]);
    let texts = inputs.iter().map(|text| {
        let tokens = match text {
            Prompt::Text(text) if truncate => start_of(model, text)?,
            text => embedding::tokens(model, "input", text, true)?,
        };
        Ok(EmbeddingRequest::new(tokens, pooling))
    });
    let requests = texts.collect::<Result<Vec<_>, ApiError>>()?;
    Ok((
        (name, dimensions),
        Texts {
            requests,
            cache_salt: None,
        },
    ))
}

/// The tokens of a text, or of as much of its start as fits. A text that surely does not is shortened before it is looked
/// at more closely.
fn start_of(model: &Preparing<'_>, mut text: &str) -> Result<Vec<TokenId>, ApiError> {
    loop {
        match model.encode("input", text, true) {
            Ok(mut tokens) => {
                tokens.truncate(model.max_model_len);
                return embedding::tokens(model, "input", &Prompt::Tokens(tokens), true);
            }
            Err(error) if error.code == Some(CONTEXT_LENGTH_EXCEEDED) && !text.is_empty() => {
                text = &text[..text.floor_char_boundary(text.len() / 4 * 3)];
            }
            Err(error) => return Err(error),
        }
    }
}
