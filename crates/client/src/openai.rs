//! Answers of OpenAI's interface, as they come.

use crate::error::ClientError;
use crate::events::EventStream;
use crate::http::error_message;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::time::Instant;

/// Which of the two ways to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Endpoint {
    /// A conversation, as messages.
    Chat,
    /// A text to continue.
    Completions,
}

impl Endpoint {
    /// The path behind the address of the server.
    pub fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
        }
    }
}

/// What an answer took, as far as the server tells.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: u64,
    /// Of the answer.
    pub completion_tokens: u64,
    /// Of the prompt, found in a cache.
    pub cached_tokens: Option<u64>,
    /// What drafts did, where the server tells.
    pub speculation: Option<Speculation>,
}

/// What drafts did for an answer, as our server tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct Speculation {
    /// Steps behind the first token.
    #[serde(default)]
    pub steps: u64,
    /// Drafts that were verified.
    #[serde(default)]
    pub drafted: u64,
    /// Drafts that held.
    #[serde(default)]
    pub accepted: u64,
    /// Tokens per step.
    #[serde(default)]
    pub mean_acceptance_length: Option<f64>,
}

/// One piece of an answer.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// When it came.
    pub at: Instant,
    /// Text of the answer.
    pub text: String,
    /// Text of the reasoning before it.
    pub reasoning: String,
    /// It carries a part of a tool call.
    pub tool_call: bool,
    /// Tokens it carries, where the server lists them.
    pub tokens: Option<u64>,
    /// Why the answer ended.
    pub finish_reason: Option<String>,
    /// What it took; of the whole answer so far.
    pub usage: Option<Usage>,
}

impl Chunk {
    /// Whether it carries anything of the answer. Those that open or close a stream do not.
    pub fn has_output(&self) -> bool {
        let tokens = self.tokens.is_some_and(|tokens| tokens > 0);
        !self.text.is_empty() || !self.reasoning.is_empty() || self.tool_call || tokens
    }
}

/// An answer as it comes. Dropping it ends the request.
#[derive(Debug)]
pub struct Reply {
    events: EventStream,
    finished: bool,
    done: bool,
}

impl Reply {
    pub(crate) fn new(events: EventStream) -> Self {
        Self {
            events,
            finished: false,
            done: false,
        }
    }

    /// The next piece; nothing at the end. An answer that breaks off is an error.
    pub async fn next(&mut self) -> Result<Option<Chunk>, ClientError> {
        if self.done {
            return Ok(None);
        }
        let Some(event) = self.events.next().await? else {
            self.done = true;
            // Some servers leave the last word out; the reason to end is what counts.
            if self.finished {
                return Ok(None);
            }
            return Err(ClientError::Broken {
                reason: "the stream ended without a finish reason".to_owned(),
            });
        };
        if event.data.trim() == "[DONE]" {
            // The body is read to its end, or the server would see a client that left.
            while self.events.next().await?.is_some() {}
            self.done = true;
            return Ok(None);
        }
        let value: Value = serde_json::from_str(&event.data)
            .map_err(|error| ClientError::protocol(format!("an event is not JSON: {error}")))?;
        if value.get("error").is_some_and(|error| !error.is_null()) {
            let message = error_message(&value).unwrap_or_else(|| value["error"].to_string());
            return Err(ClientError::Failed { message });
        }
        let chunk = read(event.at, &value);
        self.finished |= chunk.finish_reason.is_some();
        Ok(Some(chunk))
    }
}

fn read(at: Instant, value: &Value) -> Chunk {
    let choice = &value["choices"][0];
    let delta = &choice["delta"];
    let text = |place: &Value| place.as_str().unwrap_or_default().to_owned();
    let reasoning = match &delta["reasoning_content"] {
        Value::Null => &delta["reasoning"],
        given => given,
    };
    let calls = delta["tool_calls"].as_array();
    let tokens = choice["token_ids"].as_array();
    Chunk {
        at,
        text: text(if delta.is_null() {
            &choice["text"]
        } else {
            &delta["content"]
        }),
        reasoning: text(reasoning),
        tool_call: calls.is_some_and(|calls| !calls.is_empty()),
        tokens: tokens.map(|tokens| tokens.len() as u64),
        finish_reason: choice["finish_reason"].as_str().map(str::to_owned),
        usage: usage(&value["usage"]),
    }
}

fn usage(value: &Value) -> Option<Usage> {
    Some(Usage {
        prompt_tokens: value["prompt_tokens"].as_u64()?,
        completion_tokens: value["completion_tokens"].as_u64().unwrap_or(0),
        cached_tokens: value["prompt_tokens_details"]["cached_tokens"].as_u64(),
        speculation: Speculation::deserialize(&value["speculation"]).ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn text_is_found_in_chats_and_in_completions() {
        let now = Instant::now();
        let chat = read(
            now,
            &json!({ "choices": [{ "delta": { "content": "a", "reasoning_content": "b" } }] }),
        );
        assert_eq!((chat.text.as_str(), chat.reasoning.as_str()), ("a", "b"));
        let text = read(
            now,
            &json!({ "choices": [{ "text": "a", "token_ids": [1, 2], "finish_reason": "stop" }] }),
        );
        assert_eq!((text.text.as_str(), text.tokens), ("a", Some(2)));
        assert_eq!(text.finish_reason.as_deref(), Some("stop"));
        let other = read(now, &json!({ "choices": [{ "delta": { "reasoning": "b" } }] }));
        assert_eq!(other.reasoning, "b");
    }

    #[test]
    fn chunks_that_open_and_close_a_stream_carry_nothing() {
        let now = Instant::now();
        for value in [
            json!({ "choices": [{ "delta": { "role": "assistant", "content": "" } }] }),
            json!({ "choices": [{ "delta": {}, "finish_reason": "stop" }] }),
            json!({ "choices": [], "usage": { "prompt_tokens": 1, "completion_tokens": 2 } }),
        ] {
            assert!(!read(now, &value).has_output(), "{value}");
        }
        let call = json!({ "choices": [{ "delta": { "tool_calls": [{ "index": 0 }] } }] });
        assert!(read(now, &call).has_output());
    }

    #[test]
    fn usage_is_read_as_far_as_it_is_there() {
        let plain = usage(&json!({ "prompt_tokens": 3, "completion_tokens": 4 })).unwrap();
        assert_eq!(
            (plain.prompt_tokens, plain.completion_tokens, plain.speculation),
            (3, 4, None)
        );
        let full = usage(&json!({
            "prompt_tokens": 3,
            "completion_tokens": 4,
            "prompt_tokens_details": { "cached_tokens": 2 },
            "speculation": { "steps": 2, "drafted": 5, "accepted": 1, "mean_acceptance_length": 1.5, "new": true },
        }))
        .unwrap();
        assert_eq!(full.cached_tokens, Some(2));
        let drafts = full.speculation.unwrap();
        assert_eq!(
            (drafts.drafted, drafts.accepted, drafts.mean_acceptance_length),
            (5, 1, Some(1.5))
        );
        assert_eq!(usage(&Value::Null), None);
    }
}
