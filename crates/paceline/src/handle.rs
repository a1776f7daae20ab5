//! The caller's side of the engine.

use crate::calls::Calls;
use crate::cancel_flags::CancelFlags;
use crate::channel::{self, EventReceiver};
use crate::client::Answer;
use crate::embedding::{Embedding, EmbeddingRequest};
use crate::event::Event;
use crate::request::{Bounds, Continuations, Request};
use crate::service::{Job, Message};
use crate::watch::{StepViewer, Watch};
use crate::{DeviceInfo, EngineLimits, MemoryPlan, RequestError, Speculation, Stats, trace};
use futures_core::Stream;
use paceline_schedule::{CheckedRequest, Clock, RequestStatus};
use paceline_types::TokenId;
use std::ops::Range;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

/// What engine thread and callers share.
pub(crate) struct Shared {
    pub(crate) stats: Mutex<Stats>,
    /// Whether somebody wants something of the engine's thread.
    pub(crate) calls: Arc<Calls>,
    /// The newest steps, if somebody looks.
    pub(crate) watch: Arc<Watch>,
    /// Requests accepted and not yet ended.
    pub(crate) open: AtomicUsize,
    /// Why the engine stopped, once it has.
    pub(crate) stopped: Mutex<Option<String>>,
}

impl Shared {
    /// Of an engine that has done nothing yet. `trace`: its steps are recorded from the first one on.
    pub(crate) fn new((blocks, snapshots): (usize, usize), trace: bool) -> Self {
        let calls = Arc::new(Calls::default());
        Self {
            stats: Mutex::new(Stats {
                blocks,
                snapshots,
                ..Stats::default()
            }),
            watch: Arc::new(Watch::new(trace, Arc::clone(&calls))),
            calls,
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
    pub(crate) intake: SyncSender<Message>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) bounds: Arc<Bounds>,
    pub(crate) device: Arc<DeviceInfo>,
    pub(crate) memory: MemoryPlan,
    pub(crate) limits: EngineLimits,
    pub(crate) max_open: usize,
    pub(crate) packed: Option<Arc<Path>>,
}

impl Handle {
    /// The file that packed weights were mapped from.
    pub fn packed(&self) -> Option<&Path> {
        self.packed.as_deref()
    }

    /// Checks a request: what comes back can be served. Its deadline counts from here.
    pub fn check(&self, request: Request) -> Result<Continuations, RequestError> {
        self.bounds.check(request)
    }

    /// Checks a request and hands it in. Fails at once if it cannot be served or if too many wait.
    ///
    /// ```
    /// use paceline::{Engine, EngineConfig, Event, Request, RequestError};
    /// # let engine = Engine::start(&paceline_testkit::storyteller(), EngineConfig::default(), &|_| {})?;
    ///
    /// // Three continuations of one prompt, which is run once.
    /// let mut request = Request { prompt: [443, 441, 261, 393].into(), n: Some(3), ..Request::default() };
    /// request.sampling_mut().max_tokens = 8;
    /// let mut texts = vec![Vec::new(); 3];
    /// let mut generation = engine.generate(request.clone())?;
    /// while let Some(event) = generation.next_blocking() {
    ///     if let Event::Delta { choice, output } = event {
    ///         texts[choice].extend(output.ids);
    ///     }
    /// }
    /// assert!(texts.iter().all(|text| !text.is_empty()));
    ///
    /// // A refusal names the field, its value and its bound.
    /// request.sampling_mut().top_p = 2.0;
    /// let refused = engine.generate(request).err();
    /// assert!(matches!(refused, Some(RequestError::Parameter { field: "top_p", .. })), "{refused:?}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn generate(&self, request: Request) -> Result<Generation, RequestError> {
        self.start(self.check(request)?)
    }

    /// Hands in a request that was checked. Fails at once if too many wait.
    pub fn start(&self, continuations: Continuations) -> Result<Generation, RequestError> {
        let Continuations { requests, held } = continuations;
        let choices = requests.len();
        let first = requests.first().map_or(0, |request| request.id.0);
        let (sender, events) = channel::channel(held);
        let (cancel_flags, arrived) = self.submit(requests, Answer::Text(Arc::new(sender)))?;
        Ok(Generation {
            events,
            cancel_flags,
            arrived,
            open: choices,
            ids: first..first + choices as u64,
        })
    }

