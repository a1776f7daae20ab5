//! The caller's side of the engine.

use crate::cancel_flags::CancelFlags;
use crate::channel::{self, EventReceiver};
use crate::client::Answer;
use crate::embedding::{Embedding, EmbeddingRequest};
use crate::event::Event;
use crate::request::{Bounds, Continuations, Request};
use crate::service::Job;
use crate::{DeviceInfo, EngineLimits, MemoryPlan, RequestError, Speculation, Stats, trace};
use futures_core::Stream;
use paceline_schedule::{CheckedRequest, StepRecord};
use paceline_types::TokenId;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

/// What engine thread and callers share.
pub(crate) struct Shared {
    pub(crate) stats: Mutex<Stats>,
    pub(crate) trace: Mutex<Vec<StepRecord>>,
    /// Requests accepted and not yet ended.
    pub(crate) open: AtomicUsize,
    /// Why the engine stopped, once it has.
    pub(crate) stopped: Mutex<Option<String>>,
}

impl Shared {
    /// Of an engine that has done nothing yet.
    pub(crate) fn new(memory: &MemoryPlan) -> Self {
        Self {
            stats: Mutex::new(Stats {
                blocks: memory.blocks,
                snapshots: memory.snapshot_count,
                ..Stats::default()
            }),
            trace: Mutex::default(),
            open: AtomicUsize::new(0),
            stopped: Mutex::default(),
        }
    }

    pub(crate) fn stop_reason(&self) -> Option<String> {
        self.stopped
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Talks to a running engine. Clones talk to the same one; when the last is dropped the engine finishes what it has
/// and ends.
#[derive(Clone)]
pub struct Handle {
    pub(crate) intake: SyncSender<Job>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) bounds: Arc<Bounds>,
    pub(crate) device: Arc<DeviceInfo>,
    pub(crate) memory: MemoryPlan,
    pub(crate) limits: EngineLimits,
    pub(crate) max_open: usize,
}

impl Handle {
    /// Checks a request: what comes back can be served. Its deadline counts from here.
    pub fn check(&self, request: Request) -> Result<Continuations, RequestError> {
        self.bounds.check(request)
    }

    /// Checks a request and hands it in. Fails at once if it cannot be served or if too many wait.
    pub fn generate(&self, request: Request) -> Result<Generation, RequestError> {
        self.start(self.check(request)?)
    }

    /// Hands in a request that was checked. Fails at once if too many wait.
    pub fn start(&self, continuations: Continuations) -> Result<Generation, RequestError> {
        let Continuations { requests, held } = continuations;
        let choices = requests.len();
        let (sender, events) = channel::channel(held);
        let cancel_flags = self.submit(requests, Answer::Text(Arc::new(sender)))?;
        Ok(Generation {
            events,
            cancel_flags,
            open: choices,
        })
    }

    /// Hands in a text that is to become a vector. It shares steps, queue and priorities with everything else. Fails at
    /// once if it cannot be served or if too many wait.
    pub fn embed(&self, request: EmbeddingRequest) -> Result<Embedding, RequestError> {
        let request = self.bounds.check_embedding(request)?;
        let (result, receiver) = async_channel::bounded(1);
        let cancel_flags = self.submit(vec![request], Answer::Vector(result))?;
        Ok(Embedding {
            result: Box::pin(receiver),
            cancel_flags,
        })
    }

    fn submit(
        &self,
        requests: Vec<CheckedRequest>,
        answer: Answer,
    ) -> Result<Arc<CancelFlags>, RequestError> {
        let count = requests.len();
        // The engine says why it stops before it lets go of its queue.
        if let Some(reason) = self.shared.stop_reason() {
            return Err(RequestError::Stopped(reason));
        }
        let open = self.shared.open.fetch_add(count, Ordering::Relaxed);
        if open + count > self.max_open {
            self.shared.open.fetch_sub(count, Ordering::Relaxed);
            return Err(RequestError::QueueFull { open });
        }
        let cancel_flags = Arc::new(CancelFlags::new(count));
        let job = Job {
            requests,
            answer,
            cancel_flags: Arc::clone(&cancel_flags),
            arrived: Instant::now(),
        };
        self.intake.try_send(job).map_err(|error| {
            self.shared.open.fetch_sub(count, Ordering::Relaxed);
            match error {
                TrySendError::Full(_) => RequestError::QueueFull { open },
                TrySendError::Disconnected(_) => {
                    let reason = self.shared.stop_reason();
                    RequestError::Stopped(reason.unwrap_or_else(|| "it has ended".to_owned()))
                }
            }
        })?;
        Ok(cancel_flags)
    }

    /// How the engine is doing.
    pub fn stats(&self) -> Stats {
        self.shared
            .stats
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The times of all steps so far as a Chrome trace; empty unless the engine was started with `trace`.
    pub fn trace(&self) -> String {
        trace::chrome(&self.shared.trace.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The device it runs on, as it was before the engine took its memory.
    pub fn device(&self) -> &DeviceInfo {
        &self.device
    }

    /// The memory the engine took.
    pub fn memory(&self) -> &MemoryPlan {
        &self.memory
    }

    /// What bounds the engine's work.
    pub fn limits(&self) -> &EngineLimits {
        &self.limits
    }

    /// The drafters, and the number of drafts.
    pub fn speculation(&self) -> &Speculation {
        &self.bounds.speculation
    }

    /// Tokens that the model knows; ids are below this.
    pub fn vocabulary(&self) -> usize {
        self.bounds.vocabulary
    }

    /// Tokens that end the model's texts.
    pub fn end_tokens(&self) -> &[TokenId] {
        &self.bounds.eos
    }

    /// Elements of the vectors that texts become.
    pub fn width(&self) -> usize {
        self.bounds.width
    }

    /// Longest sequence, prompt included.
    pub fn max_model_len(&self) -> usize {
        self.bounds.max_model_len
    }

    /// Why the engine stopped, if a fault stopped it.
    pub fn fault(&self) -> Option<String> {
        self.shared.stop_reason()
    }
}

/// The events of one request, in order. The engine does not wait for its reader: what is not read is merged and kept.
/// Dropping it cancels the request.
pub struct Generation {
    events: EventReceiver,
    cancel_flags: Arc<CancelFlags>,
    /// Continuations that have not ended.
    open: usize,
}

impl Generation {
    /// Waits for the next event; `None` after the last.
    pub fn next_blocking(&mut self) -> Option<Event> {
        if self.open == 0 {
            return None;
        }
        let event = self.events.next_blocking();
        self.note(event.as_ref());
        event
    }

    /// Ends the request; what was generated until then still arrives, then its end.
    pub fn cancel(&self) {
        self.cancel_flags.cancel_all();
    }

    /// Ends one continuation because its text is complete, such as at a stop string; the others go on. Within a step it
    /// ends like one that met a stop token, and what it held is free.
    pub fn stop_choice(&self, choice: usize) {
        self.cancel_flags.stop(choice);
    }

    fn note(&mut self, event: Option<&Event>) {
        match event {
            Some(Event::Finished { .. }) => self.open -= 1,
            Some(Event::Failed(_)) | None => self.open = 0,
            Some(_) => {}
        }
    }
}

impl Stream for Generation {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        if self.open == 0 {
            return Poll::Ready(None);
        }
        let polled = self.events.poll_next(cx);
        if let Poll::Ready(event) = &polled {
            self.note(event.as_ref());
        }
        polled
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.cancel();
    }
}
