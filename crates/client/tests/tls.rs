//! Connections over TLS.

#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

use paceline_client::{Client, ClientError};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

const REPLY: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 12\r\nconnection: close\r\n\r\n{\"data\": []}";

/// A server with a certificate of its own; returns its address and the certificate.
async fn serve() -> (String, String) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (pem, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let chain = vec![CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            // A client that does not trust the certificate leaves here.
            let Ok(mut stream) = acceptor.accept(socket).await else {
                continue;
            };
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(REPLY).await;
            let _ = stream.shutdown().await;
        }
    });
    (format!("https://localhost:{port}"), pem)
}

#[tokio::test]
async fn a_certificate_is_trusted_if_it_was_given_and_only_then() {
    let (url, pem) = serve().await;
    let trusting = Client::new(&url, None, Some(pem.as_bytes())).unwrap();
    assert_eq!(
        trusting.get("/v1/models").await.unwrap()["data"],
        serde_json::json!([])
    );
    let usual = Client::new(&url, None, None).unwrap();
    let error = usual.get("/v1/models").await.unwrap_err();
    assert!(matches!(error, ClientError::Connect { .. }), "{error}");
    assert!(error.to_string().contains("certificate"), "{error}");
}

#[test]
fn files_without_certificates_are_refused() {
    for (pem, part) in [
        ("", "there is none"),
        (
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "certificates: ",
        ),
    ] {
        let error = Client::new("https://localhost", None, Some(pem.as_bytes())).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
}