    /// Hands in a text that is to become a vector. It shares steps, queue and priorities with everything else. Fails at
    /// once if it cannot be served or if too many wait.
    ///
    /// ```
    /// use paceline::{EmbeddingRequest, Engine, EngineConfig, Pooling};
    /// # let engine = Engine::start(&paceline_testkit::storyteller(), EngineConfig::default(), &|_| {})?;
    ///
    /// let request = EmbeddingRequest::new([443, 441, 261, 393], Pooling::Mean);
    /// let vector = engine.embed(request.clone())?.wait()?.values;
    /// assert_eq!(vector.len(), engine.width());
    /// assert_eq!(engine.embed(request)?.wait()?.values, vector, "to the last bit, whatever else runs");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn embed(&self, request: EmbeddingRequest) -> Result<Embedding, RequestError> {
        let request = self.bounds.check_embedding(request)?;
        let id = request.id.0;
        let (result, receiver) = async_channel::bounded(1);
        let (cancel_flags, _) = self.submit(vec![request], Answer::Vector(result))?;
        Ok(Embedding {
            result: Box::pin(receiver),
            cancel_flags,
            id,
        })
    }

    /// How to end what was handed in, and when that was.
    fn submit(
        &self,
        requests: Vec<CheckedRequest>,
        answer: Answer,
    ) -> Result<(Arc<CancelFlags>, Instant), RequestError> {
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
        let arrived = Instant::now();
        let job = Job {
            requests,
            answer,
            cancel_flags: Arc::clone(&cancel_flags),
            arrived,
        };
        self.tell(Message::Job(job)).map_err(|error| {
            self.shared.open.fetch_sub(count, Ordering::Relaxed);
            match *error {
                TrySendError::Full(_) => RequestError::QueueFull { open },
                TrySendError::Disconnected(_) => {
                    let reason = self.shared.stop_reason();
                    RequestError::Stopped(reason.unwrap_or_else(|| "it has ended".to_owned()))
                }
            }
        })?;
        Ok((cancel_flags, arrived))
    }

    /// Leaves a message for the engine's thread and calls it.
    fn tell(&self, message: Message) -> Result<(), Box<TrySendError<Message>>> {
        self.intake.try_send(message).map_err(Box::new)?;
        self.shared.calls.begin();
        Ok(())
    }

    /// How the engine is doing.
    pub fn stats(&self) -> Stats {
        self.shared
            .stats
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The newest recorded steps, at most so many, as a Chrome trace. Steps are recorded while there is a
    /// [viewer](Self::watch), and from the start if the engine was started with `trace`.
    pub fn trace(&self, most: usize) -> String {
        trace::chrome(&self.shared.watch.newest(most))
    }

    /// Looks at steps from now on.
    pub fn watch(&self) -> StepViewer {
        StepViewer::new(Arc::clone(&self.shared.watch))
    }

    /// The time by the clock of steps, in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.bounds.clock.now_ns()
    }

    /// Where every request stands, oldest first, as of the engine's next turn; `None` if it does not answer any more.
    pub async fn statuses(&self) -> Option<Vec<RequestStatus>> {
        let (answer, statuses) = async_channel::bounded(1);
        self.tell(Message::Look(answer)).ok()?;
        statuses.recv().await.ok()
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

/// Cancels a request that another part of the program reads. It does nothing once the request has ended.
#[derive(Clone, Debug)]
pub struct Canceller(pub(crate) Arc<CancelFlags>);

impl Canceller {
    /// Ends the request; its reader gets what was generated until then, then its end.
    pub fn cancel(&self) {
        self.0.cancel_all();
    }
}

/// The events of one request, in order. The engine does not wait for its reader: what is not read is merged and kept.
/// Dropping it cancels the request.
///
/// It is read by [blocking](Self::next_blocking), by [many at once](crate::Streams), or as a stream on any `async` runtime:
///
/// ```
/// use futures_util::StreamExt;
/// use paceline::{Engine, EngineConfig, Event, FinishReason, Request};
/// # let engine = Engine::start(&paceline_testkit::storyteller(), EngineConfig::default(), &|_| {})?;
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// # runtime.block_on(async {
///
/// let mut request = Request { prompt: [443, 441, 261, 393].into(), ..Request::default() };
/// request.sampling_mut().ignore_eos = true;
/// let mut generation = engine.generate(request)?;
/// let mut tokens = 0;
/// while let Some(event) = generation.next().await {
///     match event {
///         Event::Delta { output, .. } => {
///             tokens += output.ids.len();
///             // What has come by then stays; what would come is not computed.
///             generation.cancel();
///         }
///         Event::Finished { finish, .. } => assert_eq!(finish.reason, FinishReason::Cancelled),
///         _ => {}
///     }
/// }
/// assert!(tokens > 0);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Generation {
    events: EventReceiver,
    cancel_flags: Arc<CancelFlags>,
    arrived: Instant,
    /// Continuations that have not ended.
    open: usize,
    ids: Range<u64>,
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

    /// When it was handed in: times in a [`Usage`](crate::Usage) begin then.
    pub fn arrived(&self) -> Instant {
        self.arrived
    }

    /// The engine's names of its continuations.
    pub fn ids(&self) -> Range<u64> {
        self.ids.clone()
    }

    /// Cancels the request from elsewhere.
    pub fn canceller(&self) -> Canceller {
        Canceller(Arc::clone(&self.cancel_flags))
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
