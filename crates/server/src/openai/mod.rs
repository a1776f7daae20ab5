//! The OpenAI interface, with the extensions that vLLM made common and our own.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod fields;
mod format;
mod logprobs;
pub(crate) mod models;
pub(crate) mod sampling;
mod usage;

use crate::error::{ApiError, ErrorKind};
use axum::Json;
use serde::Serialize;

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

/// The engine's names for fields, and those of this interface.
const NAMES: [(&str, &str); 1] = [("stop_tokens", "stop_token_ids")];

/// A name for the server's version in replies.
const FINGERPRINT: &str = concat!("paceline-", env!("CARGO_PKG_VERSION"));
