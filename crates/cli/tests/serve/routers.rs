//! Three replicas behind routers as they come: `smg`, `vllm-router` and `sglang-router`. All replicas are used; one that is
//! drained under load, and one that is killed, cost no request. With `PACELINE_TEST_LONG` only.

use crate::common::served::{PATIENCE, Served, open, status};
use crate::environment::python_with_routers;
use serde_json::{Value, json};
use std::env;
use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Clients at a time, and requests of each.
const CLIENTS: usize = 6;
const REQUESTS: usize = 10;

/// A router in a process of its own; it goes when this is dropped.
struct Router {
    child: Child,
    address: String,
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that was free a moment ago: routers say nowhere which one the system gave them.
fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port().to_string()
}

impl Router {
    /// Starts a router and waits until it has found the replicas.
    fn start(command: &[&str], replicas: &[Served]) -> Self {
        let bin = python_with_routers().parent().unwrap().to_owned();
        let port = free_port();
        let child = Command::new(bin.join(command[0]))
            .args(&command[1..])
            .args([
                "--host",
                "127.0.0.1",
                "--port",
                &port,
                "--prometheus-port",
                &free_port(),
            ])
            .args(["--policy", "round_robin", "--cb-failure-threshold", "1"])
            .args(["--health-check-interval-secs", "1", "--worker-urls"])
            .args(replicas.iter().map(|replica| &replica.url))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let router = Self {
            child,
            address: format!("127.0.0.1:{port}"),
        };
        let start = Instant::now();
        while router.ask("Hello", "first").is_err() {
            assert!(start.elapsed() < PATIENCE, "{command:?} does not begin to serve");
            thread::sleep(Duration::from_millis(100));
        }
        router
    }

    /// The text behind a prompt, or what came in its place.
    fn ask(&self, prompt: &str, id: &str) -> Result<String, String> {
        let body = json!({
            "model": "storyteller", "prompt": prompt, "max_tokens": 60, "temperature": 0, "ignore_eos": true,
        });
        let headers = format!("content-type: application/json\r\nx-request-id: {id}\r\n");
        let mut reply = String::new();
        let socket = open(&self.address, "POST /v1/completions", &headers, &body.to_string());
        let read = socket.and_then(|mut socket| socket.read_to_string(&mut reply));
        if read.is_err() || status(&reply) != Some(200) {
            return Err(format!("{read:?} {reply}"));
        }
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(id), "the request's name is lost: {head}");
        let start = body.find('{').unwrap();
        let reply: Value = serde_json::Deserializer::from_str(&body[start..])
            .into_iter()
            .next()
            .unwrap()
            .unwrap();
        assert_eq!(reply["usage"]["completion_tokens"], 60);
        Ok(reply["choices"][0]["text"].as_str().unwrap().to_owned())
    }
}

/// Requests that a replica has done.
fn ended(replica: &Served) -> u64 {
    replica.get("/v1/engine")["slots"]["requests_ended"]
        .as_u64()
        .unwrap()
}

fn prompt(number: usize) -> String {
    format!("Once upon a time, there were {number} foxes")
}

/// What every prompt gets from a server that nothing stands in front of.
fn expected(replica: &Served) -> Vec<String> {
    let direct = |number| {
        let body =
            json!({ "prompt": prompt(number), "max_tokens": 60, "temperature": 0, "ignore_eos": true });
        let headers = "content-type: application/json\r\n";
        let (status, reply) = replica.ask("POST /v1/completions", headers, &body.to_string());
        assert_eq!(status, 200, "{reply}");
        let reply: Value = serde_json::from_str(reply.split_once("\r\n\r\n").unwrap().1).unwrap();
        reply["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    (0..CLIENTS * REQUESTS).map(direct).collect()
}

/// Everything, with one router.
fn try_router(command: &[&str]) {
    if env::var_os("PACELINE_TEST_LONG").is_none() {
        println!("skipped: set PACELINE_TEST_LONG");
        return;
    }
    let start = || Served::start(&["--max-connections-per-address", "0"]);
    let expected = expected(&start());
    let mut replicas = [start(), start(), start()];
    let router = Router::start(command, &replicas);
    for (number, text) in expected.iter().take(12).enumerate() {
        assert_eq!(router.ask(&prompt(number), "used").as_ref(), Ok(text));
    }
    let used: Vec<u64> = replicas.iter().map(ended).collect();
    assert!(used.iter().all(|count| *count > 1), "{command:?}: {used:?}");

    let before = ended(&replicas[0]);
    thread::scope(|scope| {
        for (client, texts) in expected.chunks(REQUESTS).enumerate() {
            let router = &router;
            scope.spawn(move || {
                for (index, text) in texts.iter().enumerate() {
                    let number = client * REQUESTS + index;
                    let got = router.ask(&prompt(number), &format!("drain-{number}"));
                    assert_eq!(got.as_ref(), Ok(text), "{number} while one drains");
                }
            });
        }
        // The one that goes has been given some of them.
        while ended(&replicas[0]) == before {
            thread::sleep(Duration::from_millis(1));
        }
        replicas[0].signal("TERM");
    });
    assert_eq!(replicas[0].wait(), Some(0));

    replicas[1].child.kill().unwrap();
    replicas[1].wait();
    for (number, text) in expected.iter().take(12).enumerate() {
        assert_eq!(
            router.ask(&prompt(number), "killed").as_ref(),
            Ok(text),
            "{number}"
        );
    }
}

#[test]
fn replicas_work_behind_smg() {
    try_router(&["smg", "launch"]);
}

#[test]
fn replicas_work_behind_vllm_router() {
    try_router(&["vllm-router"]);
}

#[test]
fn replicas_work_behind_sglang_router() {
    try_router(&["python", "-m", "sglang_router.launch_router"]);
}
