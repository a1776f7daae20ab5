//! The context of a trace, as W3C's recommendation has it in headers.

use super::sampler::Sampler;
use crate::identifiers;
use axum::http::{HeaderMap, HeaderName};

pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Most characters of `tracestate` that are handed on.
const MAX_STATE: usize = 512;

/// Where a request comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parent {
    pub(super) trace_id: u128,
    pub(super) span_id: u64,
    pub(super) sampled: bool,
    pub(super) state: String,
}

/// A request's own place in a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TraceContext {
    pub(super) trace_id: u128,
    pub(super) span_id: u64,
    pub(super) parent: Option<u64>,
    pub(super) state: String,
    pub(super) sampled: bool,
}

impl TraceContext {
    /// Of a request with these headers: in the trace that they name, or in one of its own.
    pub(crate) fn of(headers: &HeaderMap, sampler: &Sampler) -> Self {
        let parent = Parent::of(headers);
        let trace_id = parent
            .as_ref()
            .map_or_else(new_trace_id, |parent| parent.trace_id);
        Self {
            trace_id,
            span_id: new_span_id(),
            sampled: sampler.samples(trace_id, parent.as_ref()),
            parent: parent.as_ref().map(|parent| parent.span_id),
            state: parent.map(|parent| parent.state).unwrap_or_default(),
        }
    }

    /// The value of `traceparent` that names this request.
    pub(crate) fn header(&self) -> String {
        let flags = u8::from(self.sampled);
        format!("00-{:032x}-{:016x}-{flags:02x}", self.trace_id, self.span_id)
    }
}

impl Parent {
    fn of(headers: &HeaderMap) -> Option<Self> {
        let parent = headers.get(TRACEPARENT)?.to_str().ok()?;
        let states = headers.get_all(TRACESTATE).iter();
        let states: Vec<&str> = states.filter_map(|value| value.to_str().ok()).collect();
        let state = states.join(",");
        Some(Self {
            state: if state.len() > MAX_STATE {
                String::new()
            } else {
                state
            },
            ..Self::parse(parent)?
        })
    }

    /// Later versions may go on behind what is known of this one.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let version = hex(parts.next()?, 2)?;
        let (trace_id, span_id) = (hex(parts.next()?, 32)?, hex(parts.next()?, 16)?);
        let flags = hex(parts.next()?, 2)?;
        let known = version != 0xff && (version > 0 || parts.next().is_none());
        (known && trace_id != 0 && span_id != 0).then_some(Self {
            trace_id,
            span_id: span_id as u64,
            sampled: flags & 1 == 1,
            state: String::new(),
        })
    }
}

/// A number of this many lower-case digits.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let right = text.len() == digits && text.bytes().all(digit);
    right.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

fn new_trace_id() -> u128 {
    u128::from(new_span_id()) << 64 | u128::from(new_span_id())
}

/// A random number that is not 0, which would be none.
pub(super) fn new_span_id() -> u64 {
    identifiers::random().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

    fn context(values: &[(&HeaderName, &str)]) -> TraceContext {
        let mut headers = HeaderMap::new();
        for (name, value) in values {
            headers.append(*name, value.parse().unwrap());
        }
        TraceContext::of(&headers, &Sampler::default())
    }

    #[test]
    fn a_request_is_part_of_the_trace_that_it_names() {
        let header = format!("00-{TRACE}-b7ad6b7169203331-01");
        let context = context(&[
            (&TRACEPARENT, &header),
            (&TRACESTATE, "a=1"),
            (&TRACESTATE, "b=2"),
        ]);
        assert_eq!(context.parent, Some(0xb7ad_6b71_6920_3331));
        assert_eq!((context.state.as_str(), context.sampled), ("a=1,b=2", true));
        let told = context.header();
        assert!(
            told.starts_with(&format!("00-{TRACE}-")) && told.ends_with("-01"),
            "{told}"
        );
        assert_ne!(told, header, "it names the request, not the one that sent it");
        assert!(Parent::parse(&told).is_some());
    }

    #[test]
    fn what_names_no_trace_begins_a_new_one() {
        for header in [
            "",
            "00",
            "00-0-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            let context = context(&[(&TRACEPARENT, header)]);
            assert_eq!(context.parent, None, "{header}");
            assert!(!context.header().contains(TRACE));
        }
        let later = format!("cc-{TRACE}-b7ad6b7169203331-00-more");
        let context = context(&[(&TRACEPARENT, &later)]);
        assert!(context.parent.is_some() && !context.sampled);
    }
}
