//! `paceline serve` with more to do than it can: every request gets an answer, and in the end nothing is held.

use crate::common::mix;
use crate::common::served::{PATIENCE, Served, open, serve, status};
use std::collections::BTreeMap;
use std::env;
use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Connections at a time.
const CROWD: usize = 500;

/// How many requests ended with which status; 0 is for those that were left.
type Tally = BTreeMap<u16, usize>;

#[test]
fn a_crowd_gets_answers_or_is_told_to_come_back() {
    let served = Served::start(&[
        "--max-num-seqs",
        "4",
        "--max-waiting",
        "16",
        "--tool-call-parser",
        "hermes",
    ]);
    let before = served.holdings();
    let start = Arc::new(Barrier::new(CROWD));
    let clients: Vec<_> = (0..CROWD)
        .map(|number| {
            let (address, start) = (served.address.clone(), Arc::clone(&start));
            let client = move || {
                let (path, body) = mix::request(number);
                start.wait();
                let mut socket = open(&address, &format!("POST {path}"), "", &body.to_string()).unwrap();
                let mut reply = String::new();
                socket.read_to_string(&mut reply).unwrap();
                (path, reply)
            };
            thread::Builder::new()
                .stack_size(256 << 10)
                .spawn(client)
                .unwrap()
        })
        .collect();
    let mut tally = Tally::new();
    for client in clients {
        let (path, reply) = client.join().unwrap();
        let status = status(&reply).unwrap_or_else(|| panic!("{path}: {reply:?}"));
        match status {
            200 => assert!(mix::complete(path, &reply), "{path}: {reply}"),
            429 | 503 => assert!(reply.contains("retry-after: "), "{path}: {reply}"),
            _ => panic!("{path}: {reply}"),
        }
        *tally.entry(status).or_default() += 1;
    }
    println!("statuses: {tally:?}");
    // Both ends were reached: requests that found a place were served, and the rest was refused.
    assert!(tally.get(&200).is_some_and(|served| *served >= 4), "{tally:?}");
    assert!(tally.contains_key(&429), "{tally:?}");
    served.expect_free(before);
    assert_eq!(served.ask("GET /health", "", "").0, 200);
}

/// Clients of the soak.
const CLIENTS: usize = 12;

/// What memory may grow by in a round of the warm-up that is its last.
const ROUND_GROWTH: u64 = 1 << 20;

/// What it may grow by after the warm-up: room for the allocator, and below what a leak of a few hundred bytes per
/// request comes to in the long run.
const GROWTH: u64 = 8 << 20;

#[test]
fn memory_stays_flat_under_mixed_load() {
    let long = env::var_os("PACELINE_TEST_LONG").is_some();
    let (round, time) = if long { (20, 600) } else { (2, 5) };
    let mut command = serve(&["--max-model-len", "192", "--num-blocks", "128"]);
    command.args([
        "--max-num-seqs",
        "8",
        "--max-waiting",
        "8",
        "--tool-call-parser",
        "hermes",
    ]);
    let served = Served::spawn(&mut command);
    let before = served.holdings();
    // Places for blocks and states are there from the start, but become resident when they are first used. The warm-up
    // goes on until a round of it adds next to nothing.
    let (start, mut warm) = (Instant::now(), 0);
    loop {
        soak(&served, Duration::from_secs(round));
        served.expect_free(before);
        let resident = served.resident();
        if resident < warm + ROUND_GROWTH {
            break;
        }
        warm = resident;
        assert!(start.elapsed() < 5 * PATIENCE, "{warm} bytes, and no end");
    }
    let warm = served.resident();
    let tally = soak(&served, Duration::from_secs(time));
    served.expect_free(before);
    let end = served.resident();
    println!("{time} s: {tally:?}; resident {warm} bytes, then {end} bytes");
    assert!(end < warm + GROWTH, "from {warm} to {end} bytes: {tally:?}");
    for status in [0, 200, 400] {
        assert!(tally.contains_key(&status), "{tally:?}");
    }
    assert_eq!(served.ask("GET /health", "", "").0, 200);
}

/// Lets clients ask, leave and err for a while.
fn soak(served: &Served, time: Duration) -> Tally {
    let (next, tally, start) = (AtomicUsize::new(0), Mutex::new(Tally::new()), Instant::now());
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while start.elapsed() < time {
                    let status = client(served, next.fetch_add(1, Ordering::Relaxed));
                    *tally.lock().unwrap().entry(status).or_default() += 1;
                }
            });
        }
    });
    tally.into_inner().unwrap()
}

/// One client: it waits for the end, leaves in the middle, or asks for what cannot be had.
fn client(served: &Served, number: usize) -> u16 {
    let (path, mut body) = mix::request(number);
    let leaves = number % 5 == 4;
    if number % 11 == 10 {
        body["temperature"] = (-1).into();
    }
    let mut socket = served.open(&format!("POST {path}"), "", &body.to_string());
    if leaves {
        let mut some = [0; 300];
        let _ = socket.read(&mut some[..number % 300]);
        return 0;
    }
    let mut reply = String::new();
    socket.read_to_string(&mut reply).unwrap();
    let status = status(&reply).unwrap_or_else(|| panic!("{path}: {reply:?}"));
    match status {
        200 => assert!(mix::complete(path, &reply), "{path}: {reply}"),
        400 => assert!(reply.contains("temperature"), "{path}: {reply}"),
        429 => assert!(reply.contains("retry-after: "), "{path}: {reply}"),
        _ => panic!("{path}: {reply}"),
    }
    status
}
