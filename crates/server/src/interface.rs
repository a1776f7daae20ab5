//! The way of a request that generates, the same for every interface: its fields are taken apart, understood and run,
//! and the reply is written as a whole or as it comes.

use crate::app::{App, Caller};
use crate::body::Body;
use crate::constraint::Wanted;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::{Collected, GenerationTask, collect};
use crate::preparation::Preparing;
use crate::sse;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Serialize;

/// Names the unknown fields of a request.
pub(crate) const WARNING: HeaderName = HeaderName::from_static("x-paceline-warning");

/// What is particular to an interface.
pub(crate) trait Interface: 'static {
    /// The engine's names for fields and the interface's, where they differ.
    const NAMES: &'static [(&'static str, &'static str)];
    /// Puts the reply into the form of the interface.
    type Writer: Writer;

    /// Understands a request: takes its fields, and turns text into tokens.
    fn check(model: &Preparing<'_>, fields: &mut Fields<'_>) -> Result<Understood<Self::Writer>, ApiError>;
}

/// Writes replies of an interface.
pub(crate) trait Writer: Send + 'static {
    /// Writes them as they come.
    type Encoder: sse::Encoder;
    /// A whole one.
    type Reply: Serialize;

    /// For a reply that is a stream.
    fn stream(self) -> Self::Encoder;
    /// For one that is not.
    fn whole(self, collected: Collected) -> Self::Reply;
}

/// A request that has been understood.
pub(crate) struct Understood<W> {
    pub(crate) task: GenerationTask,
    /// What the text must follow.
    pub(crate) wanted: Option<Wanted>,
    pub(crate) writer: W,
    /// The reply is a stream.
    pub(crate) stream: bool,
}

/// The endpoint of an interface.
pub(crate) async fn create<I: Interface>(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Response, ApiError> {
    let mut admitted = app.admit(&caller, body, I::check).await?;
    let unknown = admitted.unknown.take();
    let Understood { task, stream, .. } = &admitted.understood;
    let (sizes, stream) = ((task.prompts.len(), task.choices()), *stream);
    let (outputs, writer) = app.run(&caller, admitted, I::NAMES).await?;
    let mut response = if stream {
        sse::reply(outputs, writer.stream())
    } else {
        let collected = collect(outputs, sizes).await;
        let collected = collected.map_err(|failure| ApiError::failed(&failure))?;
        Json(writer.whole(collected)).into_response()
    };
    warn(&mut response, unknown);
    Ok(response)
}

/// The reply of an endpoint that generates nothing.
pub(crate) async fn reply<T: Serialize + Send + 'static>(
    app: &App,
    caller: &Caller,
    body: Body,
    understand: fn(&Preparing<'_>, &mut Fields<'_>) -> Result<T, ApiError>,
) -> Result<Response, ApiError> {
    let (reply, unknown) = app.understand(caller, body, understand).await?;
    let mut response = Json(reply).into_response();
    warn(&mut response, unknown);
    Ok(response)
}

/// Tells the client of fields that were ignored.
pub(crate) fn warn(response: &mut Response, unknown: Option<String>) {
    let warning =
        unknown.map(|names| HeaderValue::from_str(&format!("unknown fields were ignored: {names}")));
    if let Some(Ok(warning)) = warning {
        response.headers_mut().insert(WARNING, warning);
    }
}
