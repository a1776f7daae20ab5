//! What every request passes: its name, its key, a line in the log, and a net for our own mistakes.

use crate::app::{App, Caller};
use crate::error::{ApiError, ErrorKind};
use crate::identifiers;
use crate::lifecycle::Phase;
use crate::places::Leave;
use crate::reply;
use crate::request_log::{RequestLine, RequestUsage};
use crate::traces::TRACEPARENT;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use std::any::Any;
use std::sync::Arc;
use std::time::Instant;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest request id that is taken from a client.
const MAX_REQUEST_ID: usize = 128;

/// Paths that need no key: what load balancers and Prometheus ask. They tell nothing about the requests of clients but how
/// many there are. README and `serve --help` list them, and the page, which tells nothing at all.
const OPEN_PATHS: [&str; 5] = ["/health", "/ping", "/ready", "/version", "/metrics"];

/// Puts the router into its envelope.
pub(crate) fn wrap(router: Router, app: &App) -> Router {
    let router = router
        .layer(CatchPanicLayer::custom(caught))
        .layer(middleware::from_fn_with_state(app.clone(), check_key));
    // Before the keys are checked: a browser asks for permission without one.
    let router = match cors(&app.config.allowed_origins) {
        Some(cors) => router.layer(cors),
        None => router,
    };
    router.layer(middleware::from_fn_with_state(app.clone(), identify))
}

/// Names the request, and tells the log how it went once its reply is over.
async fn identify(State(app): State<App>, mut request: Request, next: Next) -> Response {
    // A connection may bring many requests at once. It takes turns with others after each of them: without this, it
    // would have dozens answered in a row, and a few hundred such connections would keep everybody else waiting.
    tokio::task::yield_now().await;
    let start = Instant::now();
    let request_id = request_id(&request);
    let (method, path) = (
        request.method().clone(),
        crate::body::shorten(request.uri().path()),
    );
    let leave = request.extensions().get::<Leave>().cloned();
    let trace = app.traces.as_ref().map(|traces| traces.begin(request.headers()));
    let (context, spans) = trace.unzip();
    let usage = Arc::new(RequestUsage::new(spans.flatten()));
    request.extensions_mut().insert(Caller {
        key: None,
        usage: Arc::clone(&usage),
        request_id: request_id.as_str().into(),
        path: path.as_str().into(),
    });
    let mut response = next.run(request).await;
    let share = app.replies.reserve(response.body()).unwrap_or_else(|error| {
        response = error.into_response();
        None
    });
    let status = response.status().as_u16();
    app.metrics.http.replied(status);
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::from_str(&request_id) {
        headers.insert(REQUEST_ID, value);
    }
    if let Some(Ok(value)) = context.map(|context| HeaderValue::from_str(&context.header())) {
        headers.insert(TRACEPARENT, value);
    }
    if app.lifecycle.phase() != Phase::Serving || leave.is_some_and(|leave| leave.is_asked()) {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    let error = response.extensions().get::<ApiError>();
    let line = RequestLine {
        reason: error.map(|error| error.message.clone()),
        request_id,
        method,
        path,
        status,
        start,
        usage,
    };
    let over = move |complete| {
        line.write(complete);
        if let (Some(traces), Some(spans)) = (&app.traces, &line.usage.spans) {
            traces.send(spans.finish(&line.outcome(app.model.name(), complete)));
        }
    };
    response.map(|body| reply::send(body, share, over))
}

/// The client's name for the request if it is a reasonable one, else one of ours.
fn request_id(request: &Request) -> String {
    let given = request
        .headers()
        .get(REQUEST_ID)
        .and_then(|value| value.to_str().ok());
    let given = given.filter(|id| (1..=MAX_REQUEST_ID).contains(&id.len()));
    given.map_or_else(|| identifiers::identifier("req-"), str::to_owned)
}

async fn check_key(State(app): State<App>, mut request: Request, next: Next) -> Response {
    if app.keys.closed() {
        let key = app.keys.find(request.headers());
        let path = request.uri().path();
        let open = OPEN_PATHS.contains(&path)
            || app.config.page && crate::page::has(path)
            || request.method() == Method::OPTIONS;
        if key.is_none() && !open {
            let error = ApiError {
                code: Some("invalid_api_key"),
                ..ApiError::new(
                    ErrorKind::Unauthorized,
                    "this server needs an API key: send `Authorization: Bearer KEY` with a valid one",
                )
            };
            return error.into_response();
        }
        if let Some(caller) = request.extensions_mut().get_mut::<Caller>() {
            caller.key = key;
        }
    }
    next.run(request).await
}

#[expect(clippy::needless_pass_by_value, reason = "the layer hands it over")]
/// A panic in a handler ends its request and nothing else.
fn caught(panic: Box<dyn Any + Send>) -> Response {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!("a handler panicked: {}", text.unwrap_or("for an unknown reason"));
    ApiError::new(ErrorKind::Internal, "an internal error; the log has more").into_response()
}

fn cors(origins: &[String]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let allowed = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(
            origins
                .iter()
                .filter_map(|origin| HeaderValue::from_str(origin).ok()),
        )
    };
    let cors = CorsLayer::new().allow_origin(allowed);
    Some(
        cors.allow_methods([Method::GET, Method::POST, Method::DELETE])
            // By name: `*` would not cover the one with the key.
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers([REQUEST_ID, header::RETRY_AFTER, crate::interface::WARNING]),
    )
}
