//! `paceline serve` and clients that ask and never read, in a process of its own.

use crate::common::served::{PATIENCE, Served};
use std::env;
use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

/// Growth of memory that counts as none, in bytes.
const GROWTH: u64 = 64 << 20;

/// Opens a connection and asks for more than all buffers on the way can hold.
fn unread(served: &Served) -> TcpStream {
    let mut socket = TcpStream::connect(&served.address).unwrap();
    // The server takes no more requests while it cannot answer, so not all of them find room.
    socket.set_nonblocking(true).unwrap();
    let requests = "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n".repeat(1000);
    match socket.write(requests.as_bytes()) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
    }
    socket
}

/// Connections that were cut so far.
fn cut(served: &Served) -> u64 {
    let (_, text) = served.ask("GET /metrics", "", "");
    let line = text
        .lines()
        .find(|line| line.starts_with("paceline:cut_connections_total"));
    line.unwrap().rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[test]
fn places_are_free_again_although_nobody_reads() {
    // All of the default places in a long run.
    let count = if env::var_os("PACELINE_TEST_LONG").is_some() {
        1024
    } else {
        64
    };
    let connections = count.to_string();
    let served = Served::start(&["--max-connections", &connections, "--write-timeout", "2"]);
    let before = served.resident();
    let crowd: Vec<TcpStream> = (0..count).map(|_| unread(&served)).collect();
    // This one waits until a stalled client has been cut.
    assert_eq!(served.ask("GET /health", "", "").0, 200);
    let start = Instant::now();
    while cut(&served) < count as u64 {
        assert!(start.elapsed() < PATIENCE, "{} of {count} were cut", cut(&served));
        thread::sleep(Duration::from_millis(20));
    }
    let after = served.resident();
    println!("{count} connections; resident {before} bytes, then {after} bytes");
    assert!(after < before + GROWTH, "from {before} to {after} bytes");
    drop(crowd);
}

#[test]
fn a_signal_ends_a_server_that_nobody_reads_from() {
    let mut served = Served::start(&["--write-timeout", "600", "--drain-timeout", "600"]);
    let _crowd: Vec<TcpStream> = (0..32).map(|_| unread(&served)).collect();
    assert_eq!(served.ask("GET /health", "", "").0, 200);
    served.signal("TERM");
    assert_eq!(served.wait(), Some(0));
}
