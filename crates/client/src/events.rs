//! Server-sent events, read as they come.

use crate::error::ClientError;
use crate::http::broken;
use reqwest::Response;
use std::collections::VecDeque;
use std::time::Instant;

/// Most bytes of one event.
const LONGEST_EVENT: usize = 16 << 20;

/// A server-sent event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When the bytes that completed it came.
    pub at: Instant,
    /// Its data; lines are joined by a newline.
    pub data: String,
}

/// The events of a body.
#[derive(Debug)]
pub struct EventStream {
    response: Response,
    parser: Parser,
    ready: VecDeque<Event>,
}

impl EventStream {
    pub(crate) fn new(response: Response) -> Self {
        Self {
            response,
            parser: Parser::default(),
            ready: VecDeque::new(),
        }
    }

    /// The next event; nothing at the end of the body.
    pub async fn next(&mut self) -> Result<Option<Event>, ClientError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            let chunk = self.response.chunk().await.map_err(|error| broken(&error))?;
            let at = Instant::now();
            let Some(bytes) = chunk else {
                return Ok(None);
            };
            for data in self.parser.push(&bytes)? {
                self.ready.push_back(Event { at, data });
            }
        }
    }
}

/// From bytes, however they are cut, to the data of events.
#[derive(Debug, Default)]
struct Parser {
    /// The line that is not complete.
    line: Vec<u8>,
    /// Lines of data of the event that is not complete.
    data: Option<String>,
    /// The last line ended with a carriage return, so that a newline belongs to it.
    after_return: bool,
}

impl Parser {
    /// Takes bytes and returns the events they complete.
    fn push(&mut self, bytes: &[u8]) -> Result<Vec<String>, ClientError> {
        let mut events = Vec::new();
        for byte in bytes {
            let after_return = std::mem::take(&mut self.after_return);
            match byte {
                b'\n' if after_return => {}
                b'\n' | b'\r' => {
                    self.after_return = *byte == b'\r';
                    events.extend(self.end_line()?);
                }
                other => self.line.push(*other),
            }
            if self.line.len() + self.data.as_ref().map_or(0, String::len) > LONGEST_EVENT {
                return Err(ClientError::protocol(format!(
                    "an event has more than {LONGEST_EVENT} bytes"
                )));
            }
        }
        Ok(events)
    }

    /// A line is complete. An empty one ends an event; all but those of data are of no interest.
    fn end_line(&mut self) -> Result<Option<String>, ClientError> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            return Ok(self.data.take());
        }
        let Some(value) = line.strip_prefix(b"data:") else {
            return Ok(None);
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        let value = std::str::from_utf8(value).map_err(|_| ClientError::protocol("an event is not UTF-8"))?;
        match &mut self.data {
            Some(data) => {
                data.push('\n');
                data.push_str(value);
            }
            none => *none = Some(value.to_owned()),
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] =
        ": hello\n\ndata: {\"a\": 1}\n\nevent: x\r\ndata:two\r\ndata: lines é\r\n\r\ndata: [DONE]\r\rdata: cut".as_bytes();

    #[test]
    fn events_are_the_same_however_the_bytes_are_cut() {
        for size in 1..=STREAM.len() {
            let mut parser = Parser::default();
            let pieces = STREAM.chunks(size);
            let events: Vec<String> = pieces.flat_map(|piece| parser.push(piece).unwrap()).collect();
            assert_eq!(
                events,
                ["{\"a\": 1}", "two\nlines é", "[DONE]"],
                "pieces of {size}"
            );
        }
    }

    #[test]
    fn what_is_not_text_is_refused() {
        assert!(Parser::default().push(b"data: \xff\n\n").is_err());
    }

    #[test]
    fn an_event_without_end_is_refused() {
        let mut parser = Parser::default();
        let piece = vec![b'x'; 1 << 20];
        let refused = (0..17).any(|_| parser.push(&piece).is_err());
        assert!(refused);
    }
}
