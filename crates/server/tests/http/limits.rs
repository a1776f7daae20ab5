//! Keys, limits, names of requests, web pages, encryption.

use crate::stalled::wait_until;
use crate::support::{TestServer, engine_config};
use paceline::EngineConfig;
use paceline_server::{ServerConfig, TlsConfig};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

fn long(stream: bool) -> Value {
    json!({ "prompt": "Once", "max_tokens": 400, "ignore_eos": true, "stream": stream })
}

#[tokio::test]
async fn a_key_opens_and_others_do_not() {
    let keys = vec!["alpha".to_owned(), "beta".to_owned()];
    let server = TestServer::configured(|config| config.api_keys = keys).await;
    for path in ["/health", "/ready", "/version", "/ping"] {
        assert_eq!(server.get(path).await.0, 200, "{path} is open");
    }
    let (status, reply) = server.get("/v1/models").await;
    assert_eq!(
        (status, &reply["error"]["code"]),
        (401, &"invalid_api_key".into())
    );
    let status = |key: &'static str| {
        let request = server
            .client
            .get(format!("{}/v1/models", server.base))
            .bearer_auth(key);
        async move { request.send().await.unwrap().status().as_u16() }
    };
    assert_eq!(
        (status("alpha").await, status("beta").await, status("gamma").await),
        (200, 200, 401)
    );
}

#[tokio::test]
async fn beyond_the_limit_clients_are_told_to_come_back() {
    let server = TestServer::configured(|config| config.max_concurrent_requests = Some(1)).await;
    let running = server.send("/v1/completions", &long(true)).await;
    let refused = server.send("/v1/completions", &long(false)).await;
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["retry-after"], "1");
    // Others go on.
    assert_eq!(server.get("/health").await.0, 200);
    drop(running);
    server.idle().await;
    let next = json!({ "prompt": "Once", "max_tokens": 1 });
    // The place is free when the server has noticed that the client is gone.
    for attempt in 0.. {
        match server.post("/v1/completions", &next).await.0 {
            200 => break,
            429 if attempt < 100 => tokio::time::sleep(Duration::from_millis(20)).await,
            status => panic!("{status}"),
        }
    }
}

#[tokio::test]
async fn each_key_has_its_own_limit() {
    let server = TestServer::configured(|config| {
        config.api_keys = vec!["alpha".to_owned(), "beta".to_owned()];
        config.max_requests_per_key = Some(1);
    })
    .await;
    let send = |key: &str, body: Value| {
        let request = server.client.post(format!("{}/v1/completions", server.base));
        let request = request.bearer_auth(key).json(&body);
        async move { request.send().await.unwrap() }
    };
    let running = send("alpha", long(true)).await;
    let short = json!({ "prompt": "Once", "max_tokens": 1 });
    assert_eq!(send("alpha", short.clone()).await.status(), 429);
    assert_eq!(send("beta", short).await.status(), 200);
    drop(running);
}

#[tokio::test]
async fn a_full_queue_is_told_apart_from_a_failure() {
    let engine = EngineConfig {
        max_num_seqs: 1,
        max_waiting: 1,
        ..engine_config()
    };
    let server = TestServer::with(ServerConfig::default(), engine).await;
    let first = server.send("/v1/completions", &long(true)).await;
    let second = server.send("/v1/completions", &long(true)).await;
    let third = server.send("/v1/completions", &long(true)).await;
    assert_eq!((first.status().as_u16(), second.status().as_u16()), (200, 200));
    assert_eq!(third.status(), 429);
    assert!(third.headers().contains_key("retry-after"));
}

