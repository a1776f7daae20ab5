//! The accept loop and its end.

use crate::app::App;
use crate::metrics::HttpMetrics;
use crate::places::{Leave, Place, Places};
use crate::routes;
use crate::server::ServeError;
use crate::write_timeout::{Patience, TimedWrites};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// Rest after an accept that failed, such as for want of file descriptors.
const REST: Duration = Duration::from_millis(50);

/// Time for a reader to take something of its reply when the server has nothing else left to do or another connection needs
/// its place, and for the last bytes of replies to be written where there is no time left to drain.
const FLUSH: Duration = Duration::from_secs(2);

/// Connections that have been accepted and wait for a place.
const WAITING: usize = 64;

/// Time for an encrypted connection to be set up.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// What a connection of an address that has too many is told.
const REFUSAL: &str = r#"{"error":{"message":"there are too many connections from this address","type":"service_unavailable_error","code":503}}"#;

/// Connections of one server.
struct Connections {
    http: http1::Builder,
    router: axum::Router,
    tls: Option<TlsAcceptor>,
    places: Places,
    open: GracefulShutdown,
    metrics: HttpMetrics,
    patience: Patience,
}

/// The router, for one connection.
struct Answering {
    router: TowerToHyperService<axum::Router>,
    leave: Leave,
}

impl Service<Request<Incoming>> for Answering {
    type Response = <TowerToHyperService<axum::Router> as Service<Request<Incoming>>>::Response;
    type Error = <TowerToHyperService<axum::Router> as Service<Request<Incoming>>>::Error;
    type Future = <TowerToHyperService<axum::Router> as Service<Request<Incoming>>>::Future;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        request.extensions_mut().insert(self.leave.clone());
        self.router.call(request)
    }
}

/// How a server came to its end.
enum Ending {
    /// All generations have ended; this much of the time to drain is left.
    Drained(Duration),
    /// The time to drain is over, and so are generations that still ran.
    Aborted,
    Failed(ServeError),
}

/// Serves until drained or failed.
pub(crate) async fn serve(
    app: App,
    listener: TcpListener,
    drain: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let connections = Connections::new(&app)?;
    let ending = tokio::select! {
        error = connections.accept(&listener) => Ending::Failed(error),
        ending = until_over(&app, drain) => ending,
    };
    drop(listener);
    let (time, result) = match ending {
        Ending::Drained(left) => (left.max(FLUSH), Ok(())),
        Ending::Aborted => (FLUSH, Ok(())),
        Ending::Failed(error) => (FLUSH, Err(error)),
    };
    // What is idle closes now; what writes its last bytes may go on as long as its client takes them.
    connections.patience.hurry.cancel();
    let _ = tokio::time::timeout(time, connections.open.shutdown()).await;
    result
}

/// Waits for the order to drain and carries it out, or for a failure.
async fn until_over(app: &App, drain: impl Future<Output = ()>) -> Ending {
    let lifecycle = &app.lifecycle;
    let drained = async {
        drain.await;
        lifecycle.drain();
        let (running, wait) = (lifecycle.active(), app.config.drain_timeout);
        let start = Instant::now();
        tracing::info!(running, seconds = wait.as_secs_f64(), "draining");
        if tokio::time::timeout(wait, lifecycle.idle()).await.is_ok() {
            return Ending::Drained(wait.saturating_sub(start.elapsed()));
        }
        tracing::warn!(
            running = lifecycle.active(),
            "the time to drain is over; ending what runs"
        );
        lifecycle.abort();
        Ending::Aborted
    };
    tokio::select! {
        ending = drained => ending,
        reason = lifecycle.failed() => {
            // Waiting clients are told why, whether or not the engine can still tell them.
            lifecycle.abort();
            Ending::Failed(ServeError::Engine(reason))
        }
    }
}

