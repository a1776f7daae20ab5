//! What can go wrong between a client and a server.

use thiserror::Error;

/// Why a request did not get its answer.
#[derive(Clone, Debug, Error)]
pub enum ClientError {
    /// The address makes no sense.
    #[error("`{url}` is not the address of a server: {reason}; it looks like http://127.0.0.1:8000")]
    Address {
        /// The address as it was given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The key cannot be sent.
    #[error("the API key has characters that cannot be sent in a header")]
    Key,
    /// Certificates that cannot be trusted because they make no sense.
    #[error("certificates: {reason}")]
    Certificates {
        /// What is wrong with them.
        reason: String,
    },
    /// No server accepts a connection there.
    #[error("cannot connect to {url}: {reason}")]
    Connect {
        /// The address of the server.
        url: String,
        /// What the system says.
        reason: String,
    },
    /// The server refused.
    #[error("the server answered {status}: {message}")]
    Status {
        /// The HTTP status.
        status: u16,
        /// What the server says of it.
        message: String,
    },
    /// The connection ended before the answer did.
    #[error("the answer broke off: {reason}")]
    Broken {
        /// What the connection reports.
        reason: String,
    },
    /// The server said in the middle of an answer that it failed.
    #[error("the server failed: {message}")]
    Failed {
        /// In its words.
        message: String,
    },
    /// What came is not what the interface promises.
    #[error("the answer makes no sense: {reason}")]
    Protocol {
        /// What is wrong with it.
        reason: String,
    },
}

impl ClientError {
    pub(crate) fn protocol(reason: impl Into<String>) -> Self {
        Self::Protocol {
            reason: reason.into(),
        }
    }

    /// One word for counting: `connection`, `HTTP 429`, `broken stream`...
    pub fn kind(&self) -> String {
        match self {
            Self::Address { .. } => "address".to_owned(),
            Self::Certificates { .. } => "certificates".to_owned(),
            Self::Key => "key".to_owned(),
            Self::Connect { .. } => "connection".to_owned(),
            Self::Status { status, .. } => format!("HTTP {status}"),
            Self::Broken { .. } => "broken stream".to_owned(),
            Self::Failed { .. } => "failed stream".to_owned(),
            Self::Protocol { .. } => "bad reply".to_owned(),
        }
    }
}
