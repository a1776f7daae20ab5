//! Errors in Ollama's shape: an object with the message.

use crate::error::ApiError;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header;
use axum::middleware::Next;
use axum::response::Response;
use serde_json::json;

/// Middleware around everything else: errors of this interface's paths are written in its shape, wherever they were made.
pub(crate) async fn speak(request: Request, next: Next) -> Response {
    let ours = request.uri().path().starts_with("/api/");
    let response = next.run(request).await;
    let error = response.extensions().get::<ApiError>().filter(|_| ours).cloned();
    let Some(error) = error else {
        return response;
    };
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(json!({ "error": error.message }).to_string()))
}
