//! Texts that become vectors, for every interface.

use crate::active::Listed;
use crate::admission::Permit;
use crate::app::App;
use crate::error::{ApiError, ErrorKind};
use crate::generation::Failure;
use crate::lifecycle::Phase;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use paceline::{Embedded, EmbeddingError, EmbeddingRequest, RequestError};

/// Turns texts into vectors, in their order, as many at a time as were let in. All of them or none: dropping the future
/// cancels what still runs.
pub(crate) async fn embed(
    app: &App,
    (permit, listed, at_a_time): (Permit, Listed, usize),
    requests: Vec<EmbeddingRequest>,
    rename: &[(&str, &str)],
) -> Result<Vec<Embedded>, ApiError> {
    let many = requests.len() > 1;
    let texts = stream::iter(requests.into_iter().enumerate());
    let listed = &listed;
    let vectors = texts.map(|(index, request)| async move {
        let place = many.then_some(index);
        let running = app.engine.embed(request);
        let running = running.map_err(|error| refused(app, error, rename, place))?;
        listed.add(running.id()..running.id() + 1, running.canceller());
        running.await.map_err(|error| failed(app, &error))
    });
    let abort = app.lifecycle.abort_token();
    let vectors = tokio::select! {
        biased;
        () = abort.cancelled() => Err(over(app)),
        vectors = vectors.buffered(at_a_time).try_collect() => vectors,
    };
    drop(permit);
    vectors
}

/// Why everything that ran was ended.
fn over(app: &App) -> ApiError {
    let failure = match app.lifecycle.phase() {
        Phase::Failed(reason) => Failure::Engine(reason),
        Phase::Serving | Phase::Draining => Failure::ShuttingDown,
    };
    ApiError::failed(&failure)
}

/// A refusal of the engine, with the place of the text among several.
fn refused(app: &App, error: RequestError, rename: &[(&str, &str)], place: Option<usize>) -> ApiError {
    if let RequestError::Stopped(reason) = &error {
        app.lifecycle.fail(reason);
    }
    let mut error = ApiError::refused(error, rename);
    if let (Some(index), Some(param)) = (place, &error.param) {
        let placed = format!("{param}[{index}]");
        error.message = error.message.replacen(param.as_str(), &placed, 1);
        error.param = Some(placed);
    }
    error
}

fn failed(app: &App, error: &EmbeddingError) -> ApiError {
    match error {
        EmbeddingError::Deadline => ApiError::new(ErrorKind::Timeout, error.to_string()),
        EmbeddingError::Cancelled => ApiError::new(ErrorKind::Unavailable, error.to_string()),
        EmbeddingError::Failed(_) => {
            if let Some(reason) = app.engine.fault() {
                app.lifecycle.fail(&reason);
            }
            ApiError::new(ErrorKind::Internal, error.to_string())
        }
    }
}
