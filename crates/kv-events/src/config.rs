//! vLLM's `--kv-events-config`.

use serde::Deserialize;
use std::net::{Ipv4Addr, SocketAddr};

/// Batches that are kept where nothing is said.
const BUFFER_STEPS: usize = 10_000;

/// Where events are published, and how many batches are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEventsConfig {
    /// Where subscribers connect.
    pub endpoint: SocketAddr,
    /// Where they ask for batches that they missed, if anywhere.
    pub replay_endpoint: Option<SocketAddr>,
    /// The first frame of every message.
    pub topic: String,
    /// Batches that are kept.
    pub buffer_steps: usize,
}

/// An object that cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// It is not JSON, or not an object with these keys.
    #[error("{0}")]
    Json(String),
    /// A value that cannot be worked with.
    #[error("key `{key}`: {value} must be {bound}")]
    Value {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        bound: &'static str,
    },
}

/// The keys of vLLM. The two bounds of its queues have none here: see the README.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    enable_kv_cache_events: Option<bool>,
    publisher: Option<String>,
    endpoint: Option<String>,
    replay_endpoint: Option<String>,
    buffer_steps: Option<usize>,
    topic: Option<String>,
    #[serde(rename = "hwm")]
    _high_water_mark: Option<usize>,
    #[serde(rename = "max_queue_size")]
    _max_queue_size: Option<usize>,
}

impl KvEventsConfig {
    /// Reads the object; `None` if it says that there are to be no events.
    pub fn from_json(text: &str) -> Result<Option<Self>, ConfigError> {
        let keys: Keys = serde_json::from_str(text).map_err(|error| ConfigError::Json(error.to_string()))?;
        let enabled = keys.enable_kv_cache_events.unwrap_or(false);
        match keys.publisher.as_deref() {
            None | Some("zmq") => {}
            Some("null") => return Ok(None),
            Some(other) => {
                return Err(ConfigError::Value {
                    key: "publisher",
                    value: other.to_owned(),
                    bound: "zmq or null",
                });
            }
        }
        if !enabled {
            return Ok(None);
        }
        let buffer_steps = keys.buffer_steps.unwrap_or(BUFFER_STEPS);
        if buffer_steps == 0 {
            return Err(ConfigError::Value {
                key: "buffer_steps",
                value: "0".to_owned(),
                bound: "at least 1",
            });
        }
        let endpoint = keys.endpoint.as_deref().unwrap_or("tcp://*:5557");
        let replay = keys.replay_endpoint.as_deref();
        Ok(Some(Self {
            endpoint: address("endpoint", endpoint)?,
            replay_endpoint: replay.map(|text| address("replay_endpoint", text)).transpose()?,
            topic: keys.topic.unwrap_or_default(),
            buffer_steps,
        }))
    }
}

fn address(key: &'static str, text: &str) -> Result<SocketAddr, ConfigError> {
    let wrong = || ConfigError::Value {
        key,
        value: text.to_owned(),
        bound: "an address of this machine to listen on, such as tcp://*:5557 or tcp://127.0.0.1:5557",
    };
    let rest = text.strip_prefix("tcp://").ok_or_else(wrong)?;
    match rest.strip_prefix("*:") {
        Some(port) => {
            let port = port.parse().map_err(|_| wrong())?;
            Ok((Ipv4Addr::UNSPECIFIED, port).into())
        }
        None => rest.parse().map_err(|_| wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_of_vllm_is_understood() {
        let text = r#"{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557",
            "replay_endpoint": "tcp://127.0.0.1:5558", "topic": "kv@pod@model", "buffer_steps": 5, "hwm": 1000}"#;
        let expected = KvEventsConfig {
            endpoint: ([0, 0, 0, 0], 5557).into(),
            replay_endpoint: Some(([127, 0, 0, 1], 5558).into()),
            topic: "kv@pod@model".to_owned(),
            buffer_steps: 5,
        };
        assert_eq!(KvEventsConfig::from_json(text), Ok(Some(expected)));
        let least = KvEventsConfig::from_json(r#"{"enable_kv_cache_events": true}"#);
        let least = least.unwrap().unwrap();
        assert_eq!((least.endpoint.port(), least.replay_endpoint), (5557, None));
        for off in [
            "{}",
            r#"{"enable_kv_cache_events": true, "publisher": "null"}"#,
            r#"{"enable_kv_cache_events": false, "endpoint": "tcp://*:1"}"#,
        ] {
            assert_eq!(KvEventsConfig::from_json(off), Ok(None), "{off}");
        }
    }

    #[test]
    fn mistakes_name_the_key_the_value_and_the_bound() {
        for (text, parts) in [
            ("{", &["EOF"][..]),
            (r#"{"enable": true}"#, &["enable", "enable_kv_cache_events"]),
            (r#"{"publisher": "kafka"}"#, &["`publisher`", "kafka", "zmq"]),
            (
                r#"{"enable_kv_cache_events": true, "buffer_steps": 0}"#,
                &["`buffer_steps`", "0", "at least 1"],
            ),
            (
                r#"{"enable_kv_cache_events": true, "endpoint": "ipc:///tmp/x"}"#,
                &["`endpoint`", "ipc:///tmp/x", "tcp://*:5557"],
            ),
            (
                r#"{"enable_kv_cache_events": true, "replay_endpoint": "tcp://*:99999"}"#,
                &["`replay_endpoint`", "99999"],
            ),
        ] {
            let error = KvEventsConfig::from_json(text).unwrap_err().to_string();
            for part in parts {
                assert!(error.contains(part), "{text}: `{part}` is not in: {error}");
            }
        }
    }
}
