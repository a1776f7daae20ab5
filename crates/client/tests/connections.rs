//! Servers that treat connections as they like.

#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

use paceline_client::Client;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const REPLY: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";

#[tokio::test]
async fn a_server_that_closes_a_connection_it_promised_to_keep_fails_no_request() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut request = [0; 4096];
                let _ = socket.read(&mut request).await;
                let _ = socket.write_all(REPLY).await;
                // Closed the moment a second request comes.
                let _ = socket.read(&mut request).await;
            });
        }
    });
    let client = Client::new(&url, None, None).unwrap();
    for _ in 0..8 {
        client.get("/v1/models").await.unwrap();
    }
}
