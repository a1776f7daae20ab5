//! Why a request is refused or fails, for every interface; each writes it in its own shape.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use paceline::{Failure, RequestError};
use paceline_text::TextError;
use std::time::Duration;

/// When to try again if nothing better is known.
pub const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Longest message, and longest name of a field, in bytes.
const MAX_TEXT: usize = 2000;

/// The code of a prompt that the context cannot hold.
pub const CONTEXT_LENGTH_EXCEEDED: &str = "context_length_exceeded";

/// Kinds of failures, by what the client can do about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Something in the request is wrong.
    Invalid,
    /// No key, or a wrong one.
    Unauthorized,
    /// No such model or path.
    NotFound,
    /// The path does not take this method.
    Method,
    /// The request took too long to arrive.
    Timeout,
    /// The request is too large.
    TooLarge,
    /// Too many requests for now.
    Busy,
    /// The server is going down or its engine has stopped.
    Unavailable,
    /// A fault of ours.
    Internal,
}

impl ErrorKind {
    /// The status of the reply.
    pub fn status(self) -> StatusCode {
        match self {
            Self::Invalid => StatusCode::BAD_REQUEST,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Timeout => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Busy => StatusCode::TOO_MANY_REQUESTS,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// A failure as the client is told of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// Decides status and `type` of the reply.
    pub kind: ErrorKind,
    /// What was wrong, with field, value and bound.
    pub message: String,
    /// The field of the request that is to blame.
    pub param: Option<String>,
    /// For programs, where there is a usual name.
    pub code: Option<&'static str>,
    /// When it may be worth to try again.
    pub retry_after: Option<Duration>,
}

impl ApiError {
    /// The failure of a generation as clients are told of it.
    pub(crate) fn failed(failure: &Failure) -> Self {
        match failure {
            Failure::Engine(_) => Self::new(ErrorKind::Internal, failure.to_string()),
            Failure::ShuttingDown => crate::admission::going_down(),
        }
    }

    /// A failure of some kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let again = matches!(kind, ErrorKind::Busy | ErrorKind::Unavailable);
        Self {
            kind,
            message: bounded(message.into()),
            param: None,
            code: None,
            retry_after: again.then_some(RETRY_AFTER),
        }
    }

    /// A field that cannot be served, in words.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            param: Some(bounded(param.into())),
            ..Self::new(ErrorKind::Invalid, message)
        }
    }

    /// A field outside its bounds.
    pub fn bound(param: &str, value: &dyn std::fmt::Display, bound: &str) -> Self {
        Self::field(param, format!("`{param}` is {value}; it must be {bound}"))
    }

    /// A refusal of the engine; `rename` gives the engine's names for fields and the interface's.
    pub fn refused(error: RequestError, rename: &[(&str, &str)]) -> Self {
        match error {
            RequestError::Parameter { field, value, bound } => {
                let renamed = rename.iter().find(|(name, _)| *name == field);
                let name = renamed.map_or(field, |(_, name)| name);
                Self::bound(name, &value, &bound)
            }
            RequestError::PromptTooLong {
                field,
                tokens,
                limit,
                generates,
            } => {
                let renamed = rename.iter().find(|(name, _)| *name == field);
                let field = renamed.map_or(field.as_str(), |(_, name)| name);
                Self::too_long(field, tokens, (limit, generates))
            }
            RequestError::Lists(lists) => Self::new(ErrorKind::Invalid, lists.to_string()),
            RequestError::QueueFull { .. } => Self::new(ErrorKind::Busy, error.to_string()),
            RequestError::Stopped(_) => Self::new(ErrorKind::Unavailable, error.to_string()),
        }
    }

    /// A field with more tokens than the context has; with `generates`, one more has to fit.
    pub fn too_long(param: &str, tokens: usize, (limit, generates): (usize, bool)) -> Self {
        let error = RequestError::PromptTooLong {
            field: param.to_owned(),
            tokens,
            limit,
            generates,
        };
        Self {
            code: Some(CONTEXT_LENGTH_EXCEEDED),
            ..Self::field(param, error.to_string())
        }
    }

    /// The same where they were not counted to the end.
    pub fn overlong(param: &str, at_least: usize, limit: usize) -> Self {
        let message = format!(
            "This model's maximum context length is {limit} tokens. However, `{param}` has at least {at_least} tokens."
        );
        Self {
            code: Some(CONTEXT_LENGTH_EXCEEDED),
            ..Self::field(param, message)
        }
    }

    /// Text that cannot be turned into tokens or back, given in a field.
    pub fn text(param: &str, error: &TextError) -> Self {
        Self::field(param, format!("`{param}`: {error}"))
    }
}

/// A text that may quote the client, such as a path through its own names, is cut.
fn bounded(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        text.truncate(text.floor_char_boundary(MAX_TEXT));
        text.push('…');
    }
    text
}

impl IntoResponse for ApiError {
    /// In the shape of OpenAI. The error goes along as an extension, so that another interface can rewrite it.
    fn into_response(self) -> Response {
        let mut response = (self.kind.status(), crate::openai::error_body(&self)).into_response();
        if let Some(wait) = self.retry_after {
            let seconds = HeaderValue::from(wait.as_secs().max(1));
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        if self.kind == ErrorKind::Unauthorized {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_quotes_the_client_is_short() {
        let error = ApiError::field("é".repeat(5000), "ß".repeat(5000));
        assert!(error.message.len() < MAX_TEXT + 4 && error.message.ends_with('…'));
        assert!(error.param.is_some_and(|param| param.len() < MAX_TEXT + 4));
        assert_eq!(ApiError::field("a", "b").message, "b");
    }
}
