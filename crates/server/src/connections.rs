//! The accept loop and its end.

use crate::app::App;
use crate::metrics::{HttpMetrics, OpenConnection};
use crate::routes;
use crate::server::ServeError;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;

/// Rest after an accept that failed, such as for want of file descriptors.
const REST: Duration = Duration::from_millis(50);

/// Time for the last bytes of replies to be written after generations have ended.
const FLUSH: Duration = Duration::from_secs(2);

/// Time for an encrypted connection to be set up.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Connections of one server.
struct Connections {
    http: http1::Builder,
    router: axum::Router,
    tls: Option<TlsAcceptor>,
    places: Arc<Semaphore>,
    open: GracefulShutdown,
    metrics: HttpMetrics,
}

/// Held by a connection while it is open.
struct Place {
    _permit: OwnedSemaphorePermit,
    _open: OpenConnection,
}

/// Serves until drained or failed.
pub(crate) async fn serve(
    app: App,
    listener: TcpListener,
    drain: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let connections = Connections::new(&app)?;
    let ending = tokio::select! {
        error = connections.accept(&listener) => Err(error),
        ending = until_over(&app, drain) => ending,
    };
    drop(listener);
    // What is idle closes now; what writes its last bytes gets a moment.
    let _ = tokio::time::timeout(FLUSH, connections.open.shutdown()).await;
    ending
}

/// Waits for the order to drain and carries it out, or for a failure.
async fn until_over(app: &App, drain: impl Future<Output = ()>) -> Result<(), ServeError> {
    let lifecycle = &app.lifecycle;
    let drained = async {
        drain.await;
        lifecycle.drain();
        let (running, wait) = (lifecycle.active(), app.config.drain_timeout);
        tracing::info!(running, ?wait, "draining");
        if tokio::time::timeout(wait, lifecycle.idle()).await.is_err() {
            tracing::warn!(
                running = lifecycle.active(),
                "the time to drain is over; ending what runs"
            );
            lifecycle.abort();
            let _ = tokio::time::timeout(FLUSH, lifecycle.idle()).await;
        }
    };
    tokio::select! {
        () = drained => Ok(()),
        reason = lifecycle.failed() => {
            // Those who wait are told why, whether or not the engine can still tell them.
            lifecycle.abort();
            let _ = tokio::time::timeout(FLUSH, lifecycle.idle()).await;
            Err(ServeError::Engine(reason))
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
            places: Arc::new(Semaphore::new(
                config.max_connections.clamp(1, Semaphore::MAX_PERMITS),
            )),
            open: GracefulShutdown::new(),
            metrics: app.metrics.http.clone(),
        })
    }

    /// Accepts connections for ever; one more than there are places waits in the system's queue.
    async fn accept(&self, listener: &TcpListener) -> ServeError {
        loop {
            let Ok(permit) = Arc::clone(&self.places).acquire_owned().await else {
                return ServeError::Listener(std::io::ErrorKind::BrokenPipe.into());
            };
            match listener.accept().await {
                Ok((socket, _)) => {
                    // Small frames of a stream must not wait for each other.
                    let _ = socket.set_nodelay(true);
                    let place = Place {
                        _permit: permit,
                        _open: self.metrics.connection(),
                    };
                    self.start(socket, place);
                }
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    tokio::time::sleep(REST).await;
                }
            }
        }
    }

    fn start(&self, socket: tokio::net::TcpStream, place: Place) {
        let Some(tls) = self.tls.clone() else {
            self.spawn(socket, place);
            return;
        };
        let (http, router) = (self.http.clone(), self.router.clone());
        let watcher = self.open.watcher();
        tokio::spawn(async move {
            match tokio::time::timeout(HANDSHAKE, tls.accept(socket)).await {
                Ok(Ok(socket)) => {
                    let service = TowerToHyperService::new(router);
                    let connection = http.serve_connection(TokioIo::new(socket), service);
                    finish(watcher.watch(connection).await);
                }
                Ok(Err(error)) => tracing::debug!("no encrypted connection: {error}"),
                Err(_) => tracing::debug!("an encrypted connection took too long to set up"),
            }
            drop(place);
        });
    }

    fn spawn(&self, socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, place: Place) {
        let service = TowerToHyperService::new(self.router.clone());
        let connection = self.http.serve_connection(TokioIo::new(socket), service);
        let connection = self.open.watch(connection);
        tokio::spawn(async move {
            finish(connection.await);
            drop(place);
        });
    }
}

fn finish(ended: Result<(), hyper::Error>) {
    if let Err(error) = ended {
        // Clients come and go; it is no fault of ours.
        tracing::debug!("a connection ended: {error}");
    }
}
