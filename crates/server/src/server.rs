//! The server: accepts connections, drains, ends.

use crate::app::App;
use crate::config::ServerConfig;
use crate::model::ServedModel;
use crate::traces::Exporter;
use crate::watchdog::Watchdog;
use paceline::Handle;
use serde::Serialize;
use tokio::net::TcpListener;

/// A line of the table of what is on and off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Feature {
    /// Name in the table at the start and in `/v1/engine`.
    pub name: String,
    /// What it is set to.
    pub state: String,
    /// Why it is in this state: the flag, or what the model has.
    pub reason: String,
}

/// Why a server ended other than by being drained.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The listener cannot be used.
    #[error("cannot accept connections: {0}")]
    Listener(std::io::Error),
    /// The thread that watches the engine cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// There is no way to the collector of spans.
    #[error("spans cannot be sent: {0}")]
    Traces(paceline_client::ClientError),
    /// An option outside its bounds.
    #[error("`{option}` is {value}; it must be {bound}")]
    Option {
        /// Name of the option, as flags spell it.
        option: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        bound: &'static str,
    },
    /// The engine failed.
    #[error("the engine has failed: {0}")]
    Engine(String),
}

/// An engine and a model, ready to be served.
pub struct Server {
    /// Limits, keys, times.
    pub config: ServerConfig,
    /// Tokenizer, template and names of the model.
    pub model: ServedModel,
    /// The engine that runs it.
    pub engine: Handle,
    /// What is on and off, and why.
    pub features: Vec<Feature>,
}

impl Server {
    /// Answers until `drain` is ready and what ran by then has ended, or until the engine fails.
    pub async fn serve(
        self,
        listener: TcpListener,
        drain: impl Future<Output = ()>,
    ) -> Result<(), ServeError> {
        let traces = self.config.traces.as_ref().map(Exporter::start).transpose();
        let traces = traces.map_err(ServeError::Traces)?;
        let app = App::new(self.config, self.model, self.engine, self.features, traces);
        app.grammars.warm();
        let watchdog = app.config.watchdog_timeout.map(|patience| {
            Watchdog::start(app.engine.clone(), &app.lifecycle, patience).map_err(ServeError::Thread)
        });
        let _watchdog = watchdog.transpose()?;
        let result = crate::connections::serve(app.clone(), listener, drain).await;
        if let Some(traces) = &app.traces {
            traces.close().await;
        }
        result
    }
}
