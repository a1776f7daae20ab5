//! The examples of the README that use `curl`, run as they stand against a server with the built-in model.
//!
//! The comment above an example says what comes of it: `gives` fields of the reply, `streams` fields of some event,
//! and before that a status if it is not 200. An answer that has to follow a schema is held against it, with ten seeds.

use crate::common::repository;
use crate::common::served::Served;
use serde_json::Value;
use std::fs;
use std::process::Command;

/// Where the README thinks that a server listens.
const ADDRESS: &str = "127.0.0.1:8000";

/// A command and what its comment says.
struct Example {
    comment: String,
    command: String,
}

fn examples() -> Vec<Example> {
    let readme = fs::read_to_string(repository("README.md")).unwrap();
    let (mut examples, mut comment, mut lines) = (Vec::new(), String::new(), readme.lines());
    while let Some(line) = lines.next() {
        if let Some(text) = line.strip_prefix("# ") {
            text.clone_into(&mut comment);
        }
        if !line.starts_with("curl ") {
            continue;
        }
        let mut command = line.to_owned();
        // A command ends with its line, unless that is continued or a quoted text is open.
        while command.ends_with('\\') || command.matches('\'').count() % 2 == 1 {
            command = format!("{command}\n{}", lines.next().unwrap());
        }
        examples.push(Example {
            comment: std::mem::take(&mut comment),
            command,
        });
    }
    examples
}

/// What is at a place such as `choices[0].text`.
fn at<'a>(value: &'a Value, place: &str) -> Option<&'a Value> {
    let pointer = place.replace("].", "/").replace(['.', '['], "/").replace(']', "");
    value
        .pointer(&format!("/{pointer}"))
        .filter(|found| !found.is_null())
}

#[test]
fn the_examples_of_the_readme_do_what_they_say() {
    let served = Served::start(&[]);
    let home = tempfile::tempdir().unwrap();
    // The commands stay as they are; what the test wants to know is asked for here.
    let settings = "silent\nshow-error\nmax-time = 60\nwrite-out = \"\\n%{http_code}\"\n";
    fs::write(home.path().join(".curlrc"), settings).unwrap();
    let examples = examples();
    assert!(examples.len() >= 5, "the README has {} examples", examples.len());
    let run = |command: &str| {
        assert!(command.contains(ADDRESS), "{command}");
        let output = Command::new("sh")
            .args(["-c", &command.replace(ADDRESS, &served.address)])
            .env("CURL_HOME", home.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let mut forms = 0;
    for Example { comment, command } in examples {
        let output = run(&command);
        let (reply, status) = output.rsplit_once('\n').unwrap();
        let (_, outcome) = comment
            .rsplit_once("; ")
            .unwrap_or_else(|| panic!("nothing is said about {command}"));
        let outcome = outcome.strip_suffix('.').unwrap();
        let (wanted, outcome) = match outcome.split_once(' ') {
            Some((code, rest)) if code.parse::<u16>().is_ok() => (code, rest),
            _ => ("200", outcome),
        };
        assert_eq!(status, wanted, "{command}: {reply}");
        let (values, places): (Vec<Value>, _) = if let Some(places) = outcome.strip_prefix("streams ") {
            let data = reply.lines().filter_map(|line| line.strip_prefix("data: {"));
            let parse = |data: &str| serde_json::from_str(&format!("{{{data}")).unwrap();
            (data.map(parse).collect(), places)
        } else {
            let places = outcome.strip_prefix("gives ").unwrap();
            (vec![serde_json::from_str(reply).unwrap()], places)
        };
        if let Some(schema) = schema_of(&command) {
            forms += 1;
            for seed in 0..10 {
                let output = run(&command.replacen('{', &format!("{{\"seed\": {seed}, "), 1));
                keeps(&schema, output.rsplit_once('\n').unwrap().0);
            }
        }
        for place in places.split(" and ") {
            let found = values.iter().any(|value| at(value, place).is_some());
            assert!(found, "no {place} after {command}: {reply}");
        }
    }
    assert!(forms > 0, "the README shows no form of answers");
}

/// The schema that a command asks for.
fn schema_of(command: &str) -> Option<Value> {
    let (_, body) = command.split_once("-d '")?;
    let body: Value = serde_json::from_str(body.strip_suffix('\'')?).ok()?;
    at(&body, "response_format.json_schema.schema").cloned()
}

/// Checks that an answer has ended by itself and is what the schema describes.
fn keeps(schema: &Value, reply: &str) {
    let reply: Value = serde_json::from_str(reply).unwrap();
    let text = at(&reply, "choices[0].message.content")
        .unwrap()
        .as_str()
        .unwrap();
    let answer = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {reply}"));
    assert!(jsonschema::is_valid(schema, &answer), "{reply}");
    assert_eq!(reply["choices"][0]["finish_reason"], "stop", "{reply}");
}

#[test]
fn places_are_found() {
    let value = serde_json::json!({ "a": [{ "b": 1 }, { "b": { "c": null } }] });
    assert_eq!(at(&value, "a[0].b"), Some(&1.into()));
    assert_eq!(at(&value, "a[1].b.c"), None);
    assert_eq!(at(&value, "a[2].b"), None);
}
