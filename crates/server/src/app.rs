//! What handlers share.

use crate::active::ActiveRequests;
use crate::admission::{Admission, Limits, Permit};
use crate::auth::Keys;
use crate::body::{Body, BodyBudget};
use crate::config::ServerConfig;
use crate::constraint::Grammars;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::{GenerationTask, Outputs};
use crate::interface::Understood;
use crate::lifecycle::Lifecycle;
use crate::metrics::Metrics;
use crate::model::ServedModel;
use crate::prefix_salts::PrefixSalts;
use crate::preparation::{Preparation, Preparing};
use crate::reply::ReplyBudget;
use crate::request_log::RequestUsage;
use crate::server::Feature;
use crate::traces::Exporter;
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
    pub(crate) bodies: BodyBudget,
    pub(crate) salts: PrefixSalts,
    preparation: Preparation,
    pub(crate) replies: ReplyBudget,
    pub(crate) active: Arc<ActiveRequests>,
    pub(crate) traces: Option<Exporter>,
    admission: Arc<Admission>,
}

/// The client of a request. The middleware puts it into the extensions of every request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// Which of the configured keys it came with.
    pub(crate) key: Option<usize>,
    /// What the request takes, for its line in the log.
    pub(crate) usage: Arc<RequestUsage>,
    /// The request's name, which its reply has as `x-request-id`.
    pub(crate) request_id: Arc<str>,
    /// Where it was sent to.
    pub(crate) path: Arc<str>,
}

impl Caller {
    /// The engine's number for this key; 0 where there are no keys.
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

/// A request that has been understood and counted.
pub(crate) struct Admitted<W> {
    pub(crate) understood: Understood<W>,
    /// The names of unknown fields.
    pub(crate) unknown: Option<String>,
    permit: Permit,
}

impl App {
    pub(crate) fn new(
        config: ServerConfig,
        model: ServedModel,
        engine: Handle,
        features: Vec<Feature>,
        traces: Option<Exporter>,
    ) -> Self {
        let lifecycle = Arc::new(Lifecycle::new());
        let keys = config.api_keys.len();
        let capacity = engine.limits().max_waiting + engine.memory().slots;
        let limits = Limits::new(&config, capacity);
        let admission = Admission::new(Arc::clone(&lifecycle), limits, keys);
        let model = Arc::new(model);
        let grammars = Grammars::new(Arc::clone(&model), engine.end_tokens(), config.api_keys.len());
        Self(Arc::new(Shared {
            keys: Keys::new(&config.api_keys),
            metrics: Metrics::new(&model, engine.clone(), Arc::clone(&grammars)),
            bodies: BodyBudget::new(config.max_pending_body_bytes, config.max_body_bytes),
            salts: PrefixSalts::new(config.prefix_cache_scope),
            preparation: Preparation::new(keys),
            replies: ReplyBudget::new(config.max_reply_bytes),
            active: Arc::default(),
            traces,
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

    /// Lets a request in and finds out what it asks for. Its continuations count from here on.
    pub(crate) async fn admit<W: Send + 'static>(
        &self,
        caller: &Caller,
        body: Body,
        work: fn(&Preparing<'_>, &mut Fields<'_>) -> Result<Understood<W>, ApiError>,
    ) -> Result<Admitted<W>, ApiError> {
        let mut permit = self.permit(caller)?;
        let (understood, unknown) = self.understand(caller, body, work).await?;
        let (prompts, n) = (understood.task.prompts.len(), understood.task.n());
        // The engine refuses a number that is more than it gives to any request.
        if n <= self.engine.limits().max_choices {
            permit.count(prompts, n)?;
        }
        Ok(Admitted {
            understood,
            unknown,
            permit,
        })
    }

    /// Starts what was asked for, with its grammar if it has one.
    pub(crate) async fn run<W>(
        &self,
        caller: &Caller,
        admitted: Admitted<W>,
        rename: &[(&str, &str)],
    ) -> Result<(Outputs, W), ApiError> {
        let Admitted {
            understood, permit, ..
        } = admitted;
        let mut task = understood.task;
        if let Some(wanted) = understood.wanted {
            task.request.constraint = Some(self.grammars.constraint(wanted, caller.key).await?);
        }
        task.allow(self.engine.vocabulary())?;
        let outputs = self.generate(caller, (task, permit), rename)?;
        Ok((outputs, understood.writer))
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
        (mut task, permit): (GenerationTask, Permit),
        rename: &[(&str, &str)],
    ) -> Result<Outputs, ApiError> {
        let request = &mut task.request;
        request.priority = self.priority(caller, request.priority)?;
        request.deadline = self.deadline(request.deadline);
        request.tenant = caller.tenant();
        request.salt = self.salts.salt(request.tenant, task.cache_salt.as_deref());
        let means = crate::generation::Means {
            engine: &self.engine,
            tokenizer: self.model.tokenizer.as_ref(),
            lifecycle: &self.lifecycle,
            metrics: &self.metrics.requests,
            usage: &caller.usage,
        };
        let listed = self.active.enter(caller);
        Outputs::start(&means, &task, (permit, listed)).map_err(|error| {
            if let RequestError::Stopped(reason) = &error {
                self.lifecycle.fail(reason);
            }
            ApiError::refused(error, rename)
        })
    }

    /// Takes a body apart on a thread that serves no connections: templates and tokenizers may take long. What came of
    /// it is returned with the names of unknown fields.
    pub(crate) async fn understand<T: Send + 'static>(
        &self,
        caller: &Caller,
        body: Body,
        work: impl FnOnce(&Preparing<'_>, &mut Fields<'_>) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(T, Option<String>), ApiError> {
        let strict = self.config.strict_requests;
        let work = move |model: &Preparing<'_>, body: &Body| {
            let mut fields = Fields::of(body)?;
            let understood = work(model, &mut fields)?;
            Ok((understood, fields.finish(strict)?))
        };
        let request = (caller.tenant(), body);
        let (understood, unknown) = self.preparation.run(&self.model, request, work).await?;
        if let Some(fields) = &unknown {
            tracing::warn!(
                fields,
                "a request has fields that are unknown here; they were ignored"
            );
        }
        Ok((understood, unknown))
    }
}
