//! Whether the server lives and takes requests.

use crate::admission;
use crate::app::App;
use crate::error::{ApiError, ErrorKind};
use crate::lifecycle::Phase;
use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

/// `/health` and `/ping`: the engine lives.
pub(crate) async fn health(State(app): State<App>) -> Result<Json<Value>, ApiError> {
    let failed = match app.lifecycle.phase() {
        Phase::Failed(reason) => Some(reason),
        Phase::Serving | Phase::Draining => app.engine.fault(),
    };
    match failed {
        Some(reason) => {
            let message = format!("the engine has stopped: {reason}");
            Err(ApiError::new(ErrorKind::Unavailable, message))
        }
        None => Ok(Json(json!({ "status": "ok" }))),
    }
}

/// `/ready`: requests are taken.
pub(crate) async fn ready(State(app): State<App>) -> Result<Json<Value>, ApiError> {
    if app.lifecycle.phase() == Phase::Draining {
        return Err(admission::going_down());
    }
    let _alive = health(State(app)).await?;
    Ok(Json(json!({ "status": "ready" })))
}

/// `GET /version`, as vLLM has it.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") }))
}
