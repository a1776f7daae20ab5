//! Bytes that are sent to a fixed address, such as a collector's.

use crate::error::ClientError;
use crate::http::{builder, check, innermost};
use reqwest::Url;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use std::time::Duration;

/// Posts to one address. Over TLS it trusts the usual authorities. Nothing is retried.
#[derive(Clone, Debug)]
pub struct Poster {
    http: reqwest::Client,
    url: Url,
}

impl Poster {
    /// Sends these headers along; `timeout` is for a whole exchange. Nothing is sent yet.
    pub fn new(url: &str, headers: &[(String, String)], timeout: Duration) -> Result<Self, ClientError> {
        let refuse = |reason: String| ClientError::Address {
            url: url.to_owned(),
            reason,
        };
        let parsed = Url::parse(url).map_err(|error| refuse(error.to_string()))?;
        if !matches!(parsed.scheme(), "http" | "https") {
            return Err(refuse("only http and https are known".to_owned()));
        }
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| ClientError::Key)?;
            let mut value = HeaderValue::from_str(value).map_err(|_| ClientError::Key)?;
            // Keys of collectors are among them.
            value.set_sensitive(true);
            map.insert(name, value);
        }
        let roots = webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect();
        let http = builder(map, roots)?.timeout(timeout).build();
        Ok(Self {
            http: http.map_err(|error| refuse(innermost(&error)))?,
            url: parsed,
        })
    }

    /// Sends a body of this type; what comes back is left unread.
    pub async fn post(&self, kind: &'static str, body: Vec<u8>) -> Result<(), ClientError> {
        let request = self.http.post(self.url.clone());
        let request = request.header(CONTENT_TYPE, kind).body(body);
        check(request, self.url.as_str()).await.map(drop)
    }
}
