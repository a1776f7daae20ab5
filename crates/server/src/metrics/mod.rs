//! `/metrics`: what the engine and the server count, for Prometheus.
//!
//! Names of vLLM where the meaning is vLLM's, so that its dashboards, autoscalers and routers work as they are;
//! `paceline:` for the rest. The engine's own numbers are read when the metrics are; those of requests are counted
//! where their outputs pass.

mod classic;
mod engine;
mod grammars;
mod http;
mod requests;
mod write;

pub(crate) use http::{HttpMetrics, OpenConnection};
pub(crate) use requests::{ChoiceMetrics, RequestMetrics};

use crate::app::App;
use crate::constraint::Grammars;
use crate::model::ServedModel;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use paceline::Handle;
use prometheus_client::registry::Registry;
use std::sync::Arc;

const OPEN_METRICS: &str = "application/openmetrics-text";

/// All metrics of a server.
pub(crate) struct Metrics {
    registry: Registry,
    pub(crate) requests: RequestMetrics,
    pub(crate) http: HttpMetrics,
}

impl Metrics {
    pub(crate) fn new(model: &ServedModel, engine: Handle, grammars: Arc<Grammars>) -> Self {
        let labels = [("model_name", model.name()), ("engine", "0")];
        let labels = labels.map(|(name, value)| (name.into(), value.to_owned().into()));
        let mut registry = Registry::with_labels(labels.into_iter());
        let requests = RequestMetrics::register(&mut registry, model.max_model_len);
        let http = HttpMetrics::register(&mut registry);
        registry.register_collector(Box::new(engine::EngineCollector::new(engine)));
        registry.register_collector(Box::new(grammars::GrammarCollector(grammars)));
        Self {
            registry,
            requests,
            http,
        }
    }

    /// The text in the format of `OpenMetrics`.
    fn write(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// The endpoint. Prometheus asks for `OpenMetrics` and gets it; everyone else gets the older format, which all read.
pub(crate) async fn scrape(State(app): State<App>, headers: HeaderMap) -> Response {
    let Ok(text) = app.metrics.write() else {
        let kind = crate::error::ErrorKind::Internal;
        return crate::error::ApiError::new(kind, "the metrics cannot be written").into_response();
    };
    let accepted = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let (kind, text) = if accepted.is_some_and(|accepted| accepted.contains(OPEN_METRICS)) {
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", text)
    } else {
        (
            "text/plain; version=0.0.4; charset=utf-8",
            classic::rewrite(&text),
        )
    };
    let kind = HeaderValue::from_static(kind);
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}
