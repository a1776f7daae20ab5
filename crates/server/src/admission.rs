//! Which requests may generate now: limits over all clients and per key, in continuations, which is what the engine works on.

use crate::config::ServerConfig;
use crate::error::{ApiError, ErrorKind};
use crate::lifecycle::{Lifecycle, Phase};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// When to look for another server, or for this one after its restart.
const RESTART: Duration = Duration::from_secs(5);

/// Most continuations at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) total: usize,
    pub(crate) per_key: usize,
}

/// Counts continuations against their limits.
pub(crate) struct Admission {
    lifecycle: Arc<Lifecycle>,
    limits: Limits,
    running: AtomicUsize,
    /// Of these, those of each key, in the order of the keys.
    by_key: Vec<AtomicUsize>,
}

/// The right to run a request, with its continuations; it ends when this is dropped.
pub(crate) struct Permit {
    admission: Arc<Admission>,
    key: Option<usize>,
    /// Continuations it stands for.
    count: usize,
}

impl Limits {
    /// What was configured, of an engine that takes `capacity` continuations. Where there are several keys, one of them
    /// cannot fill the queue alone unless that was asked for.
    pub(crate) fn new(config: &ServerConfig, capacity: usize) -> Self {
        let share = match config.api_keys.len() {
            0 | 1 => capacity,
            _ => capacity.div_ceil(2),
        };
        let total = config.max_concurrent_requests.unwrap_or(capacity);
        Self {
            total: total.min(capacity),
            per_key: config.max_requests_per_key.unwrap_or(share).min(capacity),
        }
    }
}

impl Admission {
    pub(crate) fn new(lifecycle: Arc<Lifecycle>, limits: Limits, keys: usize) -> Self {
        Self {
            lifecycle,
            limits,
            running: AtomicUsize::new(0),
            by_key: (0..keys).map(|_| AtomicUsize::new(0)).collect(),
        }
    }

    /// Whether there is any point in reading a request that wants to generate. It reserves nothing.
    pub(crate) fn expect_room(&self) -> Result<(), ApiError> {
        self.expect_serving()?;
        let (running, limit) = (self.running.load(Ordering::Acquire), self.limits.total);
        if running >= limit {
            return Err(full(running, limit));
        }
        Ok(())
    }

    fn expect_serving(&self) -> Result<(), ApiError> {
        match self.lifecycle.phase() {
            Phase::Serving => Ok(()),
            Phase::Draining => Err(going_down()),
            Phase::Failed(reason) => {
                let message = format!("the engine has stopped: {reason}");
                Err(ApiError::new(ErrorKind::Unavailable, message))
            }
        }
    }

    /// Lets a request in, or says why not and when to try again. It counts as one continuation until it is known how
    /// many it has.
    pub(crate) fn admit(self: &Arc<Self>, key: Option<usize>) -> Result<Permit, ApiError> {
        self.expect_serving()?;
        self.lifecycle.enter();
        let mut permit = Permit {
            admission: Arc::clone(self),
            key: key.filter(|key| *key < self.by_key.len()),
            count: 0,
        };
        permit.grow(1)?;
        Ok(permit)
    }
}

impl Permit {
    /// Most continuations that a request of this key can have at a time.
    pub(crate) fn most(&self) -> usize {
        let Limits { total, per_key } = self.admission.limits;
        match self.key {
            Some(_) => total.min(per_key),
            None => total,
        }
    }

    /// Counts the request as `n` continuations of each of its prompts. What could never be let in is refused for good,
    /// what cannot be let in now until later.
    pub(crate) fn count(&mut self, prompts: usize, n: usize) -> Result<(), ApiError> {
        let (count, most) = (prompts.saturating_mul(n), self.most());
        if count > most {
            let param = if n > most { "n" } else { "prompt" };
            let message = format!(
                "`{param}`: the request has {count} continuations, its prompts times `n`; at most {most} can run or wait"
            );
            return Err(ApiError::field(param, message));
        }
        self.grow(count.saturating_sub(self.count))
    }

    /// Takes `more` continuations, or none if a limit is in the way.
    fn grow(&mut self, more: usize) -> Result<(), ApiError> {
        let Limits { total, per_key } = self.admission.limits;
        take(&self.admission.running, more, total).map_err(|running| full(running, total))?;
        let own = self
            .key
            .map(|key| take(&self.admission.by_key[key], more, per_key));
        if let Some(Err(running)) = own {
            self.admission.running.fetch_sub(more, Ordering::AcqRel);
            return Err(busy(&format!(
                "{running} continuations of this API key are running or waiting; the limit is {per_key}"
            )));
        }
        self.count += more;
        Ok(())
    }
}

/// Adds to a count unless it would pass its limit; returns what it was.
fn take(count: &AtomicUsize, more: usize, limit: usize) -> Result<usize, usize> {
    count.fetch_update(Ordering::AcqRel, Ordering::Acquire, |running| {
        running.checked_add(more).filter(|sum| *sum <= limit)
    })
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.admission.running.fetch_sub(self.count, Ordering::AcqRel);
        if let Some(key) = self.key {
            self.admission.by_key[key].fetch_sub(self.count, Ordering::AcqRel);
        }
        self.admission.lifecycle.leave();
    }
}

