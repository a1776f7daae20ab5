//! Requests that nobody sends by accident. Each gets an answer with a reason, and the server lives on.

use crate::support::{PATIENCE, TestServer, client};
use serde_json::json;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PATHS: [&str; 8] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
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
            b"{\"prompt\": \"\\ud800\", \"tokens\": \"\", \"messages\": 1, \"input\": 1}".to_vec(),
            b"{\"prompt\": \"x\"} trailing".to_vec(),
            b"{\"prompt\": 1e999, \"tokens\": [1e999], \"messages\": 1e999, \"input\": 1e999}".to_vec(),
            b"{\"prompt\": \"x\", \"prompt\": \"y\", \"tokens\": 1, \"messages\": 2, \"input\": 3}".to_vec(),
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
async fn a_hundred_megabytes_are_refused_without_being_kept() {
    const MEGABYTE: usize = 1 << 20;
    let server = TestServer::start().await;
    for path in PATHS {
        // Announced: refused before a byte of it has come.
        let mut socket = TcpStream::connect(server.address()).await.unwrap();
        let length = 100 * MEGABYTE;
        let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{{");
        socket.write_all(head.as_bytes()).await.unwrap();
        let reply = answer(&mut socket).await;
        assert!(reply.starts_with("HTTP/1.1 413"), "{path}: {reply}");
        // In chunks: refused when it has become too much, whoever goes on writing.
        let mut socket = TcpStream::connect(server.address()).await.unwrap();
        let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n");
        socket.write_all(head.as_bytes()).await.unwrap();
        let (mut reading, mut writing) = socket.into_split();
        let written = tokio::spawn(async move {
            let chunk = format!("{MEGABYTE:x}\r\n{}\r\n", " ".repeat(MEGABYTE));
            let mut written = 0;
            while written < 100 && writing.write_all(chunk.as_bytes()).await.is_ok() {
                written += 1;
            }
            written
        });
        let reply = answer(&mut reading).await;
        // The answer may be lost in the reset that stops such a client.
        assert!(
            reply.is_empty() || reply.starts_with("HTTP/1.1 413"),
            "{path}: {reply}"
        );
        drop(reading);
        assert!(written.await.unwrap() < 100, "{path}: all of it was taken");
    }
    assert_eq!(server.get("/health").await.0, 200);
}

#[tokio::test]
async fn bytes_that_trickle_in_cost_connections_and_no_more() {
    let server = impatient(500).await;
    let post = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 10000\r\n\r\n";
    let mut slow = Vec::new();
    for number in 0..100 {
        let address = server.address().to_owned();
        slow.push(tokio::spawn(async move {
            let mut socket = TcpStream::connect(address).await.unwrap();
            let start = if number % 2 == 0 {
                "GET /health HTTP/1.1\r\nx: "
            } else {
                post
            };
            socket.write_all(start.as_bytes()).await.unwrap();
            let (mut reading, mut writing) = socket.into_split();
            let trickle = async move {
                while writing.write_all(b" ").await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            };
            let trickle = tokio::spawn(trickle);
            let reply = answer(&mut reading).await;
            trickle.abort();
            (number, reply)
        }));
    }
    for _ in 0..10 {
        let body = json!({ "prompt": "x", "max_tokens": 1 });
        assert_eq!(server.post("/v1/completions", &body).await.0, 200);
    }
    for task in slow {
        let (number, reply) = task.await.unwrap();
        if number % 2 == 1 {
            assert!(reply.starts_with("HTTP/1.1 408"), "{reply}");
        }
    }
    assert_eq!(server.get("/health").await.0, 200);
}

#[tokio::test]
async fn heads_that_contradict_themselves_are_refused() {
    let server = TestServer::start().await;
    let many = "x: y\r\n".repeat(2000);
    for head in [
        b"content-length: -1\r\n".to_vec(),
        b"content-length: 99999999999999999999999\r\n".to_vec(),
        b"content-length: 5\r\ncontent-length: 6\r\n".to_vec(),
        b"transfer-encoding: gzip\r\n".to_vec(),
        b"content-length: 2\r\nbroken header\r\n".to_vec(),
        b"content-length: 2\r\nx: a\x00b\r\n".to_vec(),
        b"content-length: 2\r\n\xff\xfe: a\r\n".to_vec(),
        many.into_bytes(),
    ] {
        let shown = String::from_utf8_lossy(&head[..head.len().min(60)]).into_owned();
        let mut socket = TcpStream::connect(server.address()).await.unwrap();
        let start = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n".to_vec();
        let _ = socket
            .write_all(&[start, head, b"\r\n{}".to_vec()].concat())
            .await;
        let _ = socket.shutdown().await;
        let reply = answer(&mut socket).await;
        assert!(
            reply.is_empty() || reply.starts_with("HTTP/1.1 4"),
            "{shown}: {reply}"
        );
    }
    // A chunk that says it is larger than anything.
    let mut socket = TcpStream::connect(server.address()).await.unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    let body = "ffffffffffffffffff\r\n{}\r\n0\r\n\r\n";
    socket
        .write_all(format!("{head}{body}").as_bytes())
        .await
        .unwrap();
    assert!(answer(&mut socket).await.starts_with("HTTP/1.1 400"));
    assert_eq!(server.get("/health").await.0, 200);
}

#[tokio::test]
async fn paths_and_names_may_be_anything() {
    let server = TestServer::start().await;
    let long = format!("/v1/models/{}", "a".repeat(20_000));
    for path in [
        "/v1/models/%00",
        "/v1/models/%ff%fe",
        "/v1/models/..%2f..%2fetc%2fpasswd",
        "/../../etc/passwd",
        "//",
        "/%",
        "/v1/completions/",
        "/v1/models/{*name}",
        &long,
    ] {
        let mut socket = TcpStream::connect(server.address()).await.unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\nx-request-id: \u{80}\r\n\r\n");
        let _ = socket.write_all(head.as_bytes()).await;
        let reply = answer(&mut socket).await;
        assert!(reply.starts_with("HTTP/1.1 4"), "{path}: {reply}");
    }
    assert_eq!(server.get("/health").await.0, 200);
}

#[tokio::test]
async fn headers_that_do_not_end_cost_a_connection_and_no_more() {
    let server = impatient(300).await;
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

/// A server that waits this many milliseconds for a client.
async fn impatient(milliseconds: u64) -> TestServer {
    let time = Duration::from_millis(milliseconds);
    let mut server = TestServer::configured(|config| {
        config.header_timeout = time;
        config.body_timeout = time;
    })
    .await;
    // It closes idle connections as quickly, perhaps just when a client wants to use one again.
    let client = client().pool_max_idle_per_host(0);
    server.client = client.build().unwrap();
    server
}

/// What the server says until it closes or goes quiet after a reply.
async fn answer(socket: &mut (impl AsyncRead + Unpin)) -> String {
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
