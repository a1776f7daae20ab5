//! The work for compiling and following a grammar is bounded, and what cannot be followed is refused before a text
//! begins.

use crate::support::{accepts, compile, info, refusal, tokenizer};
use paceline_grammar::{Call, CompileBudget, Grammar, GrammarError, GrammarSpec, Lead};
use paceline_types::Constraint;
use serde_json::{Map, Value, json};
use std::time::Duration;

fn optional(count: usize) -> GrammarSpec {
    let properties: Map<_, _> = (0..count)
        .map(|number| (format!("p{number}"), json!({"type": "null"})))
        .collect();
    GrammarSpec::JsonSchema(json!({"type": "object", "properties": properties}))
}

fn json_of(spec: &GrammarSpec) -> &Value {
    match spec {
        GrammarSpec::JsonSchema(schema) => schema,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_object_has_as_many_optional_properties_as_can_be_followed() {
    let grammar = compile(&optional(300));
    for text in [
        "{}",
        r#"{"p299":null}"#,
        r#"{"p0":null,"p1":null,"p150":null,"p299":null}"#,
    ] {
        assert!(accepts(&grammar, text), "{text}");
    }
    for count in [301, 4000, 6400] {
        let message = refusal(&optional(count));
        assert!(
            message.contains(&format!("optional properties is {count}")),
            "{message}"
        );
    }
    // Whatever way they come together.
    let part = json_of(&optional(200)).clone();
    let other: Value = serde_json::from_str(
        &part
            .to_string()
            .replace("\"p", "\"q")
            .replace("\"qroperties", "\"properties"),
    )
    .unwrap();
    let rules = format!("start: %json {}", json_of(&optional(4000)));
    assert!(refusal(&GrammarSpec::Lark(rules)).contains("the number of bytes"));
    let joined = json!({"allOf": [part, other]});
    let calls = GrammarSpec::Calls {
        calls: vec![Call::framed("f", joined.clone(), "!")],
        separator: None,
    };
    for spec in [GrammarSpec::JsonSchema(joined), calls] {
        let message = refusal(&spec);
        assert!(message.contains("optional properties is 400"), "{message}");
    }
}

#[test]
fn what_cannot_be_followed_is_refused_before_a_text_begins() {
    let names: Vec<_> = (0..3000).map(|number| format!("\"{number}\" other")).collect();
    let grammar = format!("start: {}\nother: \"x\"", names.join(" | "));
    let message = refusal(&GrammarSpec::Lark(grammar));
    assert!(message.contains("items"), "{message}");
}

#[test]
fn a_text_ends_when_its_grammar_takes_too_much_work() {
    let ambiguous = "start: e\ne: e e | e \"a\" | \"a\" e | \"a\"\n";
    let grammar = compile(&GrammarSpec::Lark(ambiguous.to_owned()));
    let token = tokenizer().encode("a", false).unwrap()[0];
    let mut matcher = grammar.matcher();
    let ended = (0..900).find_map(|_| {
        let step = matcher.masks(&[]).and_then(|_| matcher.commit(&[token]));
        step.err()
    });
    let message = ended.unwrap().to_string();
    assert!(message.contains("ms of work"), "{message}");
}

#[test]
fn a_choice_may_be_long() {
    let texts: Vec<_> = (0..2500)
        .map(|number| format!("start {number} of the thing"))
        .collect();
    let grammar = Grammar::new(info(), &GrammarSpec::Choice(texts)).unwrap();
    for text in ["start 0 of the thing", "start 2499 of the thing"] {
        assert!(accepts(&grammar, text), "{text}");
    }
    assert!(!accepts(&grammar, "start 2500 of the thing"));
}

#[test]
fn a_compilation_is_given_up_when_it_has_taken_too_long_or_nobody_waits() {
    let compile = |budget: &CompileBudget| {
        Grammar::behind(info(), &Lead::None, &GrammarSpec::JsonObject, budget).map(|_| ())
    };
    assert_eq!(compile(&CompileBudget::default()), Ok(()));
    let late = CompileBudget::new(Duration::ZERO);
    assert_eq!(
        compile(&late),
        Err(GrammarError::TooSlow { time: Duration::ZERO })
    );
    let cancelled = CompileBudget::default();
    cancelled.clone().cancel();
    assert_eq!(compile(&cancelled), Err(GrammarError::Cancelled));
}
