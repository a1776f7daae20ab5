//! Requests that run or wait: which there are, how far they have come, and how to end one.
//!
//! A caller sees the requests of its own key, by the ids that it gave them or was told, and of others only how many there
//! are, which the metrics tell anyway. There is no view over all keys: it would be one more secret to lose, and what an operator
//! needs is in the log. Without keys all callers are one.

use crate::app::{App, Caller};
use crate::error::{ApiError, ErrorKind};
use axum::extract::{Path, State as Of};
use axum::{Extension, Json};
use paceline::{Canceller, RequestStatus};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the engine has to say where its requests stand. It does so between two steps.
const PATIENCE: Duration = Duration::from_secs(10);

/// All requests that have not been answered yet.
#[derive(Default)]
pub(crate) struct ActiveRequests(Mutex<State>);

#[derive(Default)]
struct State {
    /// In the order of their arrival.
    requests: BTreeMap<u64, Active>,
    next: u64,
}

struct Active {
    caller: Caller,
    started: Instant,
    /// What the engine works on for it: the names of continuations of each prompt.
    parts: Vec<(Range<u64>, Canceller)>,
}

/// A request's place among the active ones; dropping it ends that.
pub(crate) struct Listed {
    all: Arc<ActiveRequests>,
    key: u64,
}

/// A request as its caller sees it.
#[derive(Debug, Serialize)]
struct RequestReply {
    id: String,
    path: String,
    state: &'static str,
    age_ms: f64,
    first_token_ms: Option<f64>,
    choices: usize,
    prompt_tokens: usize,
    prompt_tokens_done: usize,
    generated_tokens: usize,
    max_tokens: usize,
}

/// `GET /v1/engine/requests`.
#[derive(Debug, Serialize)]
pub(crate) struct RequestList {
    requests: Vec<RequestReply>,
    /// Those of other keys.
    others: Others,
}

#[derive(Debug, Default, Serialize)]
struct Others {
    running: usize,
    waiting: usize,
}

/// `DELETE /v1/engine/requests/ID`.
#[derive(Debug, Serialize)]
pub(crate) struct Cancelled {
    id: String,
    cancelled: usize,
}

impl ActiveRequests {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request has come in.
    pub(crate) fn enter(self: &Arc<Self>, caller: &Caller) -> Listed {
        let mut state = self.lock();
        let key = state.next;
        state.next += 1;
        let active = Active {
            caller: caller.clone(),
            started: Instant::now(),
            parts: Vec::new(),
        };
        state.requests.insert(key, active);
        Listed {
            all: Arc::clone(self),
            key,
        }
    }

    /// The requests of a tenant that the engine works on.
    fn list(&self, tenant: u32, statuses: &[RequestStatus]) -> RequestList {
        let state = self.lock();
        let own = state
            .requests
            .values()
            .filter(|active| active.caller.tenant() == tenant);
        let mut others = Others::default();
        for status in statuses.iter().filter(|status| status.tenant != tenant) {
            others.running += usize::from(status.running);
            others.waiting += usize::from(!status.running);
        }
        RequestList {
            requests: own.filter_map(|active| active.reply(statuses)).collect(),
            others,
        }
    }

    /// Ends the requests of a tenant with this id; how many there were.
    fn cancel(&self, tenant: u32, id: &str) -> usize {
        let state = self.lock();
        let found = state.requests.values();
        let found =
            found.filter(|active| active.caller.tenant() == tenant && *active.caller.request_id == *id);
        found.map(Active::cancel).count()
    }
}

impl Active {
    /// Nothing if the engine has done its part.
    fn reply(&self, statuses: &[RequestStatus]) -> Option<RequestReply> {
        let caller = &self.caller;
        let mut reply = RequestReply {
            id: caller.request_id.to_string(),
            path: caller.path.to_string(),
            state: "waiting",
            age_ms: milliseconds(self.started.elapsed()),
            first_token_ms: caller.usage.first_token().map(milliseconds),
            choices: 0,
            prompt_tokens: 0,
            prompt_tokens_done: 0,
            generated_tokens: 0,
            max_tokens: 0,
        };
        let mut found = false;
        for (ids, _) in &self.parts {
            let choices = (ids.end - ids.start) as usize;
            reply.choices += choices;
            let own = |status: &&RequestStatus| ids.contains(&status.id.0);
            let mut first = true;
            for status in statuses.iter().filter(own) {
                found = true;
                if status.running {
                    reply.state = "running";
                }
                reply.generated_tokens += status.generated_tokens;
                if std::mem::take(&mut first) {
                    reply.max_tokens += status.max_tokens * choices;
                    reply.prompt_tokens += status.prompt_tokens;
                    reply.prompt_tokens_done += status.prompt_tokens_done;
                }
            }
        }
        found.then_some(reply)
    }

    fn cancel(&self) {
        self.parts.iter().for_each(|(_, canceller)| canceller.cancel());
    }
}

impl Listed {
    /// The engine works on this for the request.
    pub(crate) fn add(&self, ids: Range<u64>, canceller: Canceller) {
        if let Some(active) = self.all.lock().requests.get_mut(&self.key) {
            active.parts.push((ids, canceller));
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.all.lock().requests.remove(&self.key);
    }
}

fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// `GET /v1/engine/requests`.
pub(crate) async fn list(
    Of(app): Of<App>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<RequestList>, ApiError> {
    let statuses = tokio::time::timeout(PATIENCE, app.engine.statuses()).await;
    let statuses = statuses.ok().flatten().ok_or_else(|| {
        let message = "the engine does not say where its requests stand; /health has more";
        ApiError::new(ErrorKind::Unavailable, message)
    })?;
    Ok(Json(app.active.list(caller.tenant(), &statuses)))
}

/// `DELETE /v1/engine/requests/ID`.
pub(crate) async fn cancel(
    Of(app): Of<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Cancelled>, ApiError> {
    match app.active.cancel(caller.tenant(), &id) {
        0 => {
            let shown = crate::body::shorten(&id);
            Err(ApiError {
                code: Some("request_not_found"),
                ..ApiError::new(
                    ErrorKind::NotFound,
                    format!("there is no request `{shown}` of yours"),
                )
            })
        }
        cancelled => Ok(Json(Cancelled { id, cancelled })),
    }
}
