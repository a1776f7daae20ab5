//! Requests over HTTP.

use crate::address::Address;
use crate::error::ClientError;
use crate::events::EventStream;
use crate::openai::{Endpoint, Reply};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{RequestBuilder, Response};
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

/// Longest time to wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of an answer that is no stream.
const LONGEST_BODY: usize = 8 << 20;
/// Most bytes read of an answer that is an error.
const LONGEST_ERROR: usize = 64 << 10;

/// A server at an address, asked with a key if there is one. Every request has a connection of its own.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    address: Address,
}

impl Client {
    /// A client of the server at `url`, which may end in `/v1` or not. Over TLS it trusts the usual authorities, or
    /// the `certificates` (PEM) in their place. Nothing is sent yet.
    pub fn new(url: &str, key: Option<&str>, certificates: Option<&[u8]>) -> Result<Self, ClientError> {
        let address = Address::new(url)?;
        let mut headers = HeaderMap::new();
        headers.insert(
            ACCEPT,
            HeaderValue::from_static("application/json, text/event-stream"),
        );
        if let Some(key) = key {
            headers.insert(AUTHORIZATION, bearer(key)?);
        }
        let roots = match certificates {
            Some(pem) => given_roots(pem)?,
            None => webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect(),
        };
        let http = builder(headers, roots)?
            // A server may close a connection between two requests; a client that sends the second one at that
            // moment cannot tell this from a failure. So nothing is kept.
            .pool_max_idle_per_host(0)
            .build()
            .map_err(|error| ClientError::Certificates {
                reason: innermost(&error),
            })?;
        Ok(Self { http, address })
    }

    /// The address, without `/v1`.
    pub fn root(&self) -> &str {
        self.address.root()
    }

    /// The JSON at a path such as `/v1/models`.
    pub async fn get(&self, path: &str) -> Result<Value, ClientError> {
        let response = self.send(self.http.get(self.address.of(path))).await?;
        let (body, whole) = read(response, LONGEST_BODY).await?;
        if !whole {
            let reason = format!("{path}: it has more than {LONGEST_BODY} bytes");
            return Err(ClientError::Protocol { reason });
        }
        serde_json::from_slice(&body).map_err(|error| ClientError::protocol(format!("{path}: {error}")))
    }

    /// Asks for an answer that comes in pieces. The body must say `"stream": true`.
    pub async fn stream(&self, endpoint: Endpoint, body: &Value) -> Result<Reply, ClientError> {
        let request = self.http.post(self.address.of(endpoint.path()));
        let request = request.header(CONTENT_TYPE, "application/json");
        let response = self.send(request.body(body.to_string())).await?;
        let kind = response.headers().get(CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or("none");
        if !kind.starts_with("text/event-stream") {
            let reason = format!("its type is {kind}, not text/event-stream; the server does not stream");
            return Err(ClientError::Protocol { reason });
        }
        Ok(Reply::new(EventStream::new(response)))
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, ClientError> {
        check(request, self.root()).await
    }
}

/// What all clients have in common: they ask the address that was given and trust these authorities.
pub(crate) fn builder(
    headers: HeaderMap,
    roots: RootCertStore,
) -> Result<reqwest::ClientBuilder, ClientError> {
    Ok(reqwest::Client::builder()
        .user_agent(concat!("paceline/", env!("CARGO_PKG_VERSION")))
        .default_headers(headers)
        .connect_timeout(CONNECT_TIMEOUT)
        .tls_backend_preconfigured(trusting(roots)?)
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none()))
}

/// Sends a request to the server at `url`, which must accept it.
pub(crate) async fn check(request: RequestBuilder, url: &str) -> Result<Response, ClientError> {
    let response = request.send().await.map_err(|error| {
        let reason = innermost(&error);
        if error.is_connect() {
            let url = url.to_owned();
            return ClientError::Connect { url, reason };
        }
        ClientError::Broken { reason }
    })?;
    if response.status().is_success() {
        return Ok(response);
    }
    Err(refusal(response).await)
}

/// The certificates of a file.
fn given_roots(pem: &[u8]) -> Result<RootCertStore, ClientError> {
    let refuse = |reason: String| ClientError::Certificates { reason };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| refuse(error.to_string()))?;
        let added = roots.add(certificate);
        added.map_err(|error| refuse(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(refuse("there is none".to_owned()));
    }
    Ok(roots)
}

/// Trust in these authorities and no others.
fn trusting(roots: RootCertStore) -> Result<ClientConfig, ClientError> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| ClientError::Certificates {
            reason: error.to_string(),
        })?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// A body, or its first `most` bytes; and whether that is all of it.
async fn read(mut response: Response, most: usize) -> Result<(Vec<u8>, bool), ClientError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| broken(&error))? {
        let room = most - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if chunk.len() > room {
            return Ok((body, false));
        }
    }
    Ok((body, true))
}

/// A connection that ended before the answer did.
pub(crate) fn broken(error: &reqwest::Error) -> ClientError {
    ClientError::Broken {
        reason: innermost(error),
    }
}

/// The header with a key. Logs do not show it.
fn bearer(key: &str) -> Result<HeaderValue, ClientError> {
    let mut value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| ClientError::Key)?;
    value.set_sensitive(true);
    Ok(value)
}

/// What the server says of a status that is no success.
async fn refusal(response: Response) -> ClientError {
    let status = response.status();
    let (body, _) = read(response, LONGEST_ERROR).await.unwrap_or_default();
    let message = serde_json::from_slice::<Value>(&body)
        .ok()
        .and_then(|body| error_message(&body))
        .unwrap_or_else(|| plain(&body, status.canonical_reason().unwrap_or("no reason given")));
    ClientError::Status {
        status: status.as_u16(),
        message,
    }
}

/// The message in an error object, in the places where servers put it.
pub(crate) fn error_message(body: &Value) -> Option<String> {
    let places = [
        &body["error"]["message"],
        &body["message"],
        &body["error"],
        &body["detail"],
    ];
    places.iter().find_map(|place| place.as_str()).map(str::to_owned)
}

/// The start of a body that is no JSON, or what is said where there is none.
fn plain(body: &[u8], otherwise: &str) -> String {
    let text = String::from_utf8_lossy(body);
    let text = text.trim();
    if text.is_empty() || text.starts_with('<') {
        return otherwise.to_owned();
    }
    text.chars().take(200).collect()
}

/// The cause at the bottom: what is above it says only that there was an error.
pub(crate) fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(below) = cause.source() {
        cause = below;
    }
    cause.to_string()
}
