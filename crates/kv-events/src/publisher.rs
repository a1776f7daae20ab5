//! The thread that publishes.

use crate::config::KvEventsConfig;
use crate::event::{Event, Events};
use crate::log::Log;
use crate::replay::{self, FreshStart};
use crate::usable::UsableBlocks;
use crate::wire::encode;
use bytes::Bytes;
use paceline_cache::{CacheFeed, Changes};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};
use tokio::runtime;
use tokio::sync::{Notify, mpsc};
use zeromq::{PubSocket, RouterSocket, Socket, SocketSend, ZmqError, ZmqMessage};

/// Time between two looks at the feed: changes of several steps make one batch, and a busy engine wakes nobody.
const PACE: Duration = Duration::from_millis(5);

/// Blocks of a batch, roughly. With 16 tokens a block takes 50 to 100 bytes.
const BATCH_BLOCKS: usize = 1024;

/// Publishes what a feed tells until it is dropped.
#[derive(Debug)]
pub struct Publisher {
    feed: CacheFeed,
    endpoint: SocketAddr,
    replay_endpoint: Option<SocketAddr>,
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

/// Events that cannot be published.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address that cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        error: std::io::Error,
    },
    /// No thread.
    #[error("cannot start the thread that publishes: {0}")]
    Thread(#[from] std::io::Error),
}

impl Publisher {
    /// Listens, and starts a thread that publishes what [`feed`](Self::feed) will tell.
    pub fn start(config: &KvEventsConfig) -> Result<Self, StartError> {
        let listener = listen(config.endpoint)?;
        let replay = config.replay_endpoint.map(listen).transpose()?;
        let local = |listener: &TcpListener| listener.local_addr();
        let (endpoint, replay_endpoint) = (local(&listener)?, replay.as_ref().map(local).transpose()?);
        let (wake, stop) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let feed = {
            let wake = Arc::clone(&wake);
            CacheFeed::new(move || wake.notify_one())
        };
        let task = Task {
            feed: feed.clone(),
            wake,
            topic: config.topic.clone().into(),
            log: Arc::new(Mutex::new(Log::new(config.buffer_steps))),
            usable: None,
            changes: Changes::default(),
            events: Events::default(),
        };
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let until = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("paceline-kv-events".to_owned())
            .spawn(move || {
                let published = runtime.block_on(async {
                    tokio::select! {
                        ended = task.run(listener, replay) => ended,
                        () = until.notified() => Ok(()),
                    }
                });
                if let Err(error) = published {
                    tracing::error!("KV events are no longer published: {error}");
                }
            })?;
        Ok(Self {
            feed,
            endpoint,
            replay_endpoint,
            stop,
            thread: Some(thread),
        })
    }

    /// The feed that an engine has to be given.
    pub fn feed(&self) -> &CacheFeed {
        &self.feed
    }

    /// Where subscribers connect.
    pub fn endpoint(&self) -> SocketAddr {
        self.endpoint
    }

    /// Where they ask for what they missed.
    pub fn replay_endpoint(&self) -> Option<SocketAddr> {
        self.replay_endpoint
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            // What it has to say of a failure is in the log.
            let _ = thread.join();
        }
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address).map_err(|error| StartError::Listen { address, error })
}

/// What the thread works with.
struct Task {
    feed: CacheFeed,
    wake: Arc<Notify>,
    topic: Bytes,
    log: Arc<Mutex<Log>>,
    /// Nothing before the engine has started.
    usable: Option<(UsableBlocks, usize)>,
    changes: Changes,
    events: Events,
}

impl Task {
    async fn run(mut self, listener: TcpListener, replay: Option<TcpListener>) -> Result<(), ZmqError> {
        let mut socket = PubSocket::new();
        socket.bind_listener(listener).await?;
        let (ask, mut asked) = mpsc::channel::<FreshStart>(1);
        if let Some(listener) = replay {
            let mut router = RouterSocket::new();
            router.bind_listener(listener).await?;
            tokio::spawn(replay::serve(
                router,
                self.topic.clone(),
                Arc::clone(&self.log),
                ask.clone(),
            ));
        }
        // A subscriber that knew an earlier process forgets what it knew.
        self.publish(&mut socket, vec![encode(&[Event::Cleared], 0, seconds())])
            .await?;
        loop {
            tokio::select! {
                () = self.wake.notified() => self.follow(&mut socket).await?,
                Some(answer) = asked.recv() => {
                    self.follow(&mut socket).await?;
                    let first = self.start_afresh(&mut socket).await?;
                    // The one who asked may be gone.
                    let _ = answer.send(first);
                }
            }
            tokio::time::sleep(PACE).await;
        }
    }

    /// Publishes what has changed.
    async fn follow(&mut self, socket: &mut PubSocket) -> Result<(), ZmqError> {
        self.feed.take(&mut self.changes);
        let Some(layout) = self.feed.layout().filter(|_| !self.changes.is_empty()) else {
            return Ok(());
        };
        let block_size = layout.block_size;
        let (usable, _) = self
            .usable
            .get_or_insert_with(|| (UsableBlocks::new(layout), block_size));
        self.events.clear();
        for (change, tokens) in self.changes.iter(block_size) {
            usable.apply(change, tokens, &mut self.events);
        }
        let batches = batches(self.events.as_slice(), block_size);
        self.publish(socket, batches).await
    }

    /// Describes the whole cache anew, for a subscriber whose gap is older than what is kept; to all of them, since their
    /// numbers are the same. Returns the number of the first batch.
    async fn start_afresh(&mut self, socket: &mut PubSocket) -> Result<u64, ZmqError> {
        self.events.clear();
        let block_size = if let Some((usable, block_size)) = &self.usable {
            usable.describe(&mut self.events);
            *block_size
        } else {
            self.events.cleared();
            0
        };
        let batches = batches(self.events.as_slice(), block_size);
        let first = self.lock_log().push_fresh_start(batches.clone());
        for (number, batch) in (first..).zip(batches) {
            socket.send(message(&self.topic, number, batch)).await?;
        }
        Ok(first)
    }

    /// Numbers, keeps and sends batches. A subscriber whose queue is full does not get them.
    async fn publish(&self, socket: &mut PubSocket, batches: Vec<Bytes>) -> Result<(), ZmqError> {
        for batch in batches {
            let number = self.lock_log().push(batch.clone());
            socket.send(message(&self.topic, number, batch)).await?;
        }
        Ok(())
    }

    fn lock_log(&self) -> std::sync::MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Events in batches of a bounded size.
fn batches(events: &[Event], block_size: usize) -> Vec<Bytes> {
    let now = seconds();
    let mut batches = Vec::new();
    let (mut start, mut blocks) = (0, 0);
    for (index, event) in events.iter().enumerate() {
        blocks += event.blocks();
        if blocks >= BATCH_BLOCKS || index + 1 == events.len() {
            batches.push(encode(&events[start..=index], block_size, now));
            (start, blocks) = (index + 1, 0);
        }
    }
    batches
}

/// The frames of a batch.
fn message(topic: &Bytes, number: u64, batch: Bytes) -> ZmqMessage {
    let mut message = ZmqMessage::from(topic.clone());
    message.push_back(Bytes::copy_from_slice(&number.to_be_bytes()));
    message.push_back(batch);
    message
}

fn seconds() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}
