//! Clients that ask and do not read, and clients that leave: what they cost, and when it ends.

use crate::limits::{certificate, encrypted};
use crate::support::{PATIENCE, TestServer, engine_config, frames, leave_streams, with};
use paceline::Stats;
use paceline_server::ServerConfig;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// Tokens of a stream, which is far more text than sockets of [`cramped`] hold.
const TOKENS: u64 = 400;

/// A time that no test waits for.
const AGES: Duration = Duration::from_mins(10);

/// A server whose sockets hold next to nothing, so that a client that does not read is noticed soon.
fn cramped(change: impl FnOnce(&mut ServerConfig)) -> TestServer {
    let mut config = ServerConfig {
        write_timeout: AGES,
        drain_timeout: AGES,
        ..ServerConfig::default()
    };
    change(&mut config);
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_send_buffer_size(4 << 10).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    TestServer::on(socket.listen(64).unwrap(), config, engine_config())
}

/// A client that takes as little as the system lets it.
async fn reluctant(server: &TestServer) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 << 10).unwrap();
    socket.connect(server.address().parse().unwrap()).await.unwrap()
}

/// Sends a request for a text and reads nothing.
async fn ask(server: &TestServer, body: &Value) -> TcpStream {
    let mut socket = reluctant(server).await;
    let body = body.to_string();
    let length = body.len();
    let head = format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
    socket.write_all((head + &body).as_bytes()).await.unwrap();
    socket
}

fn text(tokens: u64) -> Value {
    json!({ "prompt": "Once", "max_tokens": tokens, "ignore_eos": true, "stream": true, "logprobs": 2 })
}

