//! Texts that become vectors.

use crate::cancel_flags::CancelFlags;
use crate::{Canceller, Usage};
use async_channel::Receiver;
use paceline_types::{Pooling, TokenId};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// A text that is to become a vector: the model's final states of its tokens, behind the last norm, pooled.
#[derive(Clone, Debug)]
pub struct EmbeddingRequest {
    /// Tokens of the text.
    pub prompt: Arc<[TokenId]>,
    /// How one vector is made of the states.
    pub pooling: Pooling,
    /// Lower comes first, among all requests of the engine.
    pub priority: i32,
    /// Give up after this long.
    pub deadline: Option<Duration>,
    /// Whose it is: waiting is shared fairly between tenants. 0 if there is only one.
    pub tenant: u32,
    /// Only requests with the same salt share cached prefixes.
    pub salt: u64,
}

impl EmbeddingRequest {
    /// A request with nothing special about it.
    pub fn new(prompt: impl Into<Arc<[TokenId]>>, pooling: Pooling) -> Self {
        Self {
            prompt: prompt.into(),
            pooling,
            priority: 0,
            deadline: None,
            tenant: 0,
            salt: 0,
        }
    }
}

/// What came of an [`EmbeddingRequest`].
#[derive(Clone, Debug, PartialEq)]
pub struct Embedded {
    /// The vector, as long as the model is wide. It is not normalised.
    pub values: Vec<f32>,
    /// What it took.
    pub usage: Usage,
}

/// Why there is no vector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmbeddingError {
    /// The caller asked.
    #[error("the request was cancelled")]
    Cancelled,
    /// The deadline passed.
    #[error("the deadline of the request has passed")]
    Deadline,
    /// The engine failed, for this reason.
    #[error("the engine failed: {0}")]
    Failed(String),
}

/// A vector on its way; await it, or wait for it. Dropping it cancels the request.
pub struct Embedding {
    pub(crate) result: Pin<Box<Receiver<Result<Embedded, EmbeddingError>>>>,
    pub(crate) cancel_flags: Arc<CancelFlags>,
    pub(crate) id: u64,
}

impl Embedding {
    /// Waits for the vector.
    pub fn wait(self) -> Result<Embedded, EmbeddingError> {
        self.result.recv_blocking().unwrap_or_else(|_| Err(silence()))
    }

    /// The engine's name of it.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Cancels it from elsewhere.
    pub fn canceller(&self) -> Canceller {
        Canceller(Arc::clone(&self.cancel_flags))
    }

    /// Ends the request.
    pub fn cancel(&self) {
        self.cancel_flags.cancel_all();
    }
}

/// The engine went without a word.
fn silence() -> EmbeddingError {
    EmbeddingError::Failed("its thread ended unexpectedly".to_owned())
}

impl Future for Embedding {
    type Output = Result<Embedded, EmbeddingError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = futures_core::Stream::poll_next(self.result.as_mut(), cx);
        polled.map(|result| result.unwrap_or_else(|| Err(silence())))
    }
}

impl Drop for Embedding {
    fn drop(&mut self) {
        self.cancel();
    }
}
