//! The log of a server: written by a thread of its own, so that a pipe that is not read or a full disk costs lines
//! and never a request.

use super::LogFormat;
use crate::flags::LogLevel;
use std::io;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};

/// Lines that may wait to be written; more are dropped.
const LINES: usize = 8192;

/// Starts the log. What waits is written when the result is dropped.
pub(super) fn start(level: LogLevel, format: LogFormat) -> WorkerGuard {
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(LINES)
        .thread_name("paceline-log")
        .finish(io::stderr());
    let log = tracing_subscriber::fmt()
        .with_writer(writer)
        .with_target(false)
        .with_ansi(false)
        // It would print to stderr that it cannot print to stderr, and panic.
        .log_internal_errors(false)
        .with_max_level(level.filter());
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => {
            log.json().flatten_event(true).with_current_span(false).init();
            log_panics();
        }
    }
    guard
}

/// A panic is a line of the log like any other, in place of the text that would go to stderr.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        let message = panic.payload_as_str().unwrap_or("without a message");
        tracing::error!(place, "a thread panicked: {message}");
    }));
}
