//! Grammars that are meant to hurt end in an error, or in a grammar. Work that grows exponentially would not end at all.

use crate::support::info;
use paceline_grammar::{CompileBudget, Grammar, GrammarSpec, Lead};
use paceline_types::Constraint;
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Duration;

/// Compiles, and if that works takes a few tokens, all within bounds. The error, if there is one.
fn survive(name: &str, spec: &GrammarSpec) -> Option<String> {
    // What comes of it must not depend on how busy the machine is.
    let budget = CompileBudget::new(Duration::from_hours(1));
    let error = match Grammar::behind(info(), &Lead::None, spec, &budget) {
        Err(error) => Some(error.to_string()),
        Ok(grammar) => {
            let mut matcher = grammar.matcher();
            for _ in 0..8 {
                let Ok(forced) = matcher.forced(7) else { break };
                let Ok(masks) = matcher.masks(&forced) else { break };
                let token = masks[0].tokens().last().unwrap();
                if matcher.commit(&[token]).is_err() || matcher.is_finished() {
                    break;
                }
            }
            None
        }
    };
    if let Some(error) = &error {
        assert!(error.len() < 4000, "{name}: {} bytes of message", error.len());
    }
    error
}

fn nested(depth: usize, keyword: &str) -> Value {
    let mut schema = json!({"type": "string"});
    for _ in 0..depth {
        schema = match keyword {
            "properties" => json!({"type": "object", "properties": {"a": schema}}),
            "items" => json!({"type": "array", "items": schema}),
            _ => json!({"anyOf": [schema, {"type": "null"}]}),
        };
    }
    schema
}

#[test]
fn deep_schemas_are_refused_with_the_place() {
    for keyword in ["properties", "items", "anyOf"] {
        let message = survive(keyword, &GrammarSpec::JsonSchema(nested(300, keyword))).unwrap();
        assert!(message.contains("nesting") && message.contains("64"), "{message}");
        assert!(survive(keyword, &GrammarSpec::JsonSchema(nested(20, keyword))).is_none());
    }
}

#[test]
fn long_chains_of_references_break_nothing() {
    for keyword in ["allOf", "anyOf", "items"] {
        let mut definitions = serde_json::Map::new();
        for index in 0..1500 {
            let next = json!({"$ref": format!("#/$defs/d{}", index + 1)});
            let schema = if keyword == "items" {
                json!({"items": next})
            } else {
                json!({keyword: [next]})
            };
            definitions.insert(format!("d{index}"), schema);
        }
        definitions.insert("d1500".to_owned(), json!({"type": "string"}));
        survive(
            keyword,
            &GrammarSpec::JsonSchema(json!({"$ref": "#/$defs/d0", "$defs": definitions})),
        );
    }
    let circle =
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}});
    survive("circle", &GrammarSpec::JsonSchema(circle));
    let itself = json!({"allOf": [{"$ref": "#"}]});
    survive("itself", &GrammarSpec::JsonSchema(itself));
}

#[test]
fn huge_schemas_are_refused() {
    let many: Vec<String> = (0..100_000).map(|index| format!("value {index}")).collect();
    let message = survive("enum", &GrammarSpec::JsonSchema(json!({ "enum": many }))).unwrap();
    assert!(
        message.contains("20000") || message.contains("524288"),
        "{message}"
    );
    let fewer: Vec<String> = (0..5_000).map(|index| format!("value {index}")).collect();
    survive(
        "enum that fits",
        &GrammarSpec::JsonSchema(json!({ "enum": fewer })),
    );
    let mut properties = serde_json::Map::new();
    for index in 0..5_000 {
        properties.insert(format!("p{index}"), json!({"type": "integer"}));
    }
    survive(
        "optional properties",
        &GrammarSpec::JsonSchema(json!({"type": "object", "properties": properties})),
    );
    let lists = json!({"type": "array", "minItems": 100_000, "maxItems": 1_000_000, "items": {"type": "array", "minItems": 1000}});
    survive("long lists", &GrammarSpec::JsonSchema(lists));
    let long = json!({"type": "string", "minLength": 1_000_000, "maxLength": 4_000_000_000_u64});
    survive("long strings", &GrammarSpec::JsonSchema(long));
    let product: Vec<Value> = (0..12)
        .map(|index| json!({"anyOf": [{"properties": {format!("a{index}"): {"const": 1}}}, {"properties": {format!("b{index}"): {"const": 2}}}]}))
        .collect();
    survive("products", &GrammarSpec::JsonSchema(json!({ "allOf": product })));
}

#[test]
fn catastrophic_expressions_are_refused_or_harmless() {
    for regex in [
        "(a+)+$",
        "(a|aa)+b",
        "((a{1,100}){1,100}){1,100}",
        "(x+x+)+y",
        "(.*a){30}",
        "(.{0,500}a.{0,500}b){0,50}",
        "[ab]*a[ab]{400}",
        "(?i:é{1,1000}|.{0,9999}){999}",
    ] {
        survive(regex, &GrammarSpec::Regex(regex.to_owned()));
        survive(
            regex,
            &GrammarSpec::JsonSchema(json!({"type": "string", "pattern": regex})),
        );
    }
    // Long texts that leave no choice.
    for (regex, taken) in [("(a{1000}){50}", true), ("(a{1000}){1000}", false)] {
        assert_eq!(
            survive(regex, &GrammarSpec::Regex(regex.to_owned())).is_none(),
            taken
        );
    }
    let parentheses = format!("{}a{}", "(".repeat(50_000), ")".repeat(50_000));
    assert!(survive("parentheses", &GrammarSpec::Regex(parentheses)).is_some());
    let message = survive("long", &GrammarSpec::Regex("a".repeat(600 << 10))).unwrap();
    assert!(message.contains("bytes"), "{message}");
}

#[test]
fn grammars_that_go_in_circles_or_explode_are_survived() {
    for grammar in [
        "start: start",
        "start: start start | \"a\" |",
        "start: a\na: b\nb: a",
        "start: (\"a\"?)*",
        "start: x{1,100000}\nx: y{1,100000}\ny: \"a\" | \"b\"",
        "start: A{100000}\nA: /[a-z]+/",
        "A: B\nB: A\nstart: A",
        "start: %json {\"$ref\": \"#\"}",
        "start: <|im_start|>",
        "%llguidance {\"allow_invalid_utf8\": true}\nstart: /(?s-u:.)+/",
        "start: \"unclosed",
        "",
        "start: @other",
    ] {
        survive(grammar, &GrammarSpec::Lark(grammar.to_owned()));
    }
    let deep = format!("start: {}\"a\"{}", "(".repeat(20_000), ")".repeat(20_000));
    assert!(survive("deep", &GrammarSpec::Lark(deep)).is_some());
    let mut chain = "start: A0\n".to_owned();
    for index in 0..3000 {
        writeln!(chain, "A{index}: A{} \"x\"", index + 1).unwrap();
    }
    chain.push_str("A3000: \"y\"");
    survive("chain", &GrammarSpec::Lark(chain));
}

#[test]
fn odd_values_are_no_schemas() {
    for value in [
        json!(1),
        json!("a"),
        json!([]),
        json!(null),
        json!({"type": 1}),
        json!({"properties": []}),
        json!({"required": 3}),
    ] {
        survive("odd", &GrammarSpec::JsonSchema(value));
    }
    assert!(survive("never", &GrammarSpec::JsonSchema(json!(false))).is_some());
    assert!(survive("anything", &GrammarSpec::JsonSchema(json!(true))).is_none());
}
