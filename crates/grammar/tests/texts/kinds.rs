//! What each kind of grammar takes and refuses.

use crate::support::{ENDS, accepts, check, compile, info, refusal, text, tokenizer, walk};
use paceline_grammar::{Call, CompileBudget, Grammar, GrammarLimits, GrammarSpec, Lead, TokenizerInfo};
use paceline_text::ToolFormat;
use paceline_types::Constraint;
use serde_json::{Value, json};

#[test]
fn a_schema_takes_what_it_describes() {
    let schema = json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
        "required": ["name", "age"],
        "additionalProperties": false,
    });
    check(
        &GrammarSpec::JsonSchema(schema),
        &[r#"{"name":"Tim","age":7}"#, "{\"name\": \"T\",\n  \"age\": 120}"],
        &[
            r#"{"name":"Tim"}"#,
            r#"{"name":"Tim","age":121}"#,
            r#"{"age":7,"name":"Tim"}"#,
            " {}",
            "{}",
        ],
    );
    check(
        &GrammarSpec::JsonObject,
        &["{}", r#"{"a": [1, {"b": null}]}"#],
        &["[]", "1", "{"],
    );
}

#[test]
fn a_text_is_free_until_it_begins_a_call() {
    let parameters =
        json!({"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]});
    let of = |format: ToolFormat, separator: Option<&str>| GrammarSpec::TextOrCalls {
        calls: vec![Call::of(format, "weather", &parameters)],
        separator: separator.map(str::to_owned),
        trigger: format.trigger().map(str::to_owned),
    };
    let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";
    let (behind, twice) = (format!("I ask: {call}"), format!("{call}\n{call}"));
    let bad = [
        "<tool_call>",
        "x<tool_call>y",
        "<tool_call>\n{\"name\": \"cook\", ",
        &format!("{call} and"),
    ];
    check(
        &of(ToolFormat::Generic, None),
        &["", "Hello.\n\n{1 < 2}", "<tool_calling is fun", call, &behind],
        &[&bad[..], &[twice.as_str()]].concat(),
    );
    check(
        &of(ToolFormat::Hermes, Some("\n")),
        &["Hello.", call, &twice],
        &bad,
    );
    check(
        &of(ToolFormat::Llama3Json, Some("; ")),
        &[
            "",
            "Hello {there}",
            r#"{"name": "weather", "parameters": {"city":"Rome"}}"#,
        ],
        &["{}", r#"{"name": "cook", "#, " {"],
    );
}

#[test]
fn expressions_choices_and_grammars_take_their_texts() {
    let date = GrammarSpec::Regex(r"\d{4}-\d{2}(/x)?".to_owned());
    check(&date, &["2024-01", "1999-12/x"], &["2024-1", "2024-01-01", "x"]);
    let choice = GrammarSpec::Choice(["yes", "no \"thanks\"", "<|im_end|>"].map(str::to_owned).to_vec());
    check(
        &choice,
        &["yes", "no \"thanks\"", "<|im_end|>"],
        &["ye", "yes ", "<|im_start|>"],
    );
    let sum = "start: term (\"+\" term)*\nterm: NUMBER | \"(\" start \")\"\nNUMBER: /[0-9]+/";
    check(
        &GrammarSpec::Lark(sum.to_owned()),
        &["1+22", "(1+2)+3"],
        &["1+", "(1", "+"],
    );
}

#[test]
fn calls_are_written_as_models_write_them() {
    let parameters = json!({
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
        "additionalProperties": false,
    });
    let one = |format, separator: Option<&str>| GrammarSpec::Calls {
        calls: vec![
            Call::of(format, "weather", &parameters),
            Call::of(
                format,
                "stop",
                &json!({"properties": {}, "additionalProperties": false}),
            ),
        ],
        separator: separator.map(str::to_owned),
    };
    let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";
    let stop = "<tool_call>\n{\"name\": \"stop\", \"arguments\": {}}\n</tool_call>";
    let two = format!("{call}\n{stop}");
    check(
        &one(ToolFormat::Hermes, None),
        &[call, stop],
        &["Hello", "{}", &two],
    );
    check(
        &one(ToolFormat::Hermes, Some("\n")),
        &[call, &two],
        &["\n", &call[..20]],
    );
    // Names that a tool does not declare are of no use to it.
    let open = GrammarSpec::Calls {
        calls: vec![Call::of(
            ToolFormat::Llama3Json,
            "f",
            &json!({"properties": {"a": {"type": "integer"}}}),
        )],
        separator: None,
    };
    check(
        &open,
        &[
            r#"{"name": "f", "parameters": {"a": 1}}"#,
            r#"{"name": "f", "parameters": {}}"#,
        ],
        &[r#"{"name": "f", "parameters": {"b": 1}}"#],
    );
    let llama = r#"{"name": "weather", "parameters": {"city": "Rome", "days": 3}}"#;
    check(
        &one(ToolFormat::Llama3Json, None),
        &[llama],
        &[r#"{"name": "other", "parameters": {}}"#],
    );
    let coder = "<tool_call>\n<function=weather>\n<parameter=city>\nRo<me\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>";
    let without =
        "<tool_call>\n<function=weather>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>";
    check(&one(ToolFormat::Qwen3Coder, None), &[coder], &[without]);
}

#[test]
fn a_grammar_can_begin_behind_another_text() {
    let grammar = Grammar::after(info(), "</think>", &GrammarSpec::Choice(vec!["\nyes".to_owned()])).unwrap();
    assert!(accepts(&grammar, "well < now</think>\nyes"));
    assert!(!accepts(&grammar, "\nyes"));
    assert!(!accepts(&grammar, "well</think>no"));
    let object = Grammar::after(info(), "</think>", &GrammarSpec::JsonObject).unwrap();
    for between in ["", "\n", "\n\n"] {
        assert!(
            accepts(&object, &format!("hm</think>{between}{{}}")),
            "{between:?}"
        );
    }
    assert!(!accepts(&object, "hm</think>{}\n\n{}"));
}

#[test]
fn a_block_before_a_text_may_be_left_out() {
    let lead = Lead::Block("<think>".to_owned(), "</think>".to_owned());
    let grammar =
        Grammar::behind(info(), &lead, &GrammarSpec::JsonObject, &CompileBudget::default()).unwrap();
    assert!(accepts(&grammar, "{}"));
    assert!(accepts(&grammar, "<think>\nwell <now\n</think>\n\n{\"a\": 1}"));
    assert!(!accepts(&grammar, "well</think>{}"));
    assert!(!accepts(&grammar, "<think>{}"));
}

#[test]
fn either_of_two_grammars_takes_the_texts_of_both() {
    let schema = json!({"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]});
    let call = Call::of(
        ToolFormat::Hermes,
        "f",
        &json!({"properties": {}, "additionalProperties": false}),
    );
    let calls = GrammarSpec::Calls {
        calls: vec![call],
        separator: Some("\n".to_owned()),
    };
    let either = GrammarSpec::Either(vec![GrammarSpec::JsonSchema(schema), calls]);
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    let mixed = format!("{{\"ok\": true}}{call}");
    check(
        &either,
        &["{\"ok\": true}", call, &format!("{call}\n{call}")],
        &["{}", "text", &mixed],
    );
    let bad = |spec| refusal(&GrammarSpec::Either(vec![GrammarSpec::JsonObject, spec]));
    let message = bad(GrammarSpec::JsonSchema(
        json!({"properties": {"a": {"type": "thing"}}}),
    ));
    assert!(message.contains("/properties/a"), "{message}");
    let calls = ["object", "thing"].map(|kind| Call::framed("f", json!({ "type": kind }), "!"));
    let message = bad(GrammarSpec::Calls {
        calls: calls.to_vec(),
        separator: None,
    });
    assert!(
        message.contains("tool 1") && message.contains("thing"),
        "{message}"
    );
}

#[test]
fn special_tokens_come_only_where_a_grammar_names_them() {
    let anything = compile(&GrammarSpec::Regex("(?s:.*)".to_owned()));
    let mask = anything.matcher().masks(&[]).unwrap().remove(0);
    assert!(mask.allows(ENDS[0]) && mask.allows(ENDS[1]) && !mask.allows(1));
    let start = tokenizer().token_to_id("<|im_start|>").unwrap();
    let framed = GrammarSpec::Calls {
        calls: vec![Call::framed("<|im_start|>go", json!({"const": 1}), "!")],
        separator: None,
    };
    let mut matcher = compile(&framed).matcher();
    assert_eq!(
        matcher.masks(&[]).unwrap()[0].tokens().collect::<Vec<_>>(),
        [start]
    );
    // Written as a text, its name is text.
    let mut choice = compile(&GrammarSpec::Choice(vec!["<|im_start|>".to_owned()])).matcher();
    assert!(!choice.masks(&[]).unwrap()[0].allows(start));
}

#[test]
fn tokens_that_must_follow_are_the_tokenizers_own() {
    let words = "Once upon a time there was a little dog";
    let grammar = compile(&GrammarSpec::Choice(vec![
        words.to_owned(),
        "Once more".to_owned(),
    ]));
    let mut matcher = grammar.matcher();
    let forced = matcher.forced(15).unwrap();
    assert_eq!(text(&forced), "Once");
    matcher.commit(&forced).unwrap();
    let upon = tokenizer().encode(" upon", false).unwrap();
    matcher.commit(&upon).unwrap();
    let forced = matcher.forced(15).unwrap();
    assert!(forced.len() > 3, "{forced:?}");
    assert!(matcher.forced(2).unwrap().len() == 2 && matcher.forced(0).unwrap().is_empty());
    let masks = matcher.masks(&forced).unwrap();
    assert_eq!(masks.len(), forced.len() + 1);
    for (mask, token) in masks.iter().zip(&forced) {
        assert!(mask.count() == 1 && mask.allows(*token), "{mask:?}");
    }
}

#[test]
fn without_an_end_token_a_text_ends_where_the_grammar_does() {
    let info = TokenizerInfo::new(tokenizer(), &[], GrammarLimits::default()).unwrap();
    let grammar = Grammar::new(&info, &GrammarSpec::Choice(vec!["ok".to_owned()])).unwrap();
    let mut matcher = grammar.matcher();
    assert!(!matcher.is_finished());
    let tokens = tokenizer().encode("ok", false).unwrap();
    matcher.commit(&tokens).unwrap();
    assert!(matcher.is_finished());
    let with_end = compile(&GrammarSpec::Choice(vec!["ok".to_owned()]));
    let mut matcher = with_end.matcher();
    matcher.commit(&tokens).unwrap();
    assert!(!matcher.is_finished());
    assert_eq!(
        matcher.masks(&[]).unwrap()[0].tokens().collect::<Vec<_>>(),
        [0, 2]
    );
    matcher.commit(&ENDS[..1]).unwrap();
    assert!(matcher.is_finished());
}

#[test]
fn errors_say_what_is_wrong_and_where() {
    let schema = |value: Value| GrammarSpec::JsonSchema(value);
    for (spec, parts) in [
        (schema(json!({"type": "thing"})), ["schema", "thing"]),
        (
            schema(json!({"properties": {"a": {"items": {"type": "thing"}}}})),
            ["/properties/a/items", "thing"],
        ),
        (
            schema(json!({"type": "string", "pattern": "("})),
            ["schema", "regex"],
        ),
        (
            schema(
                json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 2}}, "required": ["n"]}),
            ),
            ["/properties/n", "3"],
        ),
        (schema(json!({"$ref": "#/$defs/none"})), ["schema", "none"]),
        (GrammarSpec::Regex("a(b".to_owned()), ["regex", "unclosed"]),
        (GrammarSpec::Regex(String::new()), ["regex", "no expression"]),
        (GrammarSpec::Lark("start: thing".to_owned()), ["grammar", "thing"]),
        (GrammarSpec::Lark("star: \"a\"".to_owned()), ["grammar", "start"]),
        (GrammarSpec::Choice(vec![]), ["choice", "no text"]),
    ] {
        let message = refusal(&spec);
        for part in parts {
            assert!(message.contains(part), "{spec:?}: {message}");
        }
        assert!(message.len() < 2000, "{message}");
    }
    let unknown = TokenizerInfo::new(tokenizer(), &[9999], GrammarLimits::default()).unwrap_err();
    assert!(unknown.to_string().contains("9999"));
}

#[test]
fn a_matcher_starts_over_for_every_text() {
    let grammar = compile(&GrammarSpec::Regex("[ab]{3}".to_owned()));
    let first = walk(&grammar, 1, 10).unwrap();
    assert_eq!(walk(&grammar.clone(), 1, 10).unwrap(), first);
    assert_eq!(text(&first).len(), 3);
}