impl Connections {
    fn new(app: &App) -> Result<Self, ServeError> {
        let config = &app.config;
        // What hyper can work with; it would panic.
        if config.max_header_bytes < 8192 {
            return Err(ServeError::Option {
                option: "max-header-bytes",
                value: config.max_header_bytes.to_string(),
                bound: "at least 8192",
            });
        }
        let patience = Patience {
            usual: config.write_timeout,
            last: FLUSH,
            hurry: CancellationToken::new(),
            stall: None,
        };
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(config.header_timeout)
            .max_buf_size(config.max_header_bytes);
        Ok(Self {
            http,
            router: routes::router(app),
            tls: config
                .tls
                .as_ref()
                .map(|tls| TlsAcceptor::from(Arc::clone(&tls.0))),
            places: Places::new(
                config.max_connections,
                config.max_connections_per_address,
                patience.clone(),
                app.metrics.http.clone(),
            ),
            open: GracefulShutdown::new(),
            metrics: app.metrics.http.clone(),
            patience,
        })
    }

    /// Accepts connections for ever. Some wait here for a place, the others in the system's queue.
    async fn accept(&self, listener: &TcpListener) -> ServeError {
        let mut waiting = FuturesUnordered::new();
        loop {
            tokio::select! {
                accepted = listener.accept(), if waiting.len() < WAITING => match accepted {
                    Ok((socket, peer)) => waiting.push(self.admit(socket, peer.ip())),
                    Err(error) => {
                        tracing::warn!("cannot accept a connection: {error}");
                        tokio::time::sleep(REST).await;
                    }
                },
                Some(()) = waiting.next() => {}
            }
        }
    }

    /// Serves a connection once there is a place for it.
    async fn admit(&self, socket: TcpStream, address: IpAddr) {
        let Ok(place) = self.places.take(address).await else {
            tracing::debug!("too many connections from {address}");
            return self.refuse(&socket);
        };
        // Small frames of a stream must not wait for each other.
        let _ = socket.set_nodelay(true);
        let socket = TimedWrites::new(socket, place.patience(&self.patience));
        self.start(socket, place);
    }

    /// Says why a connection is not served, if it can be said at once.
    fn refuse(&self, socket: &TcpStream) {
        if self.tls.is_none() {
            let length = REFUSAL.len();
            let reply = format!(
                "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
                 retry-after: 1\r\nconnection: close\r\n\r\n{REFUSAL}"
            );
            let _ = socket.try_write(reply.as_bytes());
        }
    }

    fn start(&self, socket: TimedWrites<TcpStream>, place: Place) {
        let Some(tls) = self.tls.clone() else {
            let service = self.service(&place);
            let connection = self.http.serve_connection(TokioIo::new(socket), service);
            let connection = self.open.watch(connection);
            let metrics = self.metrics.clone();
            tokio::spawn(async move {
                finish(connection.await, &metrics);
                drop(place);
            });
            return;
        };
        let (http, service) = (self.http.clone(), self.service(&place));
        let (watcher, metrics) = (self.open.watcher(), self.metrics.clone());
        tokio::spawn(async move {
            match tokio::time::timeout(HANDSHAKE, tls.accept(socket)).await {
                Ok(Ok(socket)) => {
                    let connection = http.serve_connection(TokioIo::new(socket), service);
                    finish(watcher.watch(connection).await, &metrics);
                }
                Ok(Err(error)) => tracing::debug!("no encrypted connection: {error}"),
                Err(_) => tracing::debug!("an encrypted connection took too long to set up"),
            }
            drop(place);
        });
    }

    /// What answers the requests of a connection, which learn from it whether they are its last.
    fn service(&self, place: &Place) -> Answering {
        Answering {
            router: TowerToHyperService::new(self.router.clone()),
            leave: place.leave(),
        }
    }
}

/// Clients come and go; it is no fault of ours. One that had to be cut off is counted.
fn finish(ended: Result<(), hyper::Error>, metrics: &HttpMetrics) {
    let Err(error) = ended else { return };
    let cause = error
        .source()
        .and_then(|cause| cause.downcast_ref::<std::io::Error>());
    if cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::TimedOut) {
        metrics.cut();
        tracing::info!("a connection was cut: its client took nothing of its reply for too long");
    } else {
        tracing::debug!("a connection ended: {error}");
    }
}