/// Waits for the engine's numbers to be as described.
pub(crate) async fn wait_until(server: &TestServer, what: &str, holds: impl Fn(&Stats) -> bool) -> Stats {
    let start = Instant::now();
    loop {
        let stats = server.engine.stats();
        if holds(&stats) {
            return stats;
        }
        assert!(start.elapsed() < PATIENCE, "never {what}: {stats:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A number of `/metrics`.
async fn metric(server: &TestServer, name: &str) -> f64 {
    let reply = server.client.get(format!("{}/metrics", server.base)).send().await;
    let text = reply.unwrap().text().await.unwrap();
    let line = text.lines().find(|line| line.starts_with(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[tokio::test]
async fn an_ended_request_gives_its_place_back_although_nobody_reads_it() {
    let server = cramped(|config| config.max_concurrent_requests = Some(2));
    let unread = [
        ask(&server, &text(TOKENS)).await,
        ask(&server, &text(TOKENS)).await,
    ];
    wait_until(&server, "done", |stats| stats.finished == 2).await;
    let reply = server
        .ok("/v1/completions", &json!({ "prompt": "Once", "max_tokens": 1 }))
        .await;
    assert_eq!(reply["usage"]["completion_tokens"], 1);
    // Nothing was lost meanwhile.
    for mut socket in unread {
        let mut reply = Vec::new();
        while !reply.ends_with(b"0\r\n\r\n") {
            let mut some = [0; 4096];
            let read = tokio::time::timeout(PATIENCE, socket.read(&mut some))
                .await
                .unwrap();
            reply.extend_from_slice(&some[..read.unwrap()]);
        }
        assert_eq!(tokens_in(&String::from_utf8(reply).unwrap()), TOKENS as usize);
    }
}

/// Tokens of a streamed completion, by its log-probabilities.
fn tokens_in(reply: &str) -> usize {
    let chunks = frames(reply).into_iter().filter(|frame| frame != "[DONE]");
    let chunks = chunks.map(|frame| serde_json::from_str::<Value>(&frame).unwrap());
    let tokens = chunks.map(|chunk| {
        chunk["choices"][0]["logprobs"]["tokens"]
            .as_array()
            .map_or(0, Vec::len)
    });
    tokens.sum()
}

#[tokio::test]
async fn clients_that_ask_and_never_read_do_not_lock_others_out() {
    let server = cramped(|config| {
        config.max_connections = 4;
        config.write_timeout = Duration::from_millis(300);
    });
    let mut unread = Vec::new();
    for _ in 0..4 {
        let mut socket = reluctant(&server).await;
        let requests = "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n".repeat(300);
        socket.write_all(requests.as_bytes()).await.unwrap();
        unread.push(socket);
    }
    assert_eq!(server.get("/health").await.0, 200);
    let start = Instant::now();
    while metric(&server, "paceline:cut_connections_total").await < 4.0 {
        assert!(start.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn those_that_take_nothing_give_way_long_before_they_are_cut_for_it() {
    let server = cramped(|config| config.max_connections = 4);
    let mut unread = Vec::new();
    for _ in 0..4 {
        let mut socket = reluctant(&server).await;
        let requests = "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n".repeat(300);
        socket.write_all(requests.as_bytes()).await.unwrap();
        unread.push(socket);
    }
    // One place is enough, so the others stay.
    assert!(metric(&server, "paceline:cut_connections_total").await <= 1.0);
    assert_eq!(metric(&server, "paceline:open_connections").await as u64, 4);
}

#[tokio::test]
async fn those_of_an_address_with_most_places_leave_with_their_next_reply() {
    let server = cramped(|config| config.max_connections = 4);
    let mut busy = Vec::new();
    for _ in 0..4 {
        busy.push(connect_from(&server, "127.0.0.2").await.0);
    }
    // They go on asking, and read what they get.
    let asking: Vec<_> = busy
        .into_iter()
        .map(|mut socket| {
            tokio::spawn(async move {
                let request = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n";
                let (mut reply, mut answers) = (vec![0; 1000], 0);
                while socket.write_all(request).await.is_ok() {
                    match socket.read(&mut reply).await {
                        Ok(1..) => answers += 1,
                        _ => break,
                    }
                }
                answers
            })
        })
        .collect();
    let (_other, reply) = connect_from(&server, "127.0.0.1").await;
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    for asking in asking {
        let answers = tokio::time::timeout(PATIENCE, asking).await.unwrap().unwrap();
        assert!(answers > 0);
    }
}

/// A connection from one of this machine's addresses, on which a request has been answered.
async fn connect_from(server: &TestServer, address: &str) -> (TcpStream, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{address}:0").parse().unwrap()).unwrap();
    let mut socket = socket.connect(server.address().parse().unwrap()).await.unwrap();
    let request = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut reply = vec![0; 1000];
    // One that is refused may be closed before it has been sent.
    let _ = socket.write_all(request).await;
    let read = tokio::time::timeout(PATIENCE, socket.read(&mut reply)).await;
    reply.truncate(read.unwrap().unwrap_or_default());
    (socket, String::from_utf8(reply).unwrap())
}

#[tokio::test]
async fn one_address_leaves_places_to_others() {
    let server = cramped(|config| config.max_connections_per_address = Some(2));
    let mut open = Vec::new();
    for _ in 0..2 {
        let (socket, reply) = connect_from(&server, "127.0.0.1").await;
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
        open.push(socket);
    }
    let (_, refused) = connect_from(&server, "127.0.0.1").await;
    assert!(
        refused.is_empty() || refused.starts_with("HTTP/1.1 503"),
        "{refused}"
    );
    let (_other, reply) = connect_from(&server, "127.0.0.2").await;
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    // A connection that ends leaves its place to the next of its address.
    open.pop();
    let start = Instant::now();
    while !connect_from(&server, "127.0.0.1")
        .await
        .1
        .starts_with("HTTP/1.1 200")
    {
        assert!(start.elapsed() < PATIENCE);
    }
}

#[tokio::test]
async fn this_machines_own_addresses_may_take_all_places_unless_told_otherwise() {
    let server = cramped(|config| config.max_connections = 8);
    let mut open = Vec::new();
    for _ in 0..8 {
        let (socket, reply) = connect_from(&server, "127.0.0.1").await;
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
        open.push(socket);
    }
}

#[tokio::test]
async fn they_do_not_over_encrypted_connections_either() {
    let (certificate, tls) = certificate();
    let server = cramped(|config| {
        config.max_connections = 1;
        config.write_timeout = Duration::from_millis(300);
        config.tls = Some(tls);
    });
    let mut unread = encrypted(reluctant(&server).await, &certificate).await;
    let requests = "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n".repeat(300);
    unread.write_all(requests.as_bytes()).await.unwrap();
    unread.flush().await.unwrap();
    // There is one place: this waits until it is free.
    let other = encrypted(reluctant(&server).await, &certificate);
    let mut other = tokio::time::timeout(PATIENCE, other).await.unwrap();
    let request = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    other.write_all(request).await.unwrap();
    let mut reply = String::new();
    other.read_to_string(&mut reply).await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
}

#[tokio::test]
async fn a_cut_stream_stops_its_tokens() {
    let server = cramped(|config| config.write_timeout = Duration::from_millis(100));
    let body = json!({ "prompt": "Once", "max_tokens": 480, "n": 8, "ignore_eos": true, "stream": true });
    let _unread = ask(&server, &body).await;
    let stats = wait_until(&server, "cut", |stats| stats.finished == 8).await;
    assert!(stats.tokens < 8 * 480, "{} tokens for nobody", stats.tokens);
}

#[tokio::test]
async fn going_down_waits_for_generations_and_not_for_readers() {
    let mut server = cramped(|_| {});
    let mut unread = vec![reluctant(&server).await];
    let requests = "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n".repeat(300);
    unread[0].write_all(requests.as_bytes()).await.unwrap();
    for _ in 0..3 {
        unread.push(ask(&server, &text(TOKENS)).await);
    }
    wait_until(&server, "under way", |stats| stats.tokens > 0).await;
    server.drain();
    let engine = server.engine.clone();
    server.ended().await.unwrap();
    assert_eq!((engine.stats().tokens, engine.stats().finished), (3 * TOKENS, 3));
}

#[tokio::test]
async fn who_goes_on_reading_gets_everything_while_the_server_goes_down() {
    let mut server = cramped(|_| {});
    let mut socket = ask(&server, &text(TOKENS)).await;
    let (mut draining, mut reply) = (false, Vec::new());
    let mut some = [0; 2048];
    loop {
        // It reads all the time: what has not been read for a while when the server goes down is not waited for.
        if !draining && server.engine.stats().finished == 1 {
            server.drain();
            draining = true;
        }
        let read = tokio::time::timeout(PATIENCE, socket.read(&mut some))
            .await
            .unwrap()
            .unwrap();
        if read == 0 {
            break;
        }
        reply.extend_from_slice(&some[..read]);
        // All in all it takes longer than a client that takes nothing would be waited for.
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    assert_eq!(tokens_in(&String::from_utf8(reply).unwrap()), TOKENS as usize);
    server.ended().await.unwrap();
}

#[tokio::test]
async fn replies_that_wait_for_their_readers_are_bounded_in_all() {
    let server = cramped(|config| config.max_reply_bytes = 10_000);
    let (status, reply) = server.get("/openapi.json").await;
    let message = reply["error"]["message"].as_str().unwrap();
    assert_eq!(status, 503, "{message}");
    assert!(message.contains("the limit for both is 10000 bytes"), "{message}");
    assert_eq!(server.get("/health").await.0, 200);
}

#[tokio::test]
async fn a_client_that_leaves_stops_its_tokens() {
    let server = TestServer::start().await;
    let mut ended = 0;
    for stream in [true, false] {
        let body =
            json!({ "prompt": "Once", "max_tokens": 480, "n": 8, "ignore_eos": true, "stream": stream });
        let before = server.engine.stats().tokens;
        let socket = ask(&server, &body).await;
        wait_until(&server, "under way", |stats| stats.tokens > before + 8).await;
        drop(socket);
        ended += 8;
        let stats = wait_until(&server, "over", |stats| stats.finished == ended).await;
        let tokens = stats.tokens - before;
        assert!(tokens < 8 * 480, "stream {stream}: {tokens} tokens for nobody");
    }
}

#[tokio::test]
async fn clients_of_every_interface_stop_their_tokens_when_they_leave() {
    let said = json!([{ "role": "user", "content": "Tell me about a fox." }]);
    let ours = |more: Value| {
        with(
            json!({ "max_tokens": 400, "ignore_eos": true, "stream": true }),
            more,
        )
    };
    let ollama = |more: Value| {
        with(
            json!({ "options": { "num_predict": 400, "ignore_eos": true } }),
            more,
        )
    };
    for (path, body) in [
        ("/v1/completions", ours(json!({ "prompt": "Once" }))),
        ("/v1/chat/completions", ours(json!({ "messages": said }))),
        ("/api/generate", ollama(json!({ "prompt": "Once" }))),
        ("/api/chat", ollama(json!({ "messages": said }))),
        (
            "/completion",
            json!({ "prompt": "Once", "n_predict": 400, "ignore_eos": true, "stream": true }),
        ),
    ] {
        leave_streams(path, &body).await;
    }
}
