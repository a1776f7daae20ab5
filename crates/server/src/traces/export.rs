//! Sends spans to a collector. Nothing waits for it: what finds no room in its queue is dropped and counted.

use super::otlp::{ExportRequest, KeyValue, Resource, ResourceSpans, Scope, ScopeSpans, Span};
use super::{RequestSpans, Sampler, TraceConfig, TraceContext};
use axum::http::HeaderMap;
use paceline_client::{ClientError, Poster};
use prost::Message;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::JoinHandle;

/// Requests whose spans may wait to be sent.
const QUEUE: usize = 2048;

/// Requests whose spans are sent at once, and how long the first of them waits for others.
const BATCH: usize = 256;
const DELAY: Duration = Duration::from_secs(1);

/// How long spans that are left may take when the server goes down.
const LAST: Duration = Duration::from_secs(2);

/// At most one complaint about the collector in this time.
const COMPLAIN: Duration = Duration::from_mins(1);

/// The server's end of the queue.
pub(crate) struct Exporter {
    sampler: Sampler,
    queue: Sender<Vec<Span>>,
    /// Spans that found the queue full, or were not accepted.
    lost: Arc<AtomicU64>,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// The collector's end.
struct Worker {
    poster: Poster,
    resource: Resource,
    lost: Arc<AtomicU64>,
    complained: Option<Instant>,
}

impl Exporter {
    /// Starts the task that sends. It runs until [`Self::close`].
    pub(crate) fn start(config: &TraceConfig) -> Result<Self, ClientError> {
        let poster = Poster::new(&config.endpoint, &config.headers, config.timeout)?;
        let attributes = config.resource.iter();
        let attributes = attributes.map(|(key, value)| KeyValue::new(key, value.as_str()));
        let lost = Arc::<AtomicU64>::default();
        let worker = Worker {
            poster,
            lost: Arc::clone(&lost),
            resource: Resource {
                attributes: attributes.collect(),
            },
            complained: None,
        };
        let (queue, spans) = mpsc::channel(QUEUE);
        Ok(Self {
            sampler: config.sampler,
            queue,
            lost,
            task: Mutex::new(Some(tokio::spawn(worker.run(spans)))),
        })
    }

    /// The place of a request in a trace, and what collects its spans if it has any.
    pub(crate) fn begin(&self, headers: &HeaderMap) -> (TraceContext, Option<RequestSpans>) {
        let context = TraceContext::of(headers, &self.sampler);
        let spans = context.sampled.then(|| RequestSpans::new(context.clone()));
        (context, spans)
    }

    /// Sends spans some time, or drops them.
    pub(crate) fn send(&self, spans: Vec<Span>) {
        let count = spans.len() as u64;
        if self.queue.try_send(spans).is_err() {
            self.lost.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Spans that found no room, or no collector.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Sends what is left, for a short while.
    pub(crate) async fn close(&self) {
        // An empty list of spans is the end.
        let _ = tokio::time::timeout(LAST, async {
            let _ = self.queue.send(Vec::new()).await;
            if let Some(task) = self.task.lock().await.take() {
                let _ = task.await;
            }
        })
        .await;
    }
}

impl Worker {
    async fn run(mut self, mut queue: Receiver<Vec<Span>>) {
        let mut open = true;
        while open && let Some(first) = queue.recv().await {
            let mut batch = vec![first];
            let until = tokio::time::Instant::now() + DELAY;
            while batch.len() < BATCH && batch.last().is_some_and(|spans| !spans.is_empty()) {
                match tokio::time::timeout_at(until, queue.recv()).await {
                    Ok(Some(spans)) => batch.push(spans),
                    Ok(None) | Err(_) => break,
                }
            }
            open = batch.last().is_some_and(|spans| !spans.is_empty());
            self.post(batch.concat()).await;
        }
    }

    async fn post(&mut self, spans: Vec<Span>) {
        if spans.is_empty() {
            return;
        }
        let count = spans.len();
        let request = ExportRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(self.resource.clone()),
                scope_spans: vec![ScopeSpans {
                    scope: Some(Scope {
                        name: "paceline".to_owned(),
                        version: env!("CARGO_PKG_VERSION").to_owned(),
                    }),
                    spans,
                }],
            }],
        };
        let posted = self
            .poster
            .post("application/x-protobuf", request.encode_to_vec())
            .await;
        let Err(error) = posted else { return };
        self.lost.fetch_add(count as u64, Ordering::Relaxed);
        if self.complained.is_none_or(|last| last.elapsed() >= COMPLAIN) {
            self.complained = Some(Instant::now());
            tracing::warn!(spans = count, "spans were not accepted and are lost: {error}");
        }
    }
}
