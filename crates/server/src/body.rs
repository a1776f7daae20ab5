//! The body of a request, read within its limits.

use crate::app::App;
use crate::error::{ApiError, ErrorKind};
use axum::extract::{FromRequest, Request};
use axum::http::header;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Longest part of a client's text that an error quotes.
const QUOTED: usize = 300;

/// Bytes of every body that count towards nothing, so that small requests are taken however many large ones there are.
/// The number of connections bounds them.
const FREE: usize = 64 << 10;

/// The bytes of a body, all of them. Their share of what all bodies may take goes with them.
pub(crate) struct Body {
    bytes: Bytes,
    _share: Option<Share>,
}

/// What the bodies of all requests may take together, from their first byte until they have been understood.
pub(crate) struct BodyBudget {
    free: Arc<Semaphore>,
    limit: usize,
}

/// What one body takes of it.
struct Share {
    free: Arc<Semaphore>,
    limit: usize,
    held: Option<OwnedSemaphorePermit>,
}

impl BodyBudget {
    /// `limit` bytes for all, and at least one body of the largest size.
    pub(crate) fn new(limit: usize, largest: usize) -> Self {
        let limit = limit.max(largest).min(Semaphore::MAX_PERMITS);
        Self {
            free: Arc::new(Semaphore::new(limit)),
            limit,
        }
    }

    fn share(&self) -> Share {
        Share {
            free: Arc::clone(&self.free),
            limit: self.limit,
            held: None,
        }
    }
}

impl Share {
    /// Makes room for a body of this many bytes, unless others have taken too much.
    fn cover(&mut self, bytes: usize) -> Result<(), ApiError> {
        let held = self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = bytes.saturating_sub(FREE).saturating_sub(held);
        let missing = u32::try_from(missing).unwrap_or(u32::MAX);
        let Ok(more) = Arc::clone(&self.free).try_acquire_many_owned(missing) else {
            let message = format!(
                "the bodies of other requests take up the {} bytes that there are for them; try again later",
                self.limit
            );
            return Err(ApiError::new(ErrorKind::Unavailable, message));
        };
        match &mut self.held {
            Some(held) => held.merge(more),
            None => self.held = Some(more),
        }
        Ok(())
    }
}

impl FromRequest<App> for Body {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        if request.uri().path().starts_with("/v1/") {
            app.expect_room()?;
        }
        let limit = app.config.max_body_bytes;
        let announced = request.headers().get(header::CONTENT_LENGTH);
        let announced = announced.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if announced.is_some_and(|length| length > limit as u64) {
            return Err(too_large(limit));
        }
        let reading = Self::collect(request.into_body(), limit, app.bodies.share());
        let read = tokio::time::timeout(app.config.body_timeout, reading).await;
        read.unwrap_or_else(|_| {
            let seconds = app.config.body_timeout.as_secs();
            let message = format!("the body did not arrive within {seconds} s");
            Err(ApiError::new(ErrorKind::Timeout, message))
        })
    }
}

fn too_large(limit: usize) -> ApiError {
    let message = format!("the body is too large; at most {limit} bytes are taken");
    ApiError::new(ErrorKind::TooLarge, message)
}

impl Body {
    /// Reads a body of at most `limit` bytes, as far as its share can cover it.
    async fn collect(mut body: axum::body::Body, limit: usize, mut share: Share) -> Result<Self, ApiError> {
        let mut bytes = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                let message = format!("the body cannot be read: {error}");
                ApiError::new(ErrorKind::Invalid, message)
            })?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            let length = bytes.len() + data.len();
            if length > limit {
                return Err(too_large(limit));
            }
            share.cover(length)?;
            bytes.extend_from_slice(&data);
        }
        Ok(Self {
            bytes: bytes.freeze(),
            _share: Some(share),
        })
    }

    /// A body that takes no share.
    #[cfg(test)]
    pub(crate) fn of(bytes: Vec<u8>) -> Self {
        Self {
            bytes: bytes.into(),
            _share: None,
        }
    }

    /// Bytes of it.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Keeps the start of a text that may quote the client.
pub(crate) fn shorten(text: &str) -> String {
    if text.chars().nth(QUOTED).is_none() {
        return text.to_owned();
    }
    let start: String = text.chars().take(QUOTED).collect();
    format!("{start}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_bodies_share_a_budget_and_small_ones_are_free() {
        let budget = BodyBudget::new(1000, 100);
        let mut first = budget.share();
        first.cover(FREE + 400).unwrap();
        first.cover(FREE + 800).unwrap();
        let mut second = budget.share();
        assert_eq!(second.cover(FREE), Ok(()));
        let refused = second.cover(FREE + 300).unwrap_err();
        assert_eq!(
            (refused.kind, refused.retry_after.is_some()),
            (ErrorKind::Unavailable, true)
        );
        drop(first);
        assert_eq!(second.cover(FREE + 1000), Ok(()));
        assert_eq!(BodyBudget::new(0, 100).limit, 100);
    }
}
