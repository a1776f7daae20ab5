//! The flags of `serve` that bound how much it takes on, and for how long.

use super::numbers::{self, ByteSize, parsed};
use clap::Args;
use paceline_server::{PrefixCacheScope, ServerConfig};
use std::time::Duration;

// A plain comment: a doc comment would replace the description of the command.
#[derive(Debug, Args)]
pub(super) struct LimitFlags {
    /// Continuations (prompts times n) that may run or wait at a time; more get 429 [default: what the engine takes].
    #[arg(long, value_name = "N", value_parser = parsed(numbers::at_least_one), help_heading = "Limits")]
    max_concurrent_requests: Option<usize>,
    /// The same for each API key [default: half of what the engine takes if there are several keys].
    #[arg(long, value_name = "N", value_parser = parsed(numbers::at_least_one), help_heading = "Limits")]
    max_requests_per_key: Option<usize>,
    /// Lowest number that requests may give as priority; lower runs first [default: 0, so that none can overtake].
    #[arg(
        long,
        value_name = "P",
        allow_negative_numbers = true,
        help_heading = "Limits"
    )]
    min_priority: Option<i32>,
    /// The same for one API key; may be given several times.
    #[arg(long, value_name = "KEY=P", value_parser = key_priority, help_heading = "Limits")]
    key_min_priority: Vec<(String, i32)>,
    /// Refuse requests with fields that their endpoint does not know; otherwise the header x-paceline-warning of the
    /// reply names them.
    #[arg(long, help_heading = "Limits")]
    strict_requests: bool,
    /// Connections at a time; more wait to be accepted [default: 1024].
    #[arg(long, value_name = "N", value_parser = parsed(numbers::at_least_one), help_heading = "Limits")]
    max_connections: Option<usize>,
    /// Connections from one address; more get 503; 0 sets no limit, as behind a proxy [default: half of
    /// --max-connections, and no limit for this machine's own addresses].
    #[arg(long, value_name = "N", help_heading = "Limits")]
    max_connections_per_address: Option<usize>,
    /// Largest body of a request [default: 16M].
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    max_body_size: Option<ByteSize>,
    /// Largest size of all bodies that are being read or prepared; more get 503 [default: 64M].
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    max_pending_body_size: Option<ByteSize>,
    /// Which requests share cached prompts: those with the same key, or all. With all, a key can find out what others sent.
    #[arg(long, value_name = "key|all", default_value = "key", value_parser = prefix_cache_scope, help_heading = "Limits")]
    prefix_cache_scope: PrefixCacheScope,
    /// Whole replies that may wait for their readers, over all connections; one more gets 503 [default: 512M].
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    max_reply_memory: Option<ByteSize>,
    /// Seconds for the headers of a request to arrive, and for a connection to stay open without one [default: 30].
    #[arg(long, value_name = "S", value_parser = some_seconds, help_heading = "Limits")]
    header_timeout: Option<Duration>,
    /// Seconds for the body of a request to arrive [default: 60].
    #[arg(long, value_name = "S", value_parser = some_seconds, help_heading = "Limits")]
    body_timeout: Option<Duration>,
    /// Seconds that a reply waits for a client that takes nothing of it; then the connection is cut [default: 30].
    #[arg(long, value_name = "S", value_parser = some_seconds, help_heading = "Limits")]
    write_timeout: Option<Duration>,
    /// Seconds for a request to be answered; what is there by then is the answer; 0 sets no limit
    /// [default: 600].
    #[arg(long, value_name = "S", value_parser = seconds, help_heading = "Limits")]
    request_timeout: Option<Duration>,
    /// Seconds that running requests have to finish after SIGTERM, SIGHUP or Ctrl-C [default: 30].
    #[arg(long, value_name = "S", value_parser = seconds, help_heading = "Limits")]
    drain_timeout: Option<Duration>,
    /// Seconds without a step, although there is work, after which the engine counts as stuck; 0 never [default: 120].
    #[arg(long, value_name = "S", value_parser = seconds, help_heading = "Limits")]
    watchdog_timeout: Option<Duration>,
}

impl LimitFlags {
    /// A server with these limits, and the default otherwise.
    pub(super) fn config(&self) -> ServerConfig {
        let default = ServerConfig::default();
        let bytes = |size: Option<ByteSize>| size.map(|ByteSize(bytes)| bytes as usize);
        ServerConfig {
            max_concurrent_requests: self.max_concurrent_requests,
            max_requests_per_key: self.max_requests_per_key,
            strict_requests: self.strict_requests,
            min_priority: self.min_priority.unwrap_or(default.min_priority),
            key_min_priority: self.key_min_priority.iter().cloned().collect(),
            max_connections: self.max_connections.unwrap_or(default.max_connections),
            max_connections_per_address: self.max_connections_per_address,
            max_body_bytes: bytes(self.max_body_size).unwrap_or(default.max_body_bytes),
            max_pending_body_bytes: bytes(self.max_pending_body_size)
                .unwrap_or(default.max_pending_body_bytes),
            prefix_cache_scope: self.prefix_cache_scope,
            header_timeout: self.header_timeout.unwrap_or(default.header_timeout),
            body_timeout: self.body_timeout.unwrap_or(default.body_timeout),
            write_timeout: self.write_timeout.unwrap_or(default.write_timeout),
            max_reply_bytes: bytes(self.max_reply_memory).unwrap_or(default.max_reply_bytes),
            request_timeout: limit(self.request_timeout, default.request_timeout),
            drain_timeout: self.drain_timeout.unwrap_or(default.drain_timeout),
            watchdog_timeout: limit(self.watchdog_timeout, default.watchdog_timeout),
            ..default
        }
    }
}

/// A limit that 0 takes away.
fn limit(given: Option<Duration>, default: Option<Duration>) -> Option<Duration> {
    given.map_or(default, |given| (!given.is_zero()).then_some(given))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    let duration = Duration::try_from_secs_f64(number).ok();
    duration
        .filter(|_| number <= 1e9)
        .ok_or_else(|| format!("`{text}` is not a number of seconds from 0 to 1000000000"))
}

/// A key and a number, behind the last `=`: keys may have one of their own.
fn key_priority(text: &str) -> Result<(String, i32), String> {
    let (key, priority) = text.rsplit_once('=').unwrap_or((text, ""));
    let priority = priority.parse().ok().filter(|_| !key.is_empty());
    let priority = priority.ok_or_else(|| "it must be a key and a number, such as KEY=-1".to_owned())?;
    Ok((key.trim().to_owned(), priority))
}

/// A time in which something has to happen.
fn some_seconds(text: &str) -> Result<Duration, String> {
    let time = seconds(text)?;
    (!time.is_zero())
        .then_some(time)
        .ok_or_else(|| format!("it is {text}; it must be more than 0 seconds"))
}

fn prefix_cache_scope(text: &str) -> Result<PrefixCacheScope, String> {
    match text {
        "key" => Ok(PrefixCacheScope::Key),
        "all" => Ok(PrefixCacheScope::All),
        _ => Err("it must be key or all".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        limits: LimitFlags,
    }

    #[test]
    fn a_watchdog_of_no_seconds_is_none() {
        let watchdog = |arguments: &[&str]| {
            let line = Line::try_parse_from(["paceline"].iter().chain(arguments));
            line.unwrap().limits.config().watchdog_timeout
        };
        assert_eq!(watchdog(&[]), Some(Duration::from_mins(2)));
        assert_eq!(
            watchdog(&["--watchdog-timeout", "1.5"]),
            Some(Duration::from_millis(1500))
        );
        assert_eq!(watchdog(&["--watchdog-timeout", "0"]), None);
    }
}
