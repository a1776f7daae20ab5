//! Errors in Anthropic's shape.

use crate::error::{ApiError, ErrorKind};
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderName, header};
use axum::middleware::Next;
use axum::response::Response;
use serde::Serialize;
use std::borrow::Cow;

/// Where this interface is, with everything below.
const PATH: &str = "/v1/messages";

/// The server's name for the request, and Anthropic's.
const IDS: (HeaderName, HeaderName) = (
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("request-id"),
);

/// The body of an error reply; the data of an error event in a stream.
#[derive(Debug, Serialize)]
pub(super) struct ErrorBody<'a> {
    r#type: &'static str,
    error: ErrorFields<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
}

#[derive(Debug, Serialize)]
struct ErrorFields<'a> {
    r#type: &'static str,
    message: Cow<'a, str>,
}

pub(super) fn error_body(error: &ApiError) -> ErrorBody<'_> {
    let r#type = match error.kind {
        ErrorKind::Invalid | ErrorKind::Method | ErrorKind::Timeout => "invalid_request_error",
        ErrorKind::Unauthorized => "authentication_error",
        ErrorKind::NotFound => "not_found_error",
        ErrorKind::TooLarge => "request_too_large",
        ErrorKind::Busy => "rate_limit_error",
        ErrorKind::Unavailable => "overloaded_error",
        ErrorKind::Internal => "api_error",
    };
    // The words by which clients of Anthropic tell this error from others.
    let message = match error.code {
        Some(crate::error::CONTEXT_LENGTH_EXCEEDED) => {
            Cow::Owned(format!("prompt is too long: {}", error.message))
        }
        _ => Cow::Borrowed(error.message.as_str()),
    };
    ErrorBody {
        r#type: "error",
        error: ErrorFields { r#type, message },
        request_id: None,
    }
}

/// Middleware around everything else: errors of this interface's paths are written in its shape, wherever they were made,
/// and its clients find the name of the request where they look for it.
pub(crate) async fn speak(request: Request, next: Next) -> Response {
    let rest = request.uri().path().strip_prefix(PATH);
    let ours = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let response = next.run(request).await;
    if ours { translate(response) } else { response }
}

fn translate(mut response: Response) -> Response {
    let id = response.headers().get(&IDS.0).cloned();
    if let Some(id) = &id {
        response.headers_mut().insert(IDS.1, id.clone());
    }
    let Some(error) = response.extensions().get::<ApiError>().cloned() else {
        return response;
    };
    let mut body = error_body(&error);
    body.request_id = id.and_then(|id| id.to_str().map(str::to_owned).ok());
    let Ok(json) = serde_json::to_vec(&body) else {
        return response;
    };
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(json))
}
