//! Grammars that are hard to compile or to follow.

use crate::victim::{ATTACKER, Victim, body, scale};
use serde_json::{Map, Value, json};
use std::thread;

/// An object with this many properties, none of them required.
fn optional(properties: usize) -> Value {
    let properties: Map<_, _> = (0..properties)
        .map(|number| (format!("p{number}"), json!({ "type": "null" })))
        .collect();
    let schema = json!({ "type": "object", "properties": properties, "additionalProperties": false });
    json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "x", "schema": schema } } })
}

/// Asks for a text of a form, which may be refused, and returns how the text ended.
fn ask(victim: &Victim, form: &Value, tokens: u64) -> Option<String> {
    let mut request = json!({ "prompt": "Once", "max_tokens": tokens, "temperature": 0 });
    for (name, value) in form.as_object().unwrap() {
        request[name] = value.clone();
    }
    let (status, reply) = victim
        .served
        .ask("POST /v1/completions", ATTACKER, &request.to_string());
    if matches!(status, 400 | 429) {
        return None;
    }
    assert_eq!(status, 200, "{reply}");
    let reply: Value = serde_json::from_str(body(&reply)).unwrap();
    Some(reply["choices"][0]["finish_reason"].as_str().unwrap().to_owned())
}

/// A client whose schema is as small as most.
fn ask_innocently(victim: &Victim) {
    let schema = json!({ "enum": ["red", "blue"] });
    let request = json!({
        "prompt": "Once", "max_tokens": 16,
        "response_format": { "type": "json_schema", "json_schema": { "name": "x", "schema": schema } },
    });
    let headers = "authorization: Bearer innocent\r\n";
    let (status, reply) = victim
        .served
        .ask("POST /v1/completions", headers, &request.to_string());
    assert_eq!(status, 200, "{reply}");
    let reply: Value = serde_json::from_str(body(&reply)).unwrap();
    let text = reply["choices"][0]["text"].as_str().unwrap().trim();
    assert!(matches!(text, r#""red""# | r#""blue""#), "{reply}");
}

#[test]
fn schemas_that_are_slow_to_compile_hold_up_nobody() {
    let victim = Victim::start(&[]);
    let figures = victim.under("schemas that compile for over 10 s", || {
        thread::scope(|scope| {
            for number in 0..scale(2, 8) {
                let victim = &victim;
                // Each is another one, so that no cache helps.
                scope.spawn(move || ask(victim, &optional(6400 + number), 16));
            }
            ask_innocently(&victim);
        });
        ask_innocently(&victim);
        Ok(())
    });
    figures.expect(512, 192);
}

#[test]
fn forms_that_cannot_be_followed_are_refused_when_they_are_asked_for() {
    let victim = Victim::start(&[]);
    let choice: Vec<_> = (0..2500)
        .map(|number| format!("start {number} of the thing"))
        .collect();
    let unanchored = json!({ "type": "string", "pattern": "^(a?){500}a{500}$" });
    let pattern = json!({
        "response_format": { "type": "json_schema", "json_schema": { "name": "x", "schema": unanchored } },
    });
    victim.under("forms that cannot be followed", || {
        for form in [json!({ "guided_choice": choice }), optional(4000), pattern] {
            // What is promised is kept: the text ends as texts do.
            let end = ask(&victim, &form, 64);
            assert!(end.is_none_or(|end| end == "stop" || end == "length"));
        }
        ask_innocently(&victim);
        Ok(())
    });
}

#[test]
fn ambiguous_grammars_hold_no_slot_for_long() {
    let victim = Victim::start(&["--max-num-seqs", "2"]);
    let grammars = [
        "start: s\ns: s s | \"a\"\n",
        "start: s\ns: s s s | s s | \"a\" | \"aa\"\n",
        "start: e\ne: e e | e \"a\" | \"a\" e | \"a\"\n",
        "start: e\ne: e e e e | \"a\" | \"\"\n",
    ];
    victim.under("ambiguous grammars", || {
        thread::scope(|scope| {
            for grammar in grammars.into_iter().cycle().take(scale(4, 12)) {
                let victim = &victim;
                scope.spawn(move || ask(victim, &json!({ "guided_grammar": grammar }), scale(200, 900)));
            }
            ask_innocently(&victim);
        });
        Ok(())
    });
}
