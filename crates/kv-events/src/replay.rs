//! Batches again, for subscribers that missed some.

use crate::log::Log;
use bytes::Bytes;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, oneshot};
use zeromq::{RouterRecvHalf, RouterSendHalf, RouterSocket, SocketRecv, SocketSend, ZmqMessage};

/// Replies at a time; more wait.
const REPLIES: usize = 8;

/// Time for a message of a reply to be taken. A subscriber that is slower has to ask again.
const PATIENCE: Duration = Duration::from_secs(10);

/// The number behind the last batch of a reply.
const END: [u8; 8] = [0xff; 8];

/// Asks for a description of the whole cache; the number of its first batch is the answer.
pub(crate) type FreshStart = oneshot::Sender<u64>;

/// Answers requests for as long as there is a socket.
pub(crate) async fn serve(
    router: RouterSocket,
    topic: Bytes,
    log: Arc<Mutex<Log>>,
    fresh_starts: mpsc::Sender<FreshStart>,
) {
    let (replies, mut requests) = router.split();
    let turns = Arc::new(Semaphore::new(REPLIES));
    loop {
        let Some((client, number)) = next(&mut requests).await else {
            continue;
        };
        let Ok(turn) = Arc::clone(&turns).acquire_owned().await else {
            return;
        };
        let reply = Reply {
            client,
            topic: topic.clone(),
            socket: replies.clone(),
        };
        let (log, fresh_starts) = (Arc::clone(&log), fresh_starts.clone());
        tokio::spawn(async move {
            let batches = since(number, &log, &fresh_starts).await;
            reply.send(batches).await;
            drop(turn);
        });
    }
}

/// The next request: who asks, and from which number on. `None` if it makes no sense.
async fn next(requests: &mut RouterRecvHalf) -> Option<(Bytes, u64)> {
    let frames = match requests.recv().await {
        Ok(message) => message.into_vec(),
        Err(error) => {
            tracing::debug!("a request for missed KV events: {error}");
            // An error that stays must not become a busy loop.
            tokio::time::sleep(Duration::from_millis(10)).await;
            return None;
        }
    };
    let number = <[u8; 8]>::try_from(frames.last()?.as_ref()).ok()?;
    Some((frames.first()?.clone(), u64::from_be_bytes(number)))
}

/// The batches from a number on, or from a fresh start.
async fn since(number: u64, log: &Mutex<Log>, fresh_starts: &mpsc::Sender<FreshStart>) -> Vec<(u64, Bytes)> {
    let look = |number| log.lock().unwrap_or_else(PoisonError::into_inner).since(number);
    if let Some(batches) = look(number) {
        return batches;
    }
    let (answer, first) = oneshot::channel();
    if fresh_starts.send(answer).await.is_err() {
        return Vec::new();
    }
    match first.await {
        Ok(first) => look(first).unwrap_or_default(),
        Err(_) => Vec::new(),
    }
}

struct Reply {
    client: Bytes,
    topic: Bytes,
    socket: RouterSendHalf,
}

impl Reply {
    async fn send(mut self, batches: Vec<(u64, Bytes)>) {
        let topic = self.topic.clone();
        for (number, batch) in batches {
            let number = Bytes::copy_from_slice(&number.to_be_bytes());
            if !self.frames([topic.clone(), number, batch]).await {
                return;
            }
        }
        self.frames([Bytes::new(), Bytes::from_static(&END), Bytes::new()])
            .await;
    }

    /// Sends one message; false if the subscriber does not take it.
    async fn frames(&mut self, frames: [Bytes; 3]) -> bool {
        let mut message = ZmqMessage::from(self.client.clone());
        message.push_back(Bytes::new());
        for frame in frames {
            message.push_back(frame);
        }
        let sent = tokio::time::timeout(PATIENCE, self.socket.send(message)).await;
        matches!(sent, Ok(Ok(())))
    }
}
