//! The OpenAI interface, with the extensions that vLLM made common and our own.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
mod format;
mod logprobs;
pub(crate) mod models;
mod origins;
mod usage;

pub(crate) use format::FormatFields;

use crate::error::{ApiError, ErrorKind};
use axum::Json;
use paceline_types::TokenId;
use serde::{Serialize, Serializer};
use std::sync::Arc;

/// An error in the shape that OpenAI's clients read.
#[derive(Serialize)]
pub(crate) struct ErrorBody {
    error: ErrorFields,
}

#[derive(Serialize)]
struct ErrorFields {
    message: String,
    r#type: &'static str,
    param: Option<String>,
    code: Option<&'static str>,
}

/// The body of an error reply; the data of an error frame in a stream.
pub(crate) fn error_body(error: &ApiError) -> Json<ErrorBody> {
    let r#type = match error.kind {
        ErrorKind::Unauthorized => "authentication_error",
        ErrorKind::NotFound => "not_found_error",
        ErrorKind::Busy => "rate_limit_error",
        ErrorKind::Unavailable => "service_unavailable_error",
        ErrorKind::Internal => "server_error",
        ErrorKind::Invalid | ErrorKind::Method | ErrorKind::Timeout | ErrorKind::TooLarge => {
            "invalid_request_error"
        }
    };
    Json(ErrorBody {
        error: ErrorFields {
            message: error.message.clone(),
            r#type,
            param: error.param.clone(),
            code: error.code,
        },
    })
}

/// Writes token ids that are shared with the request.
#[expect(clippy::ref_option, reason = "what the derived code hands over")]
fn shared_ids<S: Serializer>(ids: &Option<Arc<[TokenId]>>, serializer: S) -> Result<S::Ok, S::Error> {
    ids.as_deref().serialize(serializer)
}

/// A name for the server's version in replies.
const FINGERPRINT: &str = concat!("paceline-", env!("CARGO_PKG_VERSION"));
