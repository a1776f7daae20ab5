//! Server-sent events: a generation as a stream of frames, written by an [`Encoder`] of the interface.

use crate::generation::{Output, Outputs};
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use futures_core::Stream;
use serde::Serialize;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior, interval_at};

/// A silent connection looks dead to what stands between client and server; a comment now and then keeps it.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Frames on their way out.
#[derive(Debug, Default)]
pub(crate) struct Frames(Vec<u8>);

impl Frames {
    /// A frame with a JSON object.
    pub(crate) fn json(&mut self, data: &impl Serialize) {
        self.0.extend_from_slice(b"data: ");
        self.write(data);
        self.0.extend_from_slice(b"\n\n");
    }

    /// The same with a name.
    pub(crate) fn event(&mut self, name: &str, data: &impl Serialize) {
        self.0.extend_from_slice(b"event: ");
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(b'\n');
        self.json(data);
    }

    /// A frame with a word, such as `[DONE]`.
    pub(crate) fn word(&mut self, word: &str) {
        self.0.extend_from_slice(b"data: ");
        self.0.extend_from_slice(word.as_bytes());
        self.0.extend_from_slice(b"\n\n");
    }

    /// Takes out what is there.
    pub(crate) fn take(&mut self) -> Option<Bytes> {
        let bytes = std::mem::take(&mut self.0);
        (!bytes.is_empty()).then(|| Bytes::from(bytes))
    }

    /// A line with a JSON object.
    pub(crate) fn line(&mut self, data: &impl Serialize) {
        self.write(data);
        self.0.push(b'\n');
    }

    fn write(&mut self, data: &impl Serialize) {
        // JSON has no line breaks of its own, so an object is one line. Our replies serialise: maps have text keys.
        let start = self.0.len();
        if serde_json::to_writer(&mut self.0, data).is_err() {
            self.0.truncate(start);
            self.0.extend_from_slice(b"{}");
        }
    }
}

/// Writes the outputs of a generation in the frames of an interface.
pub(crate) trait Encoder: Send + Unpin + 'static {
    /// What the frames are.
    const CONTENT_TYPE: &'static str = "text/event-stream; charset=utf-8";
    /// What keeps a silent connection alive; nothing if the interface has no such thing.
    const STILL_HERE: &'static str = ": still here\n\n";

    /// What comes first.
    fn start(&mut self, frames: &mut Frames);
    /// One output. A failure is the last; the interface's error frame belongs here.
    fn output(&mut self, output: Output, frames: &mut Frames);
    /// What comes last, after a failure too.
    fn end(&mut self, frames: &mut Frames);
}

/// A reply that streams a generation. When the client goes, the body is dropped and with it the generation.
pub(crate) fn reply<E: Encoder>(outputs: Outputs, encoder: E) -> Response {
    let mut ticks = interval_at(tokio::time::Instant::now() + KEEP_ALIVE, KEEP_ALIVE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let frames = FrameStream {
        outputs: Some(outputs),
        encoder,
        started: false,
        ticks,
    };
    response(E::CONTENT_TYPE, frames)
}

/// A reply that is a stream of frames of some kind.
pub(crate) fn response(
    kind: &'static str,
    frames: impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static,
) -> Response {
    let mut response = Response::new(Body::from_stream(frames));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies such as nginx hold replies back unless they are told not to.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

struct FrameStream<E> {
    /// Gone after the last frame.
    outputs: Option<Outputs>,
    encoder: E,
    started: bool,
    ticks: Interval,
}

impl<E: Encoder> Stream for FrameStream<E> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let mut frames = Frames::default();
        if !this.started {
            this.started = true;
            this.encoder.start(&mut frames);
        }
        while frames.0.is_empty() {
            let Some(outputs) = &mut this.outputs else {
                return Poll::Ready(None);
            };
            match Pin::new(outputs).poll_next(cx) {
                Poll::Ready(Some(output)) => this.encoder.output(output, &mut frames),
                Poll::Ready(None) => {
                    this.outputs = None;
                    this.encoder.end(&mut frames);
                }
                Poll::Pending => {
                    if this.ticks.poll_tick(cx).is_pending() {
                        return Poll::Pending;
                    }
                    frames.0.extend_from_slice(E::STILL_HERE.as_bytes());
                }
            }
        }
        this.ticks.reset();
        Poll::Ready(Some(Ok(Bytes::from(frames.0))))
    }
}

/// What the tests of encoders share.
#[cfg(test)]
pub(crate) mod testing {
    use super::{Encoder, Frames};
    use crate::generation::{Failure, Finish, Output, Piece};
    use paceline::Usage;
    use paceline_types::FinishReason;
    use serde_json::Value;

    /// The end of a text of five tokens.
    pub(crate) fn finish(reason: FinishReason) -> Finish {
        let usage = Usage {
            completion_tokens: 5,
            ..Usage::default()
        };
        Finish {
            detail: (reason == FinishReason::Constraint).then(|| "a dead end".to_owned()),
            reason,
            stop: None,
            usage,
        }
    }

    /// The data of the events of a text that comes in pieces of three characters, then an end; one that is cancelled is
    /// followed by the failure. Each event's name must be the type in it.
    pub(crate) fn events(
        mut encoder: impl Encoder,
        text: &str,
        (reason, failure): (FinishReason, Failure),
    ) -> Vec<Value> {
        let mut frames = Frames::default();
        encoder.start(&mut frames);
        let characters: Vec<char> = text.chars().collect();
        for piece in characters.chunks(3) {
            let output = Piece {
                text: piece.iter().collect(),
                ..Piece::default()
            };
            encoder.output(Output::Delta { choice: 0, output }, &mut frames);
        }
        let finish = finish(reason);
        encoder.output(Output::Finished { choice: 0, finish }, &mut frames);
        if reason == FinishReason::Cancelled {
            encoder.output(Output::Failed(failure), &mut frames);
        }
        encoder.end(&mut frames);
        let text = String::from_utf8(frames.0).unwrap();
        let data = text.split_terminator("\n\n").map(|frame| {
            let (name, data) = frame.split_once('\n').unwrap();
            let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            assert_eq!(data["type"], name.strip_prefix("event: ").unwrap());
            data
        });
        data.collect()
    }
}
