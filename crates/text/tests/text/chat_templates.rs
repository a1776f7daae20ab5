//! Templates of published models render byte for byte as they do in Python (see `data/make_expected.py`).

use std::path::{Path, PathBuf};

use paceline_text::{ChatInput, ChatTemplate, TextError};
use serde_json::Value;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

fn json(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(data(name)).unwrap()).unwrap()
}

fn input(case: &Value) -> ChatInput {
    let list = |key: &str| case[key].as_array().cloned();
    ChatInput {
        messages: list("messages").unwrap(),
        tools: list("tools"),
        documents: list("documents"),
        add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap_or(false),
        extra: case["extra"].as_object().cloned().unwrap_or_default(),
    }
}

/// Every difference between what a template gives here and what it gave in Python.
fn differences(name: &str) -> Vec<String> {
    let source = std::fs::read_to_string(data(&format!("templates/{name}.jinja"))).unwrap();
    let template = ChatTemplate::new(&source, Some("<|begin|>"), Some("<|end|>")).unwrap();
    let expected = json(&format!("expected/{name}.json"));
    let mut found = Vec::new();
    for case in json("conversations.json").as_array().unwrap() {
        let case_name = case["name"].as_str().unwrap();
        let expected = &expected[case_name];
        let rendered = template.render(&input(case));
        let same = match &rendered {
            Ok(text) => expected["text"] == *text,
            Err(TextError::TemplateRaised(message)) => expected["raised"] == *message,
            Err(_) => expected["failed"].is_string(),
        };
        if !same {
            found.push(format!(
                "{name}, {case_name}:\n  expected {expected}\n  rendered {rendered:?}"
            ));
        }
    }
    found
}

/// The bounds on what a template may spend are far from what real ones spend on the longest of conversations.
#[test]
fn a_conversation_of_four_thousand_messages_is_rendered() {
    let words = "so it goes ".repeat(40);
    let messages: Vec<Value> = (0..4000)
        .map(|at| {
            let role = if at % 2 == 0 { "user" } else { "assistant" };
            serde_json::json!({ "role": role, "content": format!("{at} {words}") })
        })
        .collect();
    for entry in std::fs::read_dir(data("templates")).unwrap() {
        let path = entry.unwrap().path();
        let source = std::fs::read_to_string(&path).unwrap();
        let template = ChatTemplate::new(&source, Some("<|begin|>"), Some("<|end|>")).unwrap();
        let input = ChatInput {
            messages: messages.clone(),
            ..ChatInput::default()
        };
        let text = template
            .render(&input)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(
            text.matches("so it goes").count(),
            4000 * 40,
            "{}",
            path.display()
        );
    }
}

#[test]
fn templates_render_as_in_python() {
    let mut names: Vec<_> = std::fs::read_dir(data("templates"))
        .unwrap()
        .filter_map(|entry| {
            Some(
                entry
                    .unwrap()
                    .file_name()
                    .to_str()?
                    .strip_suffix(".jinja")?
                    .to_owned(),
            )
        })
        .collect();
    names.sort();
    assert!(names.len() >= 5, "{names:?}");
    let found: Vec<_> = names.iter().flat_map(|name| differences(name)).collect();
    assert!(
        found.is_empty(),
        "{} differences\n{}",
        found.len(),
        found.join("\n")
    );
}
