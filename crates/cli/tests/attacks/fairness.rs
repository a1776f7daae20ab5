//! One key's many requests, its priorities and its curiosity, beside another key.

use crate::common::served::{PATIENCE, Served, open, status};
use crate::victim::{ATTACKER, Victim, body, scale};
use serde_json::{Value, json};
use std::io::Read;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

/// Requests that take a while, without waiting for their replies.
fn send(victim: &Victim, count: usize, request: &Value) -> Vec<TcpStream> {
    let request = request.to_string();
    (0..count)
        .map(|_| open(&victim.served.address, "POST /v1/completions", ATTACKER, &request).unwrap())
        .collect()
}

fn waiting(victim: &Victim) -> u64 {
    victim.engine()["slots"]["waiting"].as_u64().unwrap()
}

/// Waits until requests wait for a slot.
fn until_they_wait(victim: &Victim) {
    while waiting(victim) == 0 {
        thread::sleep(Duration::from_millis(5));
    }
}

/// The statuses that connections end with.
fn statuses(sockets: Vec<TcpStream>) -> Vec<u16> {
    let read = |mut socket: TcpStream| {
        let mut reply = String::new();
        socket.set_read_timeout(Some(5 * PATIENCE)).unwrap();
        socket.read_to_string(&mut reply).unwrap();
        status(&reply).unwrap_or_else(|| panic!("{reply:?}"))
    };
    sockets.into_iter().map(read).collect()
}

#[test]
fn a_batch_of_one_key_does_not_hold_up_another() {
    let victim = Victim::start(&["--max-num-seqs", "2"]);
    let prompts = vec!["Once upon a time"; scale(128, 500)];
    let request = json!({ "prompt": prompts, "max_tokens": 16, "ignore_eos": true });
    victim.under("a batch of 500 prompts", || {
        let batch = send(&victim, 1, &request);
        until_they_wait(&victim);
        victim.answer()?;
        assert!(
            waiting(&victim) > 0,
            "the batch was over before the other client had its answer"
        );
        assert_eq!(statuses(batch), [200]);
        Ok(())
    });
}

#[test]
fn a_batch_counts_as_the_requests_it_is() {
    let victim = Victim::start(&["--max-requests-per-key", "1"]);
    let prompts = vec!["Once upon a time"; scale(64, 1024)];
    let request = json!({ "prompt": prompts, "max_tokens": 4 });
    victim.under("a batch beyond what a key may have", || {
        // It can never fit, so to come again later would be no use.
        assert_eq!(statuses(send(&victim, 1, &request)), [400]);
        assert_eq!(
            statuses(send(&victim, 1, &json!({ "prompt": "Once", "max_tokens": 4 }))),
            [200]
        );
        Ok(())
    });
}

#[test]
fn many_requests_of_one_key_do_not_hold_up_another() {
    let victim = Victim::start(&["--max-num-seqs", "2"]);
    let count = scale(60, 500);
    let request = json!({ "prompt": "Once", "max_tokens": scale(16, 48), "ignore_eos": true });
    victim.under("500 requests of one key", || {
        let sent = send(&victim, count, &request);
        until_they_wait(&victim);
        victim.answer()?;
        assert!(
            waiting(&victim) > 0,
            "all were through before the other client had its answer"
        );
        assert!(statuses(sent).iter().all(|status| matches!(status, 200 | 429)));
        Ok(())
    });
}

#[test]
fn nobody_overtakes_by_asking_for_it() {
    let victim = Victim::start(&["--max-num-seqs", "1"]);
    for priority in [json!(i32::MIN), json!(-1), json!(i64::MIN), json!(-1e300)] {
        let request = json!({ "prompt": "Once", "max_tokens": 4, "priority": priority }).to_string();
        let (status, reply) = victim.served.ask("POST /v1/completions", ATTACKER, &request);
        assert_eq!(status, 400, "{reply}");
        assert!(reply.contains("priority"), "{reply}");
    }
    // As high as is allowed, and as low as there is.
    let request = json!({ "prompt": "Once", "max_tokens": 32, "ignore_eos": true, "priority": 0 });
    victim.under("priority -2^31", || {
        let sent = send(&victim, scale(16, 64), &request);
        until_they_wait(&victim);
        victim.answer()?;
        assert!(
            waiting(&victim) > 0,
            "all were through before the other client had its answer"
        );
        assert!(statuses(sent).iter().all(|status| *status == 200));
        Ok(())
    });
    let low = json!({ "prompt": "Once", "max_tokens": 4, "priority": i32::MAX });
    assert_eq!(statuses(send(&victim, 1, &low)), [200]);
}

/// How many tokens of a prompt come from the cache for a key.
fn cached(served: &Served, key: &str, more: &Value) -> u64 {
    let prompt: Vec<u32> = (0..200).map(|token| 300 + token).collect();
    let mut request = json!({ "prompt": prompt, "max_tokens": 1 });
    for (name, value) in more.as_object().unwrap() {
        request[name] = value.clone();
    }
    let headers = format!("authorization: Bearer {key}\r\n");
    let (status, reply) = served.ask("POST /v1/completions", &headers, &request.to_string());
    assert_eq!(status, 200, "{reply}");
    let reply: Value = serde_json::from_str(body(&reply)).unwrap();
    let cached = &reply["usage"]["prompt_tokens_details"]["cached_tokens"];
    cached.as_u64().unwrap_or(0)
}

#[test]
fn the_cache_tells_no_key_what_another_has_asked() {
    let victim = Victim::start(&[]);
    let (served, plain) = (&victim.served, json!({}));
    assert_eq!(cached(served, "innocent", &plain), 0);
    // The owner has something from it, so there is something to be seen.
    assert!(cached(served, "innocent", &plain) > 0);
    assert_eq!(cached(served, "attacker", &plain), 0, "another key sees it");
    // Salts divide what one key has, and do not open what another has.
    let salt = json!({ "cache_salt": "pepper" });
    assert_eq!(cached(served, "innocent", &salt), 0);
    assert!(cached(served, "innocent", &salt) > 0);
    assert_eq!(cached(served, "attacker", &salt), 0, "another key sees it");
}

#[test]
fn a_cache_for_all_is_shared_on_request() {
    let victim = Victim::start(&["--prefix-cache-scope", "all"]);
    let (served, plain) = (&victim.served, json!({}));
    assert_eq!(cached(served, "innocent", &plain), 0);
    assert!(cached(served, "attacker", &plain) > 0);
}
