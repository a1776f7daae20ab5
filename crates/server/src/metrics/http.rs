//! Connections and refusals.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Statuses that are there from the start, so that the first error is seen as a rise.
const STATUSES: [u16; 9] = [400, 401, 404, 405, 408, 413, 429, 500, 503];

type StatusLabel = [(&'static str, String); 1];

/// What is counted of connections and replies.
#[derive(Clone)]
pub(crate) struct HttpMetrics {
    connections: Gauge,
    cut: Counter,
    crowded: Counter,
    refused: Family<StatusLabel, Counter>,
}

/// A connection; it counts as open until this is dropped.
pub(crate) struct OpenConnection(Gauge);

impl HttpMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            connections: Gauge::default(),
            cut: Counter::default(),
            crowded: Counter::default(),
            refused: Family::default(),
        };
        for status in STATUSES {
            drop(metrics.refused.get_or_create(&label(status)));
        }
        registry.register(
            "paceline:open_connections",
            "Connections that are open",
            metrics.connections.clone(),
        );
        registry.register(
            "paceline:cut_connections",
            "Connections that were cut because their client took nothing of a reply for too long",
            metrics.cut.clone(),
        );
        registry.register(
            "paceline:refused_connections",
            "Connections that were refused because their address had too many",
            metrics.crowded.clone(),
        );
        registry.register(
            "paceline:rejected_requests",
            "Requests that were answered with an error, by its status",
            metrics.refused.clone(),
        );
        metrics
    }

    /// A connection was made.
    pub(crate) fn connection(&self) -> OpenConnection {
        self.connections.inc();
        OpenConnection(self.connections.clone())
    }

    /// A connection was cut because its peer read nothing.
    pub(crate) fn cut(&self) {
        self.cut.inc();
    }

    /// A connection was refused because its address has too many.
    pub(crate) fn refused_connection(&self) {
        self.crowded.inc();
    }

    /// A reply was given; only errors count.
    pub(crate) fn replied(&self, status: u16) {
        if status >= 400 {
            self.refused.get_or_create(&label(status)).inc();
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}

fn label(status: u16) -> StatusLabel {
    [("status", status.to_string())]
}
