//! Texts that become vectors, for every interface.

use crate::active::Listed;
use crate::admission::Permit;
use crate::app::{App, Caller};
use crate::body::Body;
use crate::error::{ApiError, ErrorKind};
use crate::fields::{Fields, Prompt};
use crate::generation::Failure;
use crate::lifecycle::Phase;
use crate::preparation::Preparing;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use paceline::{Embedded, EmbeddingError, EmbeddingRequest, RequestError};
use paceline_types::TokenId;

/// The texts of a request that has been understood.
pub(crate) struct Texts {
    pub(crate) requests: Vec<EmbeddingRequest>,
    pub(crate) cache_salt: Option<String>,
}

/// What was understood besides the texts, the texts' vectors, and the names of unknown fields.
type Vectors<T> = (T, Vec<Embedded>, Option<String>);

/// Lets a request in, finds out what it asks for, and turns its texts into vectors. `rename` gives the engine's names for
/// fields and the interface's.
pub(crate) async fn vectors<T: Send + 'static>(
    (app, caller): (&App, &Caller),
    body: Body,
    check: impl FnOnce(&Preparing<'_>, &mut Fields<'_>) -> Result<(T, Texts), ApiError> + Send + 'static,
    rename: &[(&str, &str)],
) -> Result<Vectors<T>, ApiError> {
    let mut permit = app.permit(caller)?;
    let ((asked, texts), unknown) = app.understand(caller, body, check).await?;
    let mut requests = texts.requests;
    // A few at a time are handed to the engine, so that many texts of one caller do not fill its queue.
    let at_a_time = (2 * app.engine.memory().slots).min(permit.most());
    permit.count(requests.len().min(at_a_time), 1)?;
    for request in &mut requests {
        request.priority = app.priority(caller, request.priority)?;
        request.deadline = app.deadline(request.deadline);
        request.tenant = caller.tenant();
        request.salt = app.salts.salt(request.tenant, texts.cache_salt.as_deref());
    }
    caller
        .usage
        .prompt(requests.iter().map(|request| request.prompt.len()).sum());
    let listed = app.active.enter(caller);
    let vectors = embed(app, (permit, listed, at_a_time), requests, rename).await?;
    Ok((asked, vectors, unknown))
}

/// The tokens of a text. Their number is checked here, before any text is run.
pub(crate) fn tokens(
    model: &Preparing<'_>,
    param: &str,
    text: &Prompt,
    special: bool,
) -> Result<Vec<TokenId>, ApiError> {
    let tokens = match text {
        Prompt::Text(text) => model.encode(param, text, special)?,
        Prompt::Tokens(tokens) => tokens.clone(),
    };
    let most = model.max_model_len;
    if (1..=most).contains(&tokens.len()) {
        return Ok(tokens);
    }
    if tokens.is_empty() {
        return Err(ApiError::bound(
            param,
            &"0 tokens long",
            "at least one token long",
        ));
    }
    Err(ApiError::too_long(param, tokens.len(), (most, false)))
}

/// Brings a vector to unit length; one without a direction stays as it is.
pub(crate) fn normalise(values: &mut [f32]) {
    let square: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
    let length = square.sqrt();
    if length > 0.0 && length.is_finite() {
        for value in values {
            *value = (f64::from(*value) / length) as f32;
        }
    }
}

/// Turns texts into vectors, in their order, as many at a time as were let in. All of them or none: dropping the future
/// cancels what still runs.
async fn embed(
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
