//! The body of every reply on its way out: cut into pieces, and counted while it waits for its reader.

use crate::error::{ApiError, ErrorKind};
use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

/// Largest piece handed to a connection. What it has not asked for yet stays here and counts.
const PIECE: usize = 64 << 10;

/// Bytes of whole replies that wait for their readers, over all connections. Streams do not count: they hold what their
/// request may generate at most, and a reader that takes nothing of it is cut.
#[derive(Clone, Debug)]
pub(crate) struct ReplyBudget(Arc<Budget>);

#[derive(Debug)]
struct Budget {
    limit: usize,
    waiting: AtomicUsize,
}

/// A part of the budget; it is given back when this is dropped.
pub(crate) struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

impl ReplyBudget {
    pub(crate) fn new(limit: usize) -> Self {
        let waiting = AtomicUsize::new(0);
        Self(Arc::new(Budget { limit, waiting }))
    }

    /// Room for a reply, unless too much waits already. A stream needs none.
    pub(crate) fn reserve(&self, body: &Body) -> Result<Option<Share>, ApiError> {
        let Some(bytes) = body.size_hint().exact() else {
            return Ok(None);
        };
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let budget = Arc::clone(&self.0);
        let before = budget.waiting.fetch_add(bytes, Ordering::AcqRel);
        // From here on the share takes back what was counted.
        let share = Share { budget, bytes };
        if before.saturating_add(bytes) > self.0.limit {
            let message = format!(
                "the reply has {bytes} bytes, and {before} bytes of replies wait for their readers; \
                 the limit for both is {} bytes",
                self.0.limit
            );
            return Err(ApiError::new(ErrorKind::Unavailable, message));
        }
        Ok(Some(share))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.waiting.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// Puts a reply on its way. `over` is told at the end whether all of it was taken.
pub(crate) fn send(
    body: Body,
    share: Option<Share>,
    over: impl FnOnce(bool) + Send + Unpin + 'static,
) -> Body {
    Body::new(Outgoing {
        body,
        rest: Bytes::new(),
        ended: false,
        over: Some(over),
        _share: share,
    })
}

struct Outgoing<F: FnOnce(bool)> {
    body: Body,
    /// What is left of a frame.
    rest: Bytes,
    ended: bool,
    over: Option<F>,
    _share: Option<Share>,
}

impl<F: FnOnce(bool) + Unpin> HttpBody for Outgoing<F> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            let frame = match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => frame,
                other => {
                    self.ended |= matches!(other, Poll::Ready(None));
                    return other;
                }
            };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(frame) => return Poll::Ready(Some(Ok(frame))),
            }
        }
        let size = self.rest.len().min(PIECE);
        let piece = self.rest.split_to(size);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, hint) = (self.rest.len() as u64, self.body.size_hint());
        let mut whole = SizeHint::new();
        whole.set_lower(hint.lower() + rest);
        if let Some(upper) = hint.upper() {
            whole.set_upper(upper + rest);
        }
        whole
    }
}

impl<F: FnOnce(bool)> Drop for Outgoing<F> {
    fn drop(&mut self) {
        let complete = self.ended || (self.rest.is_empty() && self.body.is_end_stream());
        if let Some(over) = self.over.take() {
            over(complete);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use std::sync::mpsc::{Receiver, channel};

    /// A reply on its way, and what its end will tell.
    fn sent(budget: &ReplyBudget, bytes: Vec<u8>) -> Result<(Body, Receiver<bool>), ApiError> {
        let (over, told) = channel();
        let body = Body::from(bytes);
        let share = budget.reserve(&body)?;
        Ok((
            send(body, share, move |complete| over.send(complete).unwrap()),
            told,
        ))
    }

    fn waiting(budget: &ReplyBudget) -> usize {
        budget.0.waiting.load(Ordering::Acquire)
    }

    #[tokio::test]
    async fn a_reply_goes_out_in_pieces_and_counts_until_the_last() {
        let budget = ReplyBudget::new(1 << 20);
        let bytes: Vec<u8> = (0..200_000_u32).map(|number| number as u8).collect();
        let (mut body, told) = sent(&budget, bytes.clone()).unwrap();
        assert_eq!(body.size_hint().exact(), Some(200_000));
        let mut taken = Vec::new();
        while !body.is_end_stream() {
            assert_eq!(waiting(&budget), 200_000);
            let piece = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert!(piece.len() <= PIECE);
            taken.extend_from_slice(&piece);
        }
        assert_eq!(taken, bytes);
        drop(body);
        assert_eq!((waiting(&budget), told.recv()), (0, Ok(true)));
    }

    #[tokio::test]
    async fn a_reply_that_is_left_says_so() {
        let budget = ReplyBudget::new(1 << 20);
        let (mut body, told) = sent(&budget, vec![0; 2 * PIECE]).unwrap();
        assert!(body.frame().await.is_some());
        drop(body);
        assert_eq!((waiting(&budget), told.recv()), (0, Ok(false)));
    }

    #[test]
    fn what_waits_is_bounded_and_a_refusal_costs_nothing() {
        let budget = ReplyBudget::new(1000);
        let first = sent(&budget, vec![0; 900]).ok();
        let error = sent(&budget, vec![0; 200]).err().unwrap();
        assert_eq!(error.kind, ErrorKind::Unavailable);
        for part in ["200 bytes", "900 bytes", "1000 bytes"] {
            assert!(error.message.contains(part), "{}", error.message);
        }
        drop(first);
        assert!(sent(&budget, vec![0; 1000]).is_ok());
    }
}
