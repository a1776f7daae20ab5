//! What the server allows and how long it waits.

use crate::traces::TraceConfig;
use paceline_types::Pooling;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio_rustls::rustls;

/// Options of a server. The defaults suit a machine that a few people share.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Keys that open it; none: it is open to every client that can connect.
    pub api_keys: Vec<String>,
    /// Origins whose web pages may use it; `*` is all. None: no web page may.
    pub allowed_origins: Vec<String>,
    /// Show the page at `/`.
    pub page: bool,
    /// Continuations (prompts × `n`) at a time over all clients, running or waiting; more get 429. `None` leaves it to the
    /// engine's queue.
    pub max_concurrent_requests: Option<usize>,
    /// The same for each key. `None`: as much as the engine takes, or half of it where there is more than one key.
    pub max_requests_per_key: Option<usize>,
    /// The lowest number that requests may give as their `priority`; lower comes first. With the default, 0, they can
    /// put themselves behind others and not before them.
    pub min_priority: i32,
    /// The same for single keys, by the key.
    pub key_min_priority: HashMap<String, i32>,
    /// Refuse requests with fields that their endpoint does not know; otherwise a header of the reply names them.
    pub strict_requests: bool,
    /// Which requests share cached prefixes.
    pub prefix_cache_scope: PrefixCacheScope,
    /// Connections at a time; more wait for one to end, or for one whose client takes nothing of its reply to be cut.
    pub max_connections: usize,
    /// Of these, connections from one address (of IPv6: from one network of 64 bits); more get 503. 0 sets no limit. `None`:
    /// half of them, and no limit for this machine's own addresses, where a proxy or a load test may be.
    pub max_connections_per_address: Option<usize>,
    /// Bytes of a request's body.
    pub max_body_bytes: usize,
    /// Bytes of all bodies that are being read or prepared, beyond the first 64 KiB of each; more get 503. One body of
    /// the largest size is always possible.
    pub max_pending_body_bytes: usize,
    /// Bytes of a request's headers.
    pub max_header_bytes: usize,
    /// Time for a request's headers to arrive, and for a connection to stay open without one.
    pub header_timeout: Duration,
    /// Time for a request's body to arrive.
    pub body_timeout: Duration,
    /// Time that a reply may wait for a client that takes nothing of it; then the connection is cut.
    pub write_timeout: Duration,
    /// Bytes of whole replies that may wait for their readers, over all connections; one more gets 503.
    pub max_reply_bytes: usize,
    /// Time for a generation from its arrival to its end; what is there by then is the reply. At most
    /// [`MAX_DEADLINE`](paceline::MAX_DEADLINE) counts; `None` sets no limit.
    pub request_timeout: Option<Duration>,
    /// Time that running generations have to finish when the server goes down.
    pub drain_timeout: Duration,
    /// Time without a step, although there is work, after which the engine counts as stuck. `None`: it is not watched.
    pub watchdog_timeout: Option<Duration>,
    /// How texts become vectors where a request does not say.
    pub pooling: Pooling,
    /// Where routers are told what the prefix cache holds, if anywhere; `/v1/engine` says so.
    pub kv_events: Option<KvEventsAddress>,
    /// Certificate and key, if connections are to be encrypted.
    pub tls: Option<TlsConfig>,
    /// Where spans of requests go, if there are to be any.
    pub traces: Option<TraceConfig>,
}

/// Where changes of the prefix cache are published.
#[derive(Clone, Debug)]
pub struct KvEventsAddress {
    /// Where subscribers connect.
    pub endpoint: SocketAddr,
    /// Where they ask for what they missed.
    pub replay_endpoint: Option<SocketAddr>,
    /// The first frame of every message.
    pub topic: String,
}

/// Which requests share cached prefixes. A request's `cache_salt` separates further.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefixCacheScope {
    /// Those with the same key, so that no client can find out what others sent.
    #[default]
    Key,
    /// All of them.
    All,
}

/// What an encrypted server shows to its clients.
#[derive(Clone)]
pub struct TlsConfig(pub(crate) std::sync::Arc<rustls::ServerConfig>);

impl std::fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsConfig")
    }
}

impl TlsConfig {
    /// From the contents of PEM files: a chain of certificates and the key of the first.
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        use rustls::pki_types::pem::PemObject;
        use rustls::pki_types::{CertificateDer, PrivateKeyDer};
        let chain: Vec<_> = CertificateDer::pem_slice_iter(certificates)
            .collect::<Result<_, _>>()
            .map_err(|error| TlsError::Certificates(error.to_string()))?;
        if chain.is_empty() {
            return Err(TlsError::Certificates("there is none".to_owned()));
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| TlsError::Key(error.to_string()))?;
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
            .map_err(|error| TlsError::Pair(error.to_string()))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(std::sync::Arc::new(config)))
    }
}

/// Certificates and keys that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// Of the file with certificates.
    #[error("certificates: {0}")]
    Certificates(String),
    /// Of the file with the key.
    #[error("key: {0}")]
    Key(String),
    /// Of both together.
    #[error("certificate and key: {0}")]
    Pair(String),
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            api_keys: Vec::new(),
            allowed_origins: Vec::new(),
            page: true,
            max_concurrent_requests: None,
            max_requests_per_key: None,
            min_priority: 0,
            key_min_priority: HashMap::new(),
            strict_requests: false,
            prefix_cache_scope: PrefixCacheScope::Key,
            max_connections: 1024,
            max_connections_per_address: None,
            max_body_bytes: 16 << 20,
            max_pending_body_bytes: 64 << 20,
            max_header_bytes: 64 << 10,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_mins(1),
            write_timeout: Duration::from_secs(30),
            max_reply_bytes: 512 << 20,
            request_timeout: Some(Duration::from_mins(10)),
            drain_timeout: Duration::from_secs(30),
            watchdog_timeout: Some(Duration::from_mins(2)),
            pooling: Pooling::Mean,
            kv_events: None,
            tls: None,
            traces: None,
        }
    }
}
