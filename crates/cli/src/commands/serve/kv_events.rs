//! `--kv-events-config`: routers are told what the prefix cache holds.

use super::ServeConfig;
use anyhow::{Context, Result};
use paceline_kv_events::Publisher;
use paceline_server::KvEventsAddress;

/// Starts to publish, if that is asked for; engine and server get to know of it. Nothing is published any more once the
/// publisher is dropped.
pub(super) fn start(config: &mut ServeConfig) -> Result<Option<Publisher>> {
    let Some(events) = &config.kv_events else {
        return Ok(None);
    };
    let publisher = Publisher::start(events).context("--kv-events-config")?;
    config.engine.config.cache_feed = Some(publisher.feed().clone());
    config.server.kv_events = Some(KvEventsAddress {
        endpoint: publisher.endpoint(),
        replay_endpoint: publisher.replay_endpoint(),
        topic: events.topic.clone(),
    });
    Ok(Some(publisher))
}
