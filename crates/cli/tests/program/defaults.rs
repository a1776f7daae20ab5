//! What holds where nothing is said: texts are sampled as the model asks for it, or else as people and programs expect it.

use crate::common::served::Served;
use crate::common::{Copy, gguf, json_lines, run, stderr, stdout, succeed};
use paceline_weights::gguf_writer::Meta;
use serde_json::{Value, json};

const PACELINE: [&str; 8] = [
    "--temperature",
    "0.8",
    "--top-k",
    "40",
    "--top-p",
    "0.95",
    "--min-p",
    "0.05",
];
const RAW: [&str; 2] = ["--temperature", "1"];

/// The built-in model with other wishes.
fn model(generation_config: &Value) -> Copy {
    let copy = Copy::of("assets/storyteller");
    std::fs::write(copy.file("generation_config.json"), generation_config.to_string()).unwrap();
    copy
}

fn generate(model: &str, more: &[&str]) -> Value {
    let common = [
        "generate",
        "--json",
        "--seed",
        "3",
        "--max-tokens",
        "48",
        "--ignore-eos",
        "--prompt-ids",
        "97,98,99",
        "--model",
        model,
    ];
    json_lines(&[&common[..], more].concat()).remove(0)["token_ids"].take()
}

fn complete(server: &Served, more: &Value) -> Value {
    let mut body = json!({
        "prompt": [97, 98, 99], "seed": 3, "max_tokens": 48, "ignore_eos": true, "return_token_ids": true,
    });
    body.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let (status, reply) = server.ask(
        "POST /v1/completions",
        "content-type: application/json\r\n",
        &body.to_string(),
    );
    assert_eq!(status, 200, "{reply}");
    let mut reply: Value = serde_json::from_str(reply.split_once("\r\n\r\n").unwrap().1).unwrap();
    reply["choices"][0]["token_ids"].take()
}

#[test]
fn a_model_without_wishes_is_sampled_as_people_expect_it_on_the_terminal() {
    let silent = model(&json!({ "eos_token_id": 2, "do_sample": true }));
    let text = generate(silent.path(), &[]);
    assert_eq!(text, generate(silent.path(), &PACELINE));
    assert_ne!(text, generate(silent.path(), &RAW));
    assert_eq!(
        generate(silent.path(), &["--temp", "0"]),
        generate(silent.path(), &["--temperature", "0"])
    );
    let shown = succeed(&["inspect", silent.path()]);
    let line = shown
        .lines()
        .find(|line| line.starts_with("sampling"))
        .unwrap()
        .split_once(' ');
    assert_eq!(
        line.unwrap().1.trim(),
        "temperature 0.8, top_p 0.95, top_k 40, min_p 0.05 (paceline)"
    );
}

