//! A socket that gives up on a peer that takes nothing.
//!
//! A write that does not get on may wait for so long and no longer; then it fails, the connection ends, and with it go
//! its place, its reply and the generation behind it. It is around the socket itself, below encryption.

use crate::places::StallClock;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// How long writes may wait: of all connections, or of one of them.
#[derive(Clone, Debug)]
pub(crate) struct Patience {
    pub(crate) usual: Duration,
    /// In place of the usual time once there is a hurry.
    pub(crate) last: Duration,
    /// The server goes down, or another connection needs the place of this one.
    pub(crate) hurry: CancellationToken,
    /// Told when writes of a connection begin to wait and when they get on.
    pub(crate) stall: Option<Arc<StallClock>>,
}

/// A socket whose writes do not wait for ever.
pub(crate) struct TimedWrites<S> {
    socket: S,
    patience: Patience,
    /// The write that does not get on, if there is one.
    stall: Option<Stall>,
}

struct Stall {
    since: Instant,
    timer: Pin<Box<Sleep>>,
    /// Gone once there is one.
    hurry: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl<S> TimedWrites<S> {
    pub(crate) fn new(socket: S, patience: Patience) -> Self {
        Self {
            socket,
            patience,
            stall: None,
        }
    }

    /// What becomes of a write: it gets on, waits, or has waited for too long.
    fn judge<T>(&mut self, polled: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            if self.stall.take().is_some() {
                self.patience.note(false);
            }
            return polled;
        }
        let patience = &self.patience;
        let stall = self.stall.get_or_insert_with(|| {
            patience.note(true);
            Stall::new(patience)
        });
        stall.poll(patience, cx).map(|()| {
            let message = "the client takes nothing";
            Err(io::Error::new(io::ErrorKind::TimedOut, message))
        })
    }
}

impl Patience {
    fn note(&self, stalled: bool) {
        if let Some(clock) = &self.stall {
            clock.set(stalled);
        }
    }
}

impl Stall {
    fn new(patience: &Patience) -> Self {
        let since = Instant::now();
        Self {
            since,
            timer: Box::pin(sleep_until(since + patience.usual)),
            hurry: Some(Box::pin(patience.hurry.clone().cancelled_owned())),
        }
    }

    /// Ready when it has lasted too long.
    fn poll(&mut self, patience: &Patience, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(hurry) = &mut self.hurry
            && hurry.as_mut().poll(cx).is_ready()
        {
            self.hurry = None;
            let end = self.since + patience.usual.min(patience.last);
            self.timer.as_mut().reset(end);
        }
        self.timer.as_mut().poll(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedWrites<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedWrites<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.judge(polled, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.socket).poll_write_vectored(cx, parts);
        self.judge(polled, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.socket).poll_flush(cx);
        self.judge(polled, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.socket).poll_shutdown(cx);
        self.judge(polled, cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    const USUAL: Duration = Duration::from_secs(30);
    const LAST: Duration = Duration::from_secs(2);

    /// A server's end with room for ten bytes, the client's end, and the token that there is a hurry.
    fn pair() -> (TimedWrites<DuplexStream>, DuplexStream, CancellationToken) {
        let (server, client) = duplex(10);
        let hurry = CancellationToken::new();
        let patience = Patience {
            usual: USUAL,
            last: LAST,
            hurry: hurry.clone(),
            stall: None,
        };
        (TimedWrites::new(server, patience), client, hurry)
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_nothing_is_given_up_after_the_time() {
        let (mut server, _client, _) = pair();
        let start = Instant::now();
        let error = server.write_all(&[0; 100]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(start.elapsed().as_secs(), USUAL.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_gets_everything() {
        let (mut server, mut client, _) = pair();
        let start = Instant::now();
        let reader = tokio::spawn(async move {
            let mut all = Vec::new();
            let mut some = [0; 10];
            while let Ok(count @ 1..) = client.read(&mut some).await {
                all.extend_from_slice(&some[..count]);
                tokio::time::sleep(USUAL * 9 / 10).await;
            }
            all
        });
        let sent: Vec<u8> = (0..100).collect();
        server.write_all(&sent).await.unwrap();
        drop(server);
        assert_eq!(reader.await.unwrap(), sent);
        assert!(start.elapsed() > 5 * USUAL);
    }

    #[tokio::test(start_paused = true)]
    async fn a_hurry_shortens_the_time() {
        let (mut server, _client, hurry) = pair();
        let start = Instant::now();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            hurry.cancel();
        });
        assert!(server.write_all(&[0; 100]).await.is_err());
        assert_eq!(start.elapsed().as_secs(), LAST.as_secs());
        // One that has waited for longer already is cut at once.
        let (mut server, _client, hurry) = pair();
        let start = Instant::now();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(9)).await;
            hurry.cancel();
        });
        assert!(server.write_all(&[0; 100]).await.is_err());
        assert_eq!(start.elapsed().as_secs(), 9);
    }
}
