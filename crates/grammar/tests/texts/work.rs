//! The work for compiling and following a grammar is bounded, and what cannot be followed is refused before a text
//! begins.

use crate::support::{ENDS, Random, accepts, compile, info, refusal, rounds, tokenizer};
use paceline_grammar::{Call, CompileBudget, Grammar, GrammarError, GrammarSpec, Lead};
use paceline_types::{Constraint, TokenId};
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

/// Follows a text of one token again and again, with this many drafts of it behind every place: why it ended, after
/// how many tokens, and the last of them behind which drafts were looked at.
fn repeat(grammar: &Grammar, token: TokenId, drafts: usize) -> (String, usize, usize) {
    let (mut matcher, drafts) = (grammar.matcher(), vec![token; drafts]);
    let mut drafted = 0;
    for tokens in 0..900 {
        let step = matcher.forced(drafts.len()).and_then(|_| matcher.masks(&drafts));
        let step = step.and_then(|masks| matcher.commit(&[token]).map(|()| masks));
        match step {
            Ok(masks) if masks.len() > 1 => drafted = tokens,
            Ok(_) => {}
            Err(error) => return (error.to_string(), tokens, drafted),
        }
    }
    panic!("{grammar:?} was followed to the end");
}

/// Without a bound these hold a slot for half a minute: what a token costs grows with the third power of the text.
#[test]
fn a_text_ends_when_its_grammar_takes_too_much_work() {
    let token = tokenizer().encode("a", false).unwrap()[0];
    let ambiguous = [
        "start: s\ns: s s | \"a\"\n",
        "start: s\ns: s s s | s s | \"a\" | \"aa\"\n",
        "start: e\ne: e e | e \"a\" | \"a\" e | \"a\"\n",
        "start: e\ne: e e e e | \"a\" | \"\"\n",
    ];
    for ambiguous in ambiguous.into_iter().take(rounds(2, 4) as usize) {
        let grammar = compile(&GrammarSpec::Lark(ambiguous.to_owned()));
        let (message, tokens, _) = repeat(&grammar, token, 0);
        assert!(message.contains("ms of work"), "{message}");
        assert!((100..320).contains(&tokens), "{ambiguous}: {tokens} tokens");
        // Drafts take no more than the text does, and do not change it.
        let (same, with_drafts, drafted) = repeat(&grammar, token, 7);
        assert_eq!((same, with_drafts), (message, tokens), "{ambiguous}");
        assert!(
            (50..tokens - 20).contains(&drafted),
            "{ambiguous}: {drafted} of {tokens}"
        );
    }
}

/// As wide as real grammars get.
#[test]
fn languages_and_wide_schemas_are_followed_for_as_long_as_their_texts() {
    let grammar = compile(&GrammarSpec::Lark(include_str!("queries.lark").to_owned()));
    for seed in 0..4 {
        let (mut random, mut matcher) = (Random(seed), grammar.matcher());
        for tokens in 0..600 {
            let mask = matcher.masks(&[]).unwrap().remove(0);
            let on: Vec<_> = mask.tokens().filter(|token| !ENDS.contains(token)).collect();
            let token = on[random.below(on.len())];
            let grown = matcher.commit(&[token]);
            assert_eq!(grown, Ok(()), "seed {seed}, {tokens} tokens");
        }
    }
    let wide = json_of(&optional(300)).clone();
    let list = compile(&GrammarSpec::JsonSchema(json!({"type": "array", "items": wide})));
    let members: Vec<_> = (0..10).map(|number| format!("\"p{number}\":null")).collect();
    let object = format!("{{{}}}", members.join(","));
    assert!(accepts(&list, &format!("[{}]", vec![object; 40].join(","))));
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
