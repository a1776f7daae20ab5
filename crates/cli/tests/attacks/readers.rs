//! Clients that ask and do not read what they get.

use crate::common::served::PATIENCE;
use crate::victim::{ATTACKER, Victim, scale};
use serde_json::json;
use socket2::{Domain, Socket, Type};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

/// An address of this machine that is not the one that clients have otherwise.
const ELSEWHERE: &str = "127.0.0.2:0";

/// A connection that takes next to nothing until it is read.
fn deaf(address: &str) -> TcpStream {
    deaf_from("127.0.0.1:0", address)
}

/// The same from an address of this machine.
fn deaf_from(from: &str, address: &str) -> TcpStream {
    let (from, address): (SocketAddr, SocketAddr) = (from.parse().unwrap(), address.parse().unwrap());
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.bind(&from.into()).unwrap();
    socket.connect(&address.into()).unwrap();
    socket.into()
}

/// Sends a request on a connection that is never read.
fn ask_deaf(address: &str, path: &str, body: &str) -> TcpStream {
    let mut socket = deaf(address);
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\n{ATTACKER}content-length: {length}\r\n\r\n");
    socket.write_all(head.as_bytes()).unwrap();
    // The server may have refused it before it came to an end.
    let _ = socket.write_all(body.as_bytes());
    socket
}

/// Sockets that ask for metrics 300 times and read nothing: some megabytes each.
fn ask_for_metrics(from: &str, address: &str, sockets: usize) -> Vec<TcpStream> {
    let requests = "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n".repeat(300);
    let ask = |_| {
        let mut socket = deaf_from(from, address);
        // The server may have refused it before this is sent.
        let _ = socket.write_all(requests.as_bytes());
        socket
    };
    (0..sockets).map(ask).collect()
}

/// A name that makes every event of a stream large, so that a few hundred fill what the system buffers.
fn long_name() -> String {
    "storyteller-".repeat(1400)
}

/// Streams of a few megabytes that nobody reads.
fn stall_streams(address: &str, streams: usize) -> Vec<TcpStream> {
    let body = json!({ "prompt": "Once", "max_tokens": 500, "ignore_eos": true, "stream": true }).to_string();
    (0..streams)
        .map(|_| ask_deaf(address, "/v1/completions", &body))
        .collect()
}

/// Waits until this many requests have ended in the engine.
fn wait_for_ended(victim: &Victim, requests: u64) {
    while victim.engine()["slots"]["requests_ended"].as_u64().unwrap() < requests {
        thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn sockets_that_never_read_lock_nobody_out() {
    let sockets = scale(64, 1024);
    // Nobody waits for the time after which they are cut in any case.
    let victim = Victim::start(&[
        "--max-connections",
        &sockets.to_string(),
        "--write-timeout",
        "600",
    ]);
    let figures = victim.under("/metrics 300 times, never read", || {
        let _asked = ask_for_metrics(ELSEWHERE, &victim.served.address, sockets);
        // They hold every place there is, and have to give way.
        victim.answer().and_then(|()| victim.answer())
    });
    figures.expect(scale(64, 512), scale(32, 128));
}

#[test]
fn an_address_that_takes_every_place_it_can_get_leaves_some() {
    let sockets = scale(64, 1024);
    let (all, half) = (sockets.to_string(), (sockets / 2).to_string());
    let limits = ["--max-connections", &all, "--max-connections-per-address", &half];
    let victim = Victim::start(
        &[
            &limits[..],
            &["--write-timeout", "600", "--header-timeout", "600"],
        ]
        .concat(),
    );
    // None of them gives way: places are left.
    let figures = victim.under("connections that do nothing", || {
        let _open: Vec<_> = (0..sockets)
            .map(|_| deaf_from(ELSEWHERE, &victim.served.address))
            .collect();
        victim.answer().and_then(|()| victim.answer())
    });
    figures.expect(scale(64, 512), scale(32, 128));
    let figures = victim.under("/metrics 300 times, from one address", || {
        let _asked = ask_for_metrics(ELSEWHERE, &victim.served.address, sockets);
        victim.answer().and_then(|()| victim.answer())
    });
    figures.expect(scale(64, 512), scale(32, 128));
}

#[test]
fn streams_that_nobody_reads_hold_no_permit() {
    // As many as may run and wait: every permit is taken.
    let (running, streams) = scale((2, 4), (8, 24));
    let name = long_name();
    let victim = Victim::start(&[
        "--max-num-seqs",
        &running.to_string(),
        "--max-concurrent-requests",
        &streams.to_string(),
        "--served-model-name",
        &name,
    ]);
    let ended = victim.engine()["slots"]["requests_ended"].as_u64().unwrap();
    let stalled = stall_streams(&victim.served.address, streams);
    wait_for_ended(&victim, ended + streams as u64);
    let figures = victim.under("streams stalled", || victim.answer());
    drop(stalled);
    figures.expect(64, 64);
}

#[test]
fn replies_that_nobody_reads_take_bounded_memory() {
    let victim = Victim::start(&[]);
    let count = scale(2, 8);
    // As many tokens as a body holds, each of thirteen bytes.
    let ids = "0,".repeat((15 << 20) / 2);
    let body = format!("{{\"tokens\": [{ids}0]}}");
    let figures = victim.under("/detokenize, never read", || {
        let asked: Vec<_> = thread::scope(|scope| {
            let ask = || ask_deaf(&victim.served.address, "/detokenize", &body);
            let asked: Vec<_> = (0..count).map(|_| scope.spawn(ask)).collect();
            asked.into_iter().map(|socket| socket.join().unwrap()).collect()
        });
        // Their replies have begun, so they are made.
        for socket in &asked {
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket.peek(&mut [0]).unwrap();
        }
        victim.answer()
    });
    figures.expect(scale(192, 640), 128);
}

#[test]
fn a_signal_ends_a_server_that_nobody_reads_from() {
    let name = long_name();
    let mut victim = Victim::start(&[
        "--drain-timeout",
        "600",
        "--write-timeout",
        scale("1", "10"),
        "--max-num-seqs",
        "8",
        "--served-model-name",
        &name,
    ]);
    let address = victim.served.address.clone();
    let _metrics = ask_for_metrics(ELSEWHERE, &address, scale(16, 256));
    let ended = victim.engine()["slots"]["requests_ended"].as_u64().unwrap();
    let _streams = stall_streams(&address, scale(4, 24));
    wait_for_ended(&victim, ended + scale(4, 24));
    victim.served.signal("TERM");
    assert_eq!(victim.served.wait(), Some(0));
}
