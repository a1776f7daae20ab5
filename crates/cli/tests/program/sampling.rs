//! What the sampling flags do to a text.

use crate::common::{ids, json_lines, run, stderr, succeed};
use serde_json::Value;

const GREEDY: [&str; 7] = [
    "generate",
    "--prompt",
    "The fox",
    "--temperature",
    "0",
    "--max-tokens",
    "40",
];

fn generate(more: &[&str]) -> Value {
    json_lines(&[&GREEDY[..], &["--json"], more].concat()).remove(0)
}

#[test]
fn a_token_with_a_large_negative_bias_never_comes() {
    let plain = ids(&generate(&["--ignore-eos"])["token_ids"]);
    let banned = plain[2];
    let flag = format!("{banned}:-100");
    let biased = ids(&generate(&["--ignore-eos", "--logit-bias", &flag])["token_ids"]);
    assert_eq!(biased[..2], plain[..2]);
    assert!(!biased.contains(&banned), "{biased:?}");
}

#[test]
fn a_token_with_a_large_bias_comes_always() {
    let result = generate(&["--logit-bias", "443:100"]);
    assert_eq!(ids(&result["token_ids"]), [443; 40]);
}

#[test]
fn a_bad_word_does_not_come_up() {
    let plain = generate(&["--ignore-eos"]);
    let text = plain["text"].as_str().unwrap();
    let words: Vec<_> = text.split_whitespace().collect();
    for word in [words[0], words[3]] {
        let result = generate(&["--ignore-eos", "--bad-word", word]);
        let text = result["text"].as_str().unwrap();
        assert!(
            !text.split_whitespace().any(|other| other == word),
            "`{word}` in: {text}"
        );
    }
}

#[test]
fn penalties_keep_a_text_from_repeating_itself() {
    let distinct = |more: &[&str]| {
        let long = ["generate", "--prompt", "The fox", "--temperature", "0"];
        let long = [&long[..], &["--max-tokens", "120", "--json", "--ignore-eos"]].concat();
        let arguments = [&long[..], more].concat();
        let mut ids = ids(&json_lines(&arguments)[0]["token_ids"]);
        ids.sort_unstable();
        ids.dedup();
        ids.len()
    };
    let plain = distinct(&[]);
    for penalty in [
        ["--repetition-penalty", "1.5"],
        ["--presence-penalty", "2"],
        ["--frequency-penalty", "2"],
    ] {
        let with = distinct(&penalty);
        assert!(
            with > plain,
            "{penalty:?}: {with} of 120 tokens differ, {plain} without"
        );
    }
    assert!(distinct(&["--presence-penalty", "-2"]) < plain);
}

#[test]
fn stop_tokens_end_a_text_but_not_before_its_shortest_length() {
    let plain = ids(&generate(&["--ignore-eos"])["token_ids"]);
    let stop = plain[4].to_string();
    let first = plain.iter().position(|id| *id == plain[4]).unwrap();
    let result = generate(&["--ignore-eos", "--stop-token", &stop]);
    assert_eq!(ids(&result["token_ids"]), plain[..first]);
    assert_eq!(result["finish_reason"], "stop");
    let longer = generate(&["--ignore-eos", "--stop-token", &stop, "--min-tokens", "20"]);
    let longer = ids(&longer["token_ids"]);
    assert!(longer.len() >= 20, "{longer:?}");
    assert!(!longer.contains(&plain[4]));
}

#[test]
fn the_prompt_has_log_probabilities_from_its_second_token_on() {
    let result = generate(&["--prompt-logprobs", "2", "--logprobs", "1"]);
    let prompt = result["prompt_logprobs"].as_array().unwrap();
    assert_eq!(prompt.len() as u64, result["prompt_tokens"].as_u64().unwrap());
    assert!(prompt.len() > 1 && prompt[0].is_null());
    for entry in &prompt[1..] {
        assert!(entry["logprob"].as_f64().unwrap() <= 0.0);
        assert_eq!(entry["top"].as_array().unwrap().len(), 2);
    }
    assert_eq!(result["logprobs"].as_array().unwrap().len(), 40);
    assert!(generate(&[]).get("prompt_logprobs").is_none());
    let short = [&GREEDY[..5], &["--max-tokens", "1", "--prompt-logprobs", "0"]].concat();
    assert_eq!(stderr(&run(&short)).lines().count(), prompt.len());
}

#[test]
fn echo_puts_the_prompt_first() {
    let plain = succeed(&GREEDY);
    let echoed = succeed(&[&GREEDY[..], &["--echo"]].concat());
    assert_eq!(echoed, format!("The fox{plain}"));
    let object = generate(&["--echo"]);
    assert_eq!(object["text"].as_str(), echoed.strip_suffix('\n'));
}
