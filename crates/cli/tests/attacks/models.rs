//! Models made to take the machine: templates that grow, patterns that take for ever, files that never end.

use crate::common::{Copy, paceline, served::serve};
use crate::process::failure;
use crate::victim::{ATTACKER, Victim, limited, scale};
use serde_json::json;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

/// Templates without an end in memory or in time.
const TEMPLATES: [(&str, &str); 6] = [
    (
        "a text doubled",
        "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
    ),
    (
        "lists sorted in loops",
        "{% for i in range(9999) %}{% for j in range(9999) %}{% set x = range(9999) | list | sort %}{% endfor %}{% endfor %}",
    ),
    ("a text multiplied", "{{ 'x' * 10000000000 }}"),
    (
        "a text replaced by itself",
        "{% set ns = namespace(s='xxxxxxxxxx') %}{% for i in range(20) %}{% set ns.s = ns.s | replace('x', ns.s) %}{% endfor %}{{ ns.s }}",
    ),
    (
        "a list doubled",
        "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s | length }}",
    ),
    (
        "lists joined",
        "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] | join %}{% endfor %}{{ ns.s }}",
    ),
];

#[test]
fn templates_without_an_end_are_cut_off() {
    for (what, template) in TEMPLATES {
        let command = serve(&["--num-blocks", "256", "--chat-template", template]);
        let victim = Victim::spawn(limited(&command, 4 << 30).stderr(Stdio::null()));
        let figures = victim.under(what, || {
            let body =
                json!({ "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 4 }).to_string();
            for _ in 0..scale(1, 8) {
                let (status, reply) = victim.served.ask("POST /v1/chat/completions", ATTACKER, &body);
                assert!(matches!(status, 400 | 500), "{reply}");
                assert!(reply.contains("template"), "{reply}");
            }
            Ok(())
        });
        figures.expect(256, 128);
    }
}

#[test]
fn patterns_that_take_for_ever_are_cut_off() {
    let model = Copy::of("assets/storyteller");
    model.edit_json("tokenizer.json", |tokenizer| {
        let pattern = json!({ "Regex": "[^b]*b|a" });
        let split = json!({ "type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false });
        let letters = tokenizer["pre_tokenizer"].take();
        tokenizer["pre_tokenizer"] = json!({ "type": "Sequence", "pretokenizers": [split, letters] });
    });
    let victim = Victim::start(&[model.path()]);
    let figures = victim.under("a pattern of quadratic time", || {
        for path in ["/v1/completions", "/tokenize"] {
            let body = json!({ "prompt": "a".repeat(scale(1 << 15, 1 << 20)), "max_tokens": 4 }).to_string();
            let (status, reply) = victim.served.ask(&format!("POST {path}"), ATTACKER, &body);
            assert!(
                matches!(status, 400 | 413 | 500),
                "{path}: {status}: {}",
                reply.len()
            );
        }
        Ok(())
    });
    figures.expect(256, 128);
}

#[test]
fn files_that_never_end_or_never_begin_are_refused() {
    for name in [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "model.safetensors",
    ] {
        let model = Copy::of("assets/storyteller");
        fs::remove_file(model.file(name)).unwrap();
        assert!(
            Command::new("mkfifo")
                .arg(model.file(name))
                .status()
                .unwrap()
                .success()
        );
        for command in [
            &mut serve(&[model.path()]),
            paceline().args(["inspect", model.path()]),
        ] {
            let text = failure(command);
            assert!(text.contains(name), "{text}");
        }
        fs::remove_file(model.file(name)).unwrap();
        symlink("/dev/zero", model.file(name)).unwrap();
        let text = failure(&mut limited(&serve(&[model.path()]), 4 << 30));
        assert!(text.contains(name), "{text}");
    }
}