/// The refusal of a server that is going down.
pub(crate) fn going_down() -> ApiError {
    ApiError {
        retry_after: Some(RESTART),
        ..ApiError::new(
            ErrorKind::Unavailable,
            "the server is going down and takes no new requests",
        )
    }
}

fn full(running: usize, limit: usize) -> ApiError {
    busy(&format!(
        "{running} continuations are running or waiting; the limit is {limit}"
    ))
}

fn busy(message: &str) -> ApiError {
    ApiError {
        code: Some("rate_limit_exceeded"),
        ..ApiError::new(ErrorKind::Busy, format!("{message}; try again later"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(total: usize, per_key: usize) -> Arc<Admission> {
        let limits = Limits { total, per_key };
        Arc::new(Admission::new(Arc::new(Lifecycle::new()), limits, 2))
    }

    fn kind<T>(result: Result<T, ApiError>) -> Option<ErrorKind> {
        result.err().map(|error| error.kind)
    }

    #[test]
    fn limits_hold_and_are_given_back() {
        let admission = admission(2, 2);
        let first = admission.admit(None).ok();
        assert!(admission.expect_room().is_ok());
        let second = admission.admit(None).ok();
        assert!(admission.expect_room().is_err());
        assert_eq!(kind(admission.admit(None)), Some(ErrorKind::Busy));
        drop(first);
        assert!(admission.admit(None).is_ok());
        drop(second);
        assert_eq!(admission.lifecycle.active(), 0);
        assert_eq!(admission.running.load(Ordering::Acquire), 0);
    }

    #[test]
    fn continuations_count_and_not_requests() {
        let admission = admission(10, 6);
        let mut first = admission.admit(Some(0)).unwrap();
        assert_eq!(first.count(3, 2), Ok(()));
        // The key has no more, the server four.
        assert_eq!(kind(admission.admit(Some(0))), Some(ErrorKind::Busy));
        let mut second = admission.admit(Some(1)).unwrap();
        assert_eq!(kind(second.count(1, 5)), Some(ErrorKind::Busy));
        // A refusal leaves everything as it was.
        assert_eq!(second.count(4, 1), Ok(()));
        assert_eq!(kind(admission.admit(Some(1))), Some(ErrorKind::Busy));
        drop((first, second));
        assert_eq!(admission.running.load(Ordering::Acquire), 0);
        assert!(
            admission
                .by_key
                .iter()
                .all(|count| count.load(Ordering::Acquire) == 0)
        );
    }

    #[test]
    fn what_can_never_be_let_in_is_not_told_to_come_back() {
        let admission = admission(10, 6);
        let mut permit = admission.admit(Some(0)).unwrap();
        for (prompts, n, param) in [
            (7, 1, "prompt"),
            (1, 7, "n"),
            (4, 2, "prompt"),
            (usize::MAX, 2, "prompt"),
        ] {
            let refused = permit.count(prompts, n).unwrap_err();
            assert_eq!(
                (refused.kind, refused.param.as_deref()),
                (ErrorKind::Invalid, Some(param))
            );
            assert_eq!(refused.retry_after, None);
        }
        drop(permit);
        // Without a key, what all may have is the bound.
        let mut permit = admission.admit(None).unwrap();
        assert_eq!((permit.count(10, 1), permit.most()), (Ok(()), 10));
    }

    #[test]
    fn several_keys_share_the_queue_unless_told_otherwise() {
        let limits = |keys: usize, per_key| {
            let config = ServerConfig {
                api_keys: vec![String::new(); keys],
                max_requests_per_key: per_key,
                ..ServerConfig::default()
            };
            let Limits { total, per_key } = Limits::new(&config, 9);
            (total, per_key)
        };
        assert_eq!(
            [limits(0, None), limits(1, None), limits(2, None)],
            [(9, 9), (9, 9), (9, 5)]
        );
        assert_eq!([limits(2, Some(7)), limits(2, Some(70))], [(9, 7), (9, 9)]);
    }

    #[test]
    fn one_key_does_not_use_up_the_share_of_another() {
        let admission = admission(9, 1);
        let first = admission.admit(Some(0)).ok();
        assert!(admission.admit(Some(0)).is_err());
        assert!(admission.admit(Some(1)).is_ok());
        drop(first);
        assert!(admission.admit(Some(0)).is_ok());
    }

    #[test]
    fn a_draining_or_failed_server_takes_nothing() {
        let admission = admission(9, 9);
        admission.lifecycle.drain();
        let error = admission
            .admit(None)
            .err()
            .map(|e| (e.kind, e.retry_after.is_some()));
        assert_eq!(error, Some((ErrorKind::Unavailable, true)));
        admission.lifecycle.fail("smoke");
        let message = admission.admit(None).err().map(|e| e.message).unwrap_or_default();
        assert!(message.contains("smoke"));
    }
}