#[test]
fn a_model_gets_what_it_asks_for_in_either_format() {
    let greedy = model(&json!({ "do_sample": false }));
    assert_eq!(
        generate(greedy.path(), &[]),
        generate(greedy.path(), &["--temperature", "0"])
    );

    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (silent, wishes, wrong) = (at("silent.gguf"), at("wishes.gguf"), at("wrong.gguf"));
    gguf::write(silent.as_ref());
    let wish = |key: &str, value: Meta| (format!("general.sampling.{key}"), value);
    gguf::write_with(
        wishes.as_ref(),
        [
            wish("temp", Meta::F32(0.25)),
            wish("top_k", Meta::I32(7)),
            wish("penalty_repeat", Meta::F32(1.5)),
        ],
    );
    let asked = [
        "--temperature",
        "0.25",
        "--top-k",
        "7",
        "--repetition-penalty",
        "1.5",
    ];
    assert_eq!(generate(&wishes, &[]), generate(&wishes, &asked));
    // A flag changes one option and leaves the others to the model.
    let all = [&RAW[..], &asked[2..], &["--top-p", "1", "--min-p", "0"]].concat();
    assert_eq!(generate(&wishes, &RAW), generate(&silent, &all));
    assert_eq!(generate(&silent, &[]), generate(&silent, &PACELINE));
    let report: Value = serde_json::from_str(&succeed(&["inspect", "--json", &wishes])).unwrap();
    assert_eq!(
        report["sampling"],
        json!({
            "temperature": { "value": 0.25, "source": "model" },
            "top_k": { "value": 7, "source": "model" },
            "repetition_penalty": { "value": 1.5, "source": "model" },
        })
    );

    gguf::write_with(wrong.as_ref(), [wish("top_p", Meta::string("much"))]);
    let message = stderr(&run(&["generate", "--prompt", "a", "--model", &wrong]));
    for part in ["wrong.gguf", "general.sampling", "top_p", "much"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn over_http_a_model_without_wishes_is_sampled_as_programs_expect_it() {
    let silent = model(&json!({ "eos_token_id": 2 }));
    let server = Served::start(&[silent.path()]);
    let text = complete(&server, &json!({}));
    assert_eq!(text, complete(&server, &json!({ "temperature": 1, "top_p": 1 })));
    let page = json!({ "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05 });
    assert_ne!(text, complete(&server, &page));
    let sampling = &server.get("/v1/engine")["sampling"];
    let from = |value: f64, source: &str| json!({ "value": value, "source": source });
    assert_eq!(
        *sampling,
        json!({
            "requests": { "temperature": from(1.0, "OpenAI"), "top_p": from(1.0, "OpenAI") },
            "page": {
                "temperature": from(0.8, "paceline"), "top_p": from(0.95, "paceline"),
                "top_k": { "value": 40, "source": "paceline" }, "min_p": from(0.05, "paceline"),
            },
        })
    );
}

#[test]
fn a_server_is_told_other_defaults_by_flags_and_shows_them() {
    let server = Served::start(&[
        "--top-k",
        "5",
        "--override-generation-config",
        r#"{"temperature": 0}"#,
    ]);
    let greedy = complete(&server, &json!({}));
    assert_eq!(greedy, complete(&server, &json!({ "temperature": 0 })));
    assert_ne!(greedy, complete(&server, &json!({ "temperature": 1 })));
    let state = server.get("/v1/engine");
    let sampling = &state["sampling"];
    assert_eq!(sampling["requests"], sampling["page"]);
    assert_eq!(
        sampling["requests"]["top_k"],
        json!({ "value": 5, "source": "flags" })
    );
    assert_eq!(
        sampling["requests"]["top_p"],
        json!({ "value": 0.95, "source": "model" })
    );
    let rows = state["features"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == "sampling").unwrap();
    assert_eq!(row["state"], "temperature 0, top_k 5 (flags); top_p 0.95 (model)");

    let server = Served::start(&["--generation-config", "vllm"]);
    let sampling = &server.get("/v1/engine")["sampling"];
    assert_eq!(
        sampling["requests"]["temperature"],
        json!({ "value": 1.0, "source": "OpenAI" })
    );
    assert_eq!(
        sampling["page"]["temperature"],
        json!({ "value": 0.7, "source": "model" })
    );
}

#[test]
fn streams_wait_for_prompts_as_long_as_the_help_says_or_a_flag() {
    let help = stdout(&run(&["serve", "--help"]));
    let help: Vec<&str> = help.split_whitespace().collect();
    assert!(help.join(" ").contains("0 for any length [default: 50]"));
    for (flags, told) in [
        (&[][..], "throttled to steps of 50 ms while streams run"),
        (
            &["--max-step-ms", "20"],
            "throttled to steps of 20 ms while streams run",
        ),
        (&["--max-step-ms", "0"], "as much as a step has room for"),
    ] {
        let state = Served::start(flags).get("/v1/engine");
        let rows = state["features"].as_array().unwrap();
        let row = rows.iter().find(|row| row["name"] == "prompts").unwrap();
        assert_eq!(row["state"], told);
    }
}
