//! Who may generate now: limits over all clients and per key.

use crate::error::{ApiError, ErrorKind};
use crate::lifecycle::{Lifecycle, Phase};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// When to look for another server, or for this one after its restart.
const RESTART: Duration = Duration::from_secs(5);

/// Counts generations against their limits.
pub(crate) struct Admission {
    lifecycle: Arc<Lifecycle>,
    total: Option<usize>,
    per_key: Option<usize>,
    /// One per key, in the order of the keys.
    by_key: Vec<AtomicUsize>,
}

/// The right to run one generation; it ends when this is dropped.
pub(crate) struct Permit {
    admission: Arc<Admission>,
    key: Option<usize>,
}

impl Admission {
    pub(crate) fn new(
        lifecycle: Arc<Lifecycle>,
        (total, per_key): (Option<usize>, Option<usize>),
        keys: usize,
    ) -> Self {
        Self {
            lifecycle,
            total,
            per_key,
            by_key: (0..keys).map(|_| AtomicUsize::new(0)).collect(),
        }
    }

    /// Whether there is any point in reading a request that wants to generate. It reserves nothing.
    pub(crate) fn expect_room(&self) -> Result<(), ApiError> {
        self.expect_serving()?;
        let running = self.lifecycle.active();
        match self.total.filter(|limit| running >= *limit) {
            Some(limit) => Err(full(running, limit)),
            None => Ok(()),
        }
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

    /// Lets a request in, or says why not and when to try again.
    pub(crate) fn admit(self: &Arc<Self>, key: Option<usize>) -> Result<Permit, ApiError> {
        self.expect_serving()?;
        let before = self.lifecycle.enter();
        // From here on the permit takes back what was counted.
        let permit = Permit {
            admission: Arc::clone(self),
            key: key.filter(|key| *key < self.by_key.len()),
        };
        let of_key = permit
            .key
            .map(|key| self.by_key[key].fetch_add(1, Ordering::AcqRel));
        if let Some(limit) = self.total.filter(|limit| before >= *limit) {
            return Err(full(before, limit));
        }
        if let (Some(limit), Some(running)) = (self.per_key, of_key)
            && running >= limit
        {
            return Err(busy(&format!(
                "{running} requests with this API key are running; the limit is {limit}"
            )));
        }
        Ok(permit)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.admission.by_key[key].fetch_sub(1, Ordering::AcqRel);
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
    busy(&format!("{running} requests are running; the limit is {limit}"))
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

    fn admission(total: Option<usize>, per_key: Option<usize>) -> Arc<Admission> {
        Arc::new(Admission::new(Arc::new(Lifecycle::new()), (total, per_key), 2))
    }

    #[test]
    fn limits_hold_and_are_given_back() {
        let admission = admission(Some(2), None);
        let first = admission.admit(None).ok();
        assert!(admission.expect_room().is_ok());
        let second = admission.admit(None).ok();
        assert!(admission.expect_room().is_err());
        assert_eq!(admission.admit(None).err().map(|e| e.kind), Some(ErrorKind::Busy));
        drop(first);
        assert!(admission.admit(None).is_ok());
        drop(second);
        assert_eq!(admission.lifecycle.active(), 0);
    }

    #[test]
    fn one_key_does_not_use_up_the_share_of_another() {
        let admission = admission(None, Some(1));
        let first = admission.admit(Some(0)).ok();
        assert!(admission.admit(Some(0)).is_err());
        assert!(admission.admit(Some(1)).is_ok());
        drop(first);
        assert!(admission.admit(Some(0)).is_ok());
    }

    #[test]
    fn a_draining_or_failed_server_takes_nothing() {
        let admission = admission(None, None);
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
