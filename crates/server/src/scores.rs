//! `/v1/score` and `/rerank`: how close texts are, by the angle between their vectors. Any model can do that; how well it
//! does depends on what it was made for.

use crate::app::{App, Caller};
use crate::body::Body;
use crate::embedding::{self, Texts};
use crate::error::ApiError;
use crate::fields::{Fields, Inputs, Prompt};
use crate::generation::cache_salt;
use crate::identifiers;
use crate::interface;
use crate::preparation::Preparing;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use paceline::{Embedded, EmbeddingRequest};
use paceline_types::Pooling;
use serde_json::{Map, Value, json};

/// What was asked for besides the texts.
struct Asked {
    name: String,
    /// How many of the texts come first: all others are compared with them.
    left: usize,
    /// Of `/rerank`: the documents, how many are wanted back, and whether with their text.
    documents: Vec<String>,
    most: usize,
    with_text: bool,
}

/// `POST /v1/score`: one text with each of several, or pairs of texts.
pub(crate) async fn score(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Response, ApiError> {
    let pooling = app.config.pooling;
    let check = move |model: &Preparing<'_>, fields: &mut Fields<'_>| check_score(model, fields, pooling);
    let (asked, vectors, unknown) = embedding::vectors((&app, &caller), body, check, &[]).await?;
    let (left, right) = vectors.split_at(asked.left);
    let scores = right.iter().enumerate().map(|(index, vector)| {
        let other = &left[if left.len() == 1 { 0 } else { index }];
        json!({ "index": index, "object": "score", "score": cosine(other, vector) })
    });
    let reply = json!({
        "id": identifiers::identifier("score-"),
        "object": "list",
        "created": identifiers::unix_time(),
        "model": asked.name,
        "data": scores.collect::<Vec<_>>(),
        "usage": usage(&vectors),
    });
    let mut response = Json(reply).into_response();
    interface::warn(&mut response, unknown);
    Ok(response)
}

/// `POST /rerank`, also as `/v1/rerank` and `/v2/rerank`: documents in the order of how well they fit a query.
pub(crate) async fn rerank(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Response, ApiError> {
    let pooling = app.config.pooling;
    let check = move |model: &Preparing<'_>, fields: &mut Fields<'_>| check_rerank(model, fields, pooling);
    let (asked, vectors, unknown) = embedding::vectors((&app, &caller), body, check, &[]).await?;
    let (query, documents) = vectors.split_at(asked.left);
    let mut order: Vec<(usize, f64)> = documents
        .iter()
        .enumerate()
        .map(|(index, vector)| (index, cosine(&query[0], vector)))
        .collect();
    // The best first; equals in the order in which they were given.
    order.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    order.truncate(asked.most);
    let results = order.into_iter().map(|(index, score)| {
        let mut result = json!({ "index": index, "relevance_score": score });
        if asked.with_text {
            result["document"] = json!({ "text": asked.documents[index] });
        }
        result
    });
    let reply = json!({
        "id": identifiers::identifier("rerank-"),
        "model": asked.name,
        "results": results.collect::<Vec<_>>(),
        "usage": usage(&vectors),
    });
    let mut response = Json(reply).into_response();
    interface::warn(&mut response, unknown);
    Ok(response)
}

fn check_score(
    model: &Preparing<'_>,
    fields: &mut Fields<'_>,
    pooling: Pooling,
) -> Result<(Asked, Texts), ApiError> {
    let name = model.named(fields.take::<String>("model")?.as_deref())?;
    fields.rename(&[
        ("queries", "text_1"),
        ("documents", "text_2"),
        ("data_1", "text_1"),
        ("data_2", "text_2"),
    ]);
    let Inputs(left) = fields.require("text_1")?;
    let Inputs(right) = fields.require("text_2")?;
    if left.len() != 1 && left.len() != right.len() {
        let bound = format!("one text, or as many as `text_2`, {}", right.len());
        return Err(ApiError::bound(
            "text_1",
            &format!("a list of {}", left.len()),
            &bound,
        ));
    }
    fields.ignore(&["truncate_prompt_tokens", "activation", "use_activation"]);
    let asked = Asked {
        name,
        left: left.len(),
        documents: Vec::new(),
        most: 0,
        with_text: false,
    };
    let left = left.iter().map(|text| ("text_1", text));
    let texts = left.chain(right.iter().map(|text| ("text_2", text)));
    Ok((asked, requests(model, fields, texts, pooling)?))
}

fn check_rerank(
    model: &Preparing<'_>,
    fields: &mut Fields<'_>,
    pooling: Pooling,
) -> Result<(Asked, Texts), ApiError> {
    let name = model.named(fields.take::<String>("model")?.as_deref())?;
    let query = Prompt::Text(fields.require("query")?);
    let documents: Vec<Value> = fields.require("documents")?;
    let documents: Result<Vec<String>, _> = documents.into_iter().enumerate().map(document).collect();
    let documents = documents?;
    if documents.is_empty() {
        return Err(ApiError::bound("documents", &"[]", "at least one text"));
    }
    let most = fields.take::<usize>("top_n")?.filter(|most| *most > 0);
    let asked = Asked {
        name,
        left: 1,
        most: most.unwrap_or(documents.len()),
        with_text: fields.take("return_documents")?.unwrap_or(true),
        documents: documents.clone(),
    };
    fields.ignore(&[
        "max_chunks_per_doc",
        "max_tokens_per_doc",
        "rank_fields",
        "truncate_prompt_tokens",
    ]);
    let documents: Vec<Prompt> = documents.into_iter().map(Prompt::Text).collect();
    let texts = [("query", &query)].into_iter();
    let texts = texts.chain(documents.iter().map(|text| ("documents", text)));
    Ok((asked, requests(model, fields, texts, pooling)?))
}

/// The text of a document: a string, or an object with it.
fn document((index, value): (usize, Value)) -> Result<String, ApiError> {
    let text = match &value {
        Value::String(text) => Some(text.as_str()),
        value => value
            .as_object()
            .and_then(|object: &Map<String, Value>| object.get("text")?.as_str()),
    };
    text.map(str::to_owned).ok_or_else(|| {
        let param = format!("documents[{index}]");
        let message = format!("`{param}` is neither a text nor an object with `text`");
        ApiError::field(param, message)
    })
}

fn requests<'a>(
    model: &Preparing<'_>,
    fields: &mut Fields<'_>,
    texts: impl Iterator<Item = (&'static str, &'a Prompt)>,
    pooling: Pooling,
) -> Result<Texts, ApiError> {
    let cache_salt = cache_salt(fields)?;
    let requests = texts.map(|(param, text)| {
        let tokens = embedding::tokens(model, param, text, true)?;
        Ok(EmbeddingRequest::new(tokens, pooling))
    });
    Ok(Texts {
        requests: requests.collect::<Result<_, ApiError>>()?,
        cache_salt,
    })
}

fn usage(vectors: &[Embedded]) -> Value {
    let tokens: usize = vectors.iter().map(|vector| vector.usage.prompt_tokens).sum();
    json!({ "prompt_tokens": tokens, "total_tokens": tokens })
}

/// The cosine of the angle between two vectors; 0 if one has no direction.
fn cosine(one: &Embedded, other: &Embedded) -> f64 {
    let product = |one: &[f32], other: &[f32]| -> f64 {
        let pairs = one.iter().zip(other);
        pairs
            .map(|(one, other)| f64::from(*one) * f64::from(*other))
            .sum()
    };
    let lengths = (product(&one.values, &one.values) * product(&other.values, &other.values)).sqrt();
    if lengths > 0.0 {
        product(&one.values, &other.values) / lengths
    } else {
        0.0
    }
}
