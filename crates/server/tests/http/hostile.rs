//! Requests that nobody sends by accident. Each gets an answer with a reason, and the server lives on.

use crate::support::{PATIENCE, TestServer};
use serde_json::json;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PATHS: [&str; 4] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/tokenize",
    "/detokenize",
];

#[tokio::test]
async fn bodies_that_are_no_requests_are_refused_with_a_reason() {
    let server = TestServer::start().await;
    let deep = |open: &str, close: &str| {
        format!(r#"{{"prompt": {}{}}}"#, open.repeat(50_000), close.repeat(50_000)).into_bytes()
    };
    for path in PATHS {
        for body in [
            b"".to_vec(),
            b"{".to_vec(),
            b"null".to_vec(),
            b"[]".to_vec(),
            b"[1, 2, 3]".to_vec(),
            b"\"text\"".to_vec(),
            b"{\"prompt\": \"\xff\xfe\"}".to_vec(),
            b"{\"prompt\": \"\\ud800\", \"tokens\": \"\", \"messages\": 1}".to_vec(),
            b"{\"prompt\": \"x\"} trailing".to_vec(),
            b"{\"prompt\": 1e999, \"tokens\": [1e999], \"messages\": 1e999}".to_vec(),
            b"{\"prompt\": \"x\", \"prompt\": \"y\", \"tokens\": 1, \"messages\": 2}".to_vec(),
            vec![0; 1000],
            deep("[", "]"),
            deep("{\"a\":", "}"),
        ] {
            let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
            let (status, reply) = server.raw(path, body).await;
            assert_eq!(status, 400, "{path} {shown} gave {reply}");
            let message = reply["error"]["message"].as_str().unwrap();
            assert!(!message.is_empty() && message.len() < 3000, "{message}");
        }
    }
    assert_eq!(server.get("/health").await.0, 200);
}

#[tokio::test]
async fn absurd_numbers_are_refused_or_bounded() {
    let server = TestServer::start().await;
    for field in [
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "seed",
        "max_tokens",
        "min_tokens",
        "n",
        "best_of",
        "priority",
        "deadline_ms",
        "logprobs",
    ] {
        for number in [
            "-1",
            "0",
            "1e38",
            "-1e38",
            "1e308",
            "18446744073709551615",
            "-9223372036854775808",
            "0.1",
            "1e-400",
        ] {
            let body = format!(r#"{{"prompt": "x", "max_tokens": 2, "{field}": {number}}}"#);
            let body = body.replace(r#""max_tokens": 2, "max_tokens""#, r#""max_tokens""#);
            let (status, reply) = server.raw("/v1/completions", body.clone()).await;
            assert!(status == 200 || status == 400, "{body} gave {status} {reply}");
        }
    }
    server.idle().await;
    assert_eq!(server.get("/health").await.0, 200);
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let server = TestServer::configured(|config| config.max_body_bytes = 1000).await;
    let (status, reply) = server.raw("/v1/completions", vec![b' '; 1001]).await;
    assert_eq!(status, 413);
    assert!(reply["error"]["message"].as_str().unwrap().contains("1000"));
    // Without a length up front.
    let mut socket = TcpStream::connect(server.address()).await.unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    socket.write_all(head.as_bytes()).await.unwrap();
    socket
        .write_all(format!("7d0\r\n{}\r\n0\r\n\r\n", " ".repeat(2000)).as_bytes())
        .await
        .unwrap();
    assert!(answer(&mut socket).await.starts_with("HTTP/1.1 413"));
    assert_eq!(server.get("/health").await.0, 200);
}

#[tokio::test]
async fn headers_that_do_not_end_cost_a_connection_and_no_more() {
    let server = TestServer::configured(|config| config.header_timeout = Duration::from_millis(300)).await;
    let mut slow = TcpStream::connect(server.address()).await.unwrap();
    slow.write_all(b"GET /health HTTP/1.1\r\nx: ").await.unwrap();
    // A connection that never says anything.
    let mut silent = TcpStream::connect(server.address()).await.unwrap();
    assert_eq!(server.get("/health").await.0, 200);
    // Both are closed, with or without a word.
    answer(&mut slow).await;
    answer(&mut silent).await;
    assert_eq!(server.get("/health").await.0, 200);
}

#[tokio::test]
async fn headers_that_are_too_large_are_refused() {
    let server = TestServer::start().await;
    let mut socket = TcpStream::connect(server.address()).await.unwrap();
    let head = format!("GET /health HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(200_000));
    // The server may close before it has read all of it.
    let _ = socket.write_all(head.as_bytes()).await;
    let reply = answer(&mut socket).await;
    assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 431"), "{reply}");
    assert_eq!(server.get("/health").await.0, 200);
}

#[tokio::test]
async fn a_body_that_does_not_come_times_out() {
    let server = TestServer::configured(|config| config.body_timeout = Duration::from_millis(200)).await;
    let mut socket = TcpStream::connect(server.address()).await.unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{";
    socket.write_all(head.as_bytes()).await.unwrap();
    assert!(answer(&mut socket).await.starts_with("HTTP/1.1 408"));
}

#[tokio::test]
async fn noise_is_no_request() {
    let server = TestServer::start().await;
    for noise in [
        &b"\x16\x03\x01\x02\x00\x01\x00"[..],
        b"\0\0\0\0\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ] {
        let mut socket = TcpStream::connect(server.address()).await.unwrap();
        socket.write_all(noise).await.unwrap();
        socket.shutdown().await.unwrap();
        let reply = answer(&mut socket).await;
        assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 4"), "{reply}");
    }
    let (status, _) = server
        .post("/v1/completions", &json!({ "prompt": "x", "max_tokens": 1 }))
        .await;
    assert_eq!(status, 200);
}

/// What the server says until it closes or goes quiet after a reply.
async fn answer(socket: &mut TcpStream) -> String {
    let mut reply = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = tokio::time::timeout(PATIENCE, socket.read(&mut buffer))
            .await
            .unwrap();
        match read {
            Ok(0) | Err(_) => break,
            Ok(count) => reply.extend_from_slice(&buffer[..count]),
        }
        if reply.windows(4).any(|window| window == b"\r\n\r\n") {
            break;
        }
    }
    String::from_utf8_lossy(&reply).into_owned()
}
