//! Requests over HTTP.

use crate::address::Address;
use crate::error::ClientError;
use crate::events::EventStream;
use crate::openai::{Endpoint, Reply};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Response};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::{self, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

/// Longest time to wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of an answer that is no stream.
const LONGEST_BODY: usize = 8 << 20;
/// Most bytes read of an answer that is an error.
const LONGEST_ERROR: usize = 64 << 10;

type Connector = HttpsConnector<HttpConnector>;

/// A server at an address, asked with a key if there is one. Every request has a connection of its own.
#[derive(Clone, Debug)]
pub struct Client {
    http: legacy::Client<Connector, Full<Bytes>>,
    address: Address,
    authorization: Option<HeaderValue>,
}

impl Client {
    /// A client of the server at `url`, which may end in `/v1` or not. Over TLS it trusts the usual authorities, or
    /// the `certificates` (PEM) in their place. Nothing is sent yet.
    pub fn new(url: &str, key: Option<&str>, certificates: Option<&[u8]>) -> Result<Self, ClientError> {
        let address = Address::new(url)?;
        let authorization = key.map(bearer).transpose()?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let builder = HttpsConnectorBuilder::new();
        let connector = match certificates {
            Some(pem) => builder.with_tls_config(trusting(pem)?),
            None => builder.with_webpki_roots(),
        };
        let connector = connector.https_or_http().enable_http1().wrap_connector(tcp);
        // A server may close a connection between two requests; who sends the second one at that moment cannot tell
        // this from a failure. So nothing is kept.
        let http = legacy::Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(0)
            .build(connector);
        Ok(Self {
            http,
            address,
            authorization,
        })
    }

    /// The address, without `/v1`.
    pub fn root(&self) -> &str {
        self.address.root()
    }

    /// The JSON at a path such as `/v1/models`.
    pub async fn get(&self, path: &str) -> Result<Value, ClientError> {
        let response = self.send(Method::GET, path, None).await?;
        let body = Limited::new(response.into_body(), LONGEST_BODY).collect().await;
        let body = body.map_err(|error| ClientError::Broken {
            reason: error.to_string(),
        })?;
        serde_json::from_slice(&body.to_bytes())
            .map_err(|error| ClientError::protocol(format!("{path}: {error}")))
    }

    /// Asks for an answer that comes in pieces. The body must say `"stream": true`.
    pub async fn stream(&self, endpoint: Endpoint, body: &Value) -> Result<Reply, ClientError> {
        let body = Bytes::from(body.to_string());
        let response = self.send(Method::POST, endpoint.path(), Some(body)).await?;
        let kind = response.headers().get(CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or("none");
        if !kind.starts_with("text/event-stream") {
            let reason = format!("its type is {kind}, not text/event-stream; the server does not stream");
            return Err(ClientError::Protocol { reason });
        }
        Ok(Reply::new(EventStream::new(response.into_body())))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
    ) -> Result<Response<Incoming>, ClientError> {
        let mut request = Request::builder()
            .method(method)
            .uri(self.address.of(path))
            .header(USER_AGENT, concat!("paceline/", env!("CARGO_PKG_VERSION")))
            .header(ACCEPT, "application/json, text/event-stream");
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request
            .body(Full::new(body.unwrap_or_default()))
            .map_err(|error| ClientError::protocol(error.to_string()))?;
        let response = self.http.request(request).await;
        let response = response.map_err(|error| self.explain(&error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(refusal(response).await)
    }

    fn explain(&self, error: &legacy::Error) -> ClientError {
        let reason = innermost(error);
        if error.is_connect() {
            let url = self.root().to_owned();
            return ClientError::Connect { url, reason };
        }
        ClientError::Broken { reason }
    }
}

/// Trust in these certificates and no others.
fn trusting(pem: &[u8]) -> Result<ClientConfig, ClientError> {
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
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| refuse(error.to_string()))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// The header with a key. Logs do not show it.
fn bearer(key: &str) -> Result<HeaderValue, ClientError> {
    let mut value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| ClientError::Key)?;
    value.set_sensitive(true);
    Ok(value)
}

/// What the server says of a status that is no success.
async fn refusal(response: Response<Incoming>) -> ClientError {
    let status = response.status();
    let body = Limited::new(response.into_body(), LONGEST_ERROR).collect().await;
    let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
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
