//! What handlers share.

use crate::admission::{Admission, Permit};
use crate::auth::Keys;
use crate::config::ServerConfig;
use crate::constraint::{Grammars, Wanted};
use crate::error::ApiError;
use crate::generation::{GenerationTask, Outputs};
use crate::lifecycle::Lifecycle;
use crate::metrics::Metrics;
use crate::model::ServedModel;
use crate::server::Feature;
use paceline::{Handle, MAX_DEADLINE, RequestError};
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The server as its handlers see it.
#[derive(Clone)]
pub(crate) struct App(Arc<Shared>);

/// See [`App`].
pub(crate) struct Shared {
    pub(crate) config: ServerConfig,
    pub(crate) model: Arc<ServedModel>,
    pub(crate) engine: Handle,
    pub(crate) features: Vec<Feature>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) keys: Keys,
    pub(crate) started: Instant,
    pub(crate) metrics: Metrics,
    pub(crate) grammars: Arc<Grammars>,
    admission: Arc<Admission>,
}

/// Who asks. The middleware puts it into the extensions of every request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// Name of the request, the client's or ours.
    #[expect(dead_code, reason = "for what is logged about generations")]
    pub(crate) request_id: String,
    /// Which of the configured keys it came with.
    pub(crate) key: Option<usize>,
}

impl Caller {
    /// The engine's number for whoever has this key; 0 where there are no keys.
    pub(crate) fn tenant(&self) -> u32 {
        self.key.map_or(0, |key| key as u32 + 1)
    }
}

impl Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

/// A request that has been understood.
pub(crate) struct Checked<W> {
    pub(crate) task: GenerationTask,
    /// What the text must follow.
    pub(crate) wanted: Option<Wanted>,
    /// Who puts the reply into the form of the interface.
    pub(crate) writer: W,
    /// The reply is a stream.
    pub(crate) stream: bool,
}

impl App {
    pub(crate) fn new(
        config: ServerConfig,
        model: ServedModel,
        engine: Handle,
        features: Vec<Feature>,
    ) -> Self {
        let lifecycle = Arc::new(Lifecycle::new());
        let limits = (config.max_concurrent_requests, config.max_requests_per_key);
        let admission = Admission::new(Arc::clone(&lifecycle), limits, config.api_keys.len());
        let model = Arc::new(model);
        let grammars = Grammars::new(Arc::clone(&model), engine.end_tokens(), config.api_keys.len());
        Self(Arc::new(Shared {
            keys: Keys::new(&config.api_keys),
            metrics: Metrics::new(&model, engine.clone(), Arc::clone(&grammars)),
            config,
            model,
            grammars,
            engine,
            features,
            lifecycle,
            started: Instant::now(),
            admission: Arc::new(admission),
        }))
    }

    /// Refuses what cannot be let in anyway before it costs anything: reading, parsing, tokenizing.
    pub(crate) fn expect_room(&self) -> Result<(), ApiError> {
        self.admission.expect_room()
    }

    /// Starts what was asked for, with its grammar if it has one.
    pub(crate) async fn run<W>(
        &self,
        caller: &Caller,
        checked: Checked<W>,
        rename: &[(&str, &str)],
    ) -> Result<(Outputs, W), ApiError> {
        let mut task = checked.task;
        if let Some(wanted) = checked.wanted {
            task.constraint = Some(self.grammars.constraint(wanted, caller.key).await?);
        }
        let outputs = self.generate(caller, task, rename)?;
        Ok((outputs, checked.writer))
    }

    /// The right to run something for a caller, unless a limit is reached.
    pub(crate) fn permit(&self, caller: &Caller) -> Result<Permit, ApiError> {
        self.admission.admit(caller.key)
    }

    /// How long a request may take that asks for so long.
    pub(crate) fn deadline(&self, asked: Option<Duration>) -> Option<Duration> {
        let limit = self.config.request_timeout;
        let limit = limit.map(|limit| limit.min(MAX_DEADLINE));
        asked.into_iter().chain(limit).min()
    }

    /// The priority of a request that asks for this one, unless its key may not have it. 0 is what a request gets that
    /// does not ask.
    pub(crate) fn priority(&self, caller: &Caller, asked: i32) -> Result<i32, ApiError> {
        let key = caller.key.and_then(|key| self.config.api_keys.get(key));
        let own = key.and_then(|key| self.config.key_min_priority.get(key));
        let least = own.copied().unwrap_or(self.config.min_priority);
        match asked {
            0 => Ok(least.max(0)),
            asked if asked >= least => Ok(asked),
            asked => {
                let bound = format!("at least {least}, the first that this server grants the caller");
                Err(ApiError::bound("priority", &asked, &bound))
            }
        }
    }

    /// Starts a task for a caller, unless a limit is reached or something in it is out of bounds. `rename` gives the
    /// engine's names for fields and the interface's.
    fn generate(
        &self,
        caller: &Caller,
        mut task: GenerationTask,
        rename: &[(&str, &str)],
    ) -> Result<Outputs, ApiError> {
        task.priority = self.priority(caller, task.priority)?;
        let permit = self.permit(caller)?;
        task.deadline = self.deadline(task.deadline);
        task.tenant = caller.tenant();
        let means = crate::generation::Means {
            engine: &self.engine,
            tokenizer: self.model.tokenizer.as_ref(),
            lifecycle: &self.lifecycle,
            metrics: &self.metrics.requests,
        };
        Outputs::start(&means, &task, permit).map_err(|error| {
            if let RequestError::Stopped(reason) = &error {
                self.lifecycle.fail(reason);
            }
            ApiError::refused(error, rename)
        })
    }

    /// Runs work that may take long on a thread where nobody waits behind it: templates and tokenizers have no
    /// bound but the size of a request.
    pub(crate) async fn with_model<T: Send + 'static>(
        &self,
        work: impl FnOnce(&ServedModel) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let model = Arc::clone(&self.model);
        let done = tokio::task::spawn_blocking(move || work(&model)).await;
        done.unwrap_or_else(|error| {
            tracing::error!("a request could not be prepared: {error}");
            let kind = crate::error::ErrorKind::Internal;
            Err(ApiError::new(kind, "the request could not be prepared"))
        })
    }
}