#[tokio::test]
async fn clients_that_go_free_what_they_held_and_stop_their_tokens() {
    let server = TestServer::start().await;
    for stream in [true, false] {
        let before = server.engine.stats();
        let mut running = Vec::new();
        // More than there are slots, so that some are still waiting.
        for _ in 0..12 {
            let request = server
                .client
                .post(format!("{}/v1/completions", server.base))
                .json(&long(stream));
            running.push(tokio::spawn(async move {
                let response = request.send().await.unwrap();
                response.text().await
            }));
        }
        wait_until(&server, "asked by all", |stats| {
            stats.running + stats.waiting + (stats.finished - before.finished) as usize == 12
        })
        .await;
        for task in running {
            task.abort();
        }
        let tokens = server.idle().await.tokens - before.tokens;
        assert!(
            tokens < 12 * 400,
            "stream {stream}: {tokens} tokens for clients that have left"
        );
    }
    // Nothing but what the prefix cache keeps for later is in use, and that can be taken back.
    let (status, _) = server
        .post("/v1/completions", &json!({ "prompt": "Once", "max_tokens": 400 }))
        .await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn a_request_keeps_its_name_or_gets_one() {
    let server = TestServer::start().await;
    let request = server.client.get(format!("{}/health", server.base));
    let named = request
        .try_clone()
        .unwrap()
        .header("x-request-id", "mine-1")
        .send()
        .await
        .unwrap();
    assert_eq!(named.headers()["x-request-id"], "mine-1");
    let unnamed = request.send().await.unwrap();
    assert!(
        unnamed.headers()["x-request-id"]
            .to_str()
            .unwrap()
            .starts_with("req-")
    );
}

#[tokio::test]
async fn web_pages_are_let_in_only_where_allowed() {
    let closed = TestServer::start().await;
    let open = TestServer::configured(|config| {
        config.allowed_origins = vec!["https://page.example".to_owned()];
        config.api_keys = vec!["alpha".to_owned()];
    })
    .await;
    let ask = |server: &TestServer, origin: &'static str| {
        let request = server
            .client
            .request(reqwest::Method::OPTIONS, format!("{}/v1/models", server.base));
        let request = request
            .header("origin", origin)
            .header("access-control-request-method", "GET");
        async move {
            let reply = request.send().await.unwrap();
            reply.headers().get("access-control-allow-origin").cloned()
        }
    };
    // The headers that a page's client wants to send are allowed by name: no wildcard covers that of the key.
    let wanted = "authorization,content-type,x-stainless-os";
    let preflight = open
        .client
        .request(reqwest::Method::OPTIONS, format!("{}/v1/completions", open.base))
        .header("origin", "https://page.example")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", wanted);
    let reply = preflight.send().await.unwrap();
    assert_eq!(reply.headers()["access-control-allow-headers"], wanted);
    assert_eq!(ask(&closed, "https://page.example").await, None);
    assert!(ask(&open, "https://page.example").await.is_some());
    assert_eq!(ask(&open, "https://other.example").await, None);
}

#[tokio::test]
async fn a_request_timeout_ends_a_generation() {
    // It is over before a request has been read.
    let server =
        TestServer::configured(|config| config.request_timeout = Some(Duration::from_nanos(1))).await;
    let reply = server.ok("/v1/completions", &long(false)).await;
    assert_eq!(reply["choices"][0]["finish_reason"], "deadline");
}

#[tokio::test]
async fn connections_can_be_encrypted() {
    let (certificate, tls) = certificate();
    let server = TestServer::configured(|config| config.tls = Some(tls)).await;
    let socket = TcpStream::connect(server.address()).await.unwrap();
    let mut socket = encrypted(socket, &certificate).await;
    socket
        .write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut reply = String::new();
    socket.read_to_string(&mut reply).await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
}

#[test]
fn certificates_and_keys_that_do_not_fit_are_refused() {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    for (certificate, key) in [
        ("", key.as_str()),
        (certificate.as_str(), ""),
        (certificate.as_str(), "nonsense"),
    ] {
        assert!(TlsConfig::from_pem(certificate.as_bytes(), key.as_bytes()).is_err());
    }
}

/// A new certificate, and a server's use of it.
pub(crate) fn certificate() -> (String, TlsConfig) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let tls = TlsConfig::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap();
    (certificate, tls)
}

/// A connection over TLS by a client that trusts this certificate.
pub(crate) async fn encrypted(socket: TcpStream, certificate: &str) -> TlsStream<TcpStream> {
    use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
    use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap())
        .unwrap();
    let config = ClientConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    let name = ServerName::try_from("localhost").unwrap();
    connector.connect(name, socket).await.unwrap()
}
