//! What holds for the parts of any output, whatever the text is and however it arrives.

use crate::parts::joined;
use paceline_text::{OutputParser, OutputParserOptions, OutputPart, ReasoningFormat, ToolFormat};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Map, Value, json};

use OutputPart::{Content, Reasoning, ToolCallArguments, ToolCallEnd, ToolCallStart};

const FORMATS: &[ToolFormat] = &[ToolFormat::Hermes, ToolFormat::Qwen3Coder, ToolFormat::Llama3Json];

/// Pieces of all formats, whole and broken.
const FRAGMENTS: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "<tool",
    "<function=f>",
    "<function=",
    "</function>",
    "<parameter=s>",
    "<parameter=i>",
    "<parameter=u>",
    "<parameter=",
    "</parameter>",
    "</param",
    "<think>",
    "</think>",
    "</th",
    "<|python_tag|>",
    "<|py",
    "{\"name\": \"f\", \"arguments\": ",
    "{\"name\": \"f\", \"parameters\": {",
    "{\"arguments\": ",
    ", \"name\": \"g\"}",
    "\"name\"",
    "\"a\"",
    "\"{\\\"b\\\": 1}\"",
    "{\"c\": [1, ",
    "{}",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\",
    "\\u00e9",
    ":",
    ",",
    ";",
    "null",
    "true",
    "-1",
    "0.5e",
    "7",
    "é",
    "😀",
    " ",
    "\n",
    "\r\n",
    ">",
    "<",
    "word",
];

fn tools() -> Vec<Value> {
    let properties = json!({
        "s": {"type": "string"},
        "i": {"type": "integer"},
        "u": {"type": ["string", "null"]},
        "o": {},
    });
    vec![json!({"name": "f", "parameters": {"properties": properties}})]
}

fn options(tools: &[Value]) -> impl Strategy<Value = OutputParserOptions<'_>> {
    let formats = FORMATS.iter().copied().map(Some).collect::<Vec<_>>();
    (select(formats), any::<bool>(), any::<bool>()).prop_map(|(tool_format, reasons, inside)| {
        OutputParserOptions {
            reasoning: reasons.then_some(ReasoningFormat::Qwen3),
            inside_reasoning: inside,
            tool_format,
            tools,
        }
    })
}

fn wild_text() -> impl Strategy<Value = String> {
    let fragment = prop_oneof![
        12 => select(FRAGMENTS).prop_map(str::to_owned),
        1 => ".{0,3}",
        1 => prop::collection::vec(any::<u8>(), 0..6)
            .prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
    ];
    // Half of the texts are well on their way into a call, which random fragments seldom reach.
    let start = select(vec![
        "",
        "",
        "",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {",
        "<tool_call>\n<function=f>\n<parameter=s>",
        "{\"name\": \"f\", \"parameters\": {\"a\": ",
    ]);
    (start, prop::collection::vec(fragment, 0..24))
        .prop_map(|(start, list)| start.to_owned() + &list.concat())
}

fn parse<'a>(
    options: &OutputParserOptions<'_>,
    pieces: impl IntoIterator<Item = &'a str>,
) -> Vec<OutputPart> {
    let mut parser = OutputParser::new(options);
    let mut parts: Vec<_> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    parts.extend(parser.finish());
    joined(parts)
}

fn characters(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive(|_: char| true)
}

/// `text` cut at some places.
fn cut<'a>(text: &'a str, places: &[Index]) -> Vec<&'a str> {
    let mut ends: Vec<usize> = (0..=text.len()).filter(|&at| text.is_char_boundary(at)).collect();
    let mut cuts: Vec<usize> = places.iter().map(|place| *place.get(&ends)).collect();
    cuts.extend([0, text.len()]);
    cuts.sort_unstable();
    ends.clear();
    cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
}

/// Calls of joined parts, after checking that their parts are in order: name, arguments, whether complete.
fn calls(parts: &[OutputPart]) -> Vec<(String, String, bool)> {
    let mut calls = Vec::new();
    let mut rest = parts.iter();
    while let Some(part) = rest.next() {
        let (index, name) = match part {
            Content(text) | Reasoning(text) => {
                assert!(!text.is_empty());
                continue;
            }
            ToolCallStart { index, name } => (*index, name.clone()),
            part => panic!("{part:?} outside a call: {parts:?}"),
        };
        assert_eq!(index, calls.len(), "{parts:?}");
        assert!(!name.is_empty());
        match (rest.next(), rest.next()) {
            (Some(ToolCallArguments { index: one, delta }), Some(ToolCallEnd { index: two, complete })) => {
                assert_eq!((*one, *two), (index, index), "{parts:?}");
                calls.push((name, delta.clone(), *complete));
            }
            _ => panic!("call {index} is not whole: {parts:?}"),
        }
    }
    calls
}

/// All the text that came out, calls included.
fn everything(parts: &[OutputPart]) -> String {
    let text = parts.iter().map(|part| match part {
        Content(text) | Reasoning(text) | ToolCallStart { name: text, .. } => text.as_str(),
        ToolCallArguments { delta, .. } => delta.as_str(),
        ToolCallEnd { .. } => " ",
    });
    text.collect::<Vec<_>>().join(" ")
}

fn object() -> impl Strategy<Value = Map<String, Value>> {
    let text = prop_oneof![
        ".{0,8}",
        prop::collection::vec(select(FRAGMENTS), 0..4).prop_map(|list| list.concat())
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    let value = leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::vec(("[a-c]", inner), 0..3)
                .prop_map(|list| Value::Object(list.into_iter().collect())),
        ]
    });
    prop::collection::vec(("[a-z\"é]{1,3}", value), 0..3).prop_map(|list| list.into_iter().collect())
}

/// A call as a model writes it that knows the format; `None` if the format cannot express it.
fn written(format: ToolFormat, name: &str, arguments: &Map<String, Value>) -> Option<String> {
    let frame = format.wrap(name);
    let mut text = frame.prefix;
    if !frame.parameters {
        return Some(text + &Value::Object(arguments.clone()).to_string() + &frame.suffix);
    }
    for (key, value) in arguments {
        let (before, after) = format.wrap_parameter(key)?;
        let plain = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let framed = format!("\n{plain}\n");
        if ["</parameter>", "\n<parameter=", "\n</function>"]
            .iter()
            .any(|end| framed.contains(end))
        {
            return None;
        }
        // A string that looks like another type is read as one where the schema allows it.
        if value.is_string() && serde_json::from_str::<Value>(&plain).is_ok_and(|value| !value.is_string()) {
            return None;
        }
        if value.is_string() && ["true", "false", "none"].contains(&plain.trim().to_lowercase().as_str()) {
            return None;
        }
        text += &(before + &plain + &after);
    }
    Some(text + &frame.suffix)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn how_the_text_is_cut_changes_nothing(
        options in options(Box::leak(Box::new(tools()))),
        text in wild_text(),
        places in prop::collection::vec(any::<Index>(), 0..6),
    ) {
        let whole = parse(&options, [text.as_str()]);
        prop_assert_eq!(&parse(&options, characters(&text)), &whole);
        prop_assert_eq!(&parse(&options, cut(&text, &places)), &whole);
    }

    #[test]
    fn arguments_are_an_object_exactly_if_the_call_is_complete(
        options in options(Box::leak(Box::new(tools()))),
        text in wild_text(),
    ) {
        for (name, arguments, complete) in calls(&parse(&options, [text.as_str()])) {
            prop_assert!(arguments.starts_with('{'), "{}: {}", name, arguments);
            let value = serde_json::from_str::<Value>(&arguments);
            prop_assert_eq!(value.is_ok_and(|value| value.is_object()), complete, "{}: {}", name, arguments);
        }
    }

    #[test]
    fn no_word_is_lost(
        options in options(Box::leak(Box::new(tools()))),
        start in wild_text(),
        fragments in prop::collection::vec((select(FRAGMENTS), any::<bool>()), 0..24),
    ) {
        // Words in the place of keys are part of the format; a quote of its own or an open tag makes such places.
        let makes_keys = ["\"", "\\", "<parameter=", "<function="];
        let mut text = if start.contains(['"', '=']) { String::new() } else { start };
        let mut words = Vec::new();
        for (fragment, with_word) in fragments.into_iter().filter(|(fragment, _)| !makes_keys.contains(fragment)) {
            text += fragment;
            if !with_word {
                continue;
            }
            let word = format!("w{}w", words.len());
            text += &word;
            words.push(word);
        }
        let parts = parse(&options, [text.as_str()]);
        let out = everything(&parts);
        for word in words {
            prop_assert!(out.contains(&word), "{} of {:?} in {:?}", word, text, parts);
        }
    }

    #[test]
    fn plain_text_comes_out_as_it_is(options in options(&[]), text in "[^<{]{0,40}") {
        let options = OutputParserOptions { inside_reasoning: false, ..options };
        let expected = if text.is_empty() { vec![] } else { vec![Content(text.clone())] };
        prop_assert_eq!(parse(&options, characters(&text)), expected);
    }

    #[test]
    fn only_what_may_be_a_tag_is_held_back(format in select(FORMATS), text in "[a-z <>/\n]{0,40}") {
        let options = OutputParserOptions { tool_format: Some(format), ..OutputParserOptions::default() };
        let given = joined(OutputParser::new(&options).push(&text));
        let given = match given.as_slice() {
            [] => "",
            [Content(text)] => text,
            other => panic!("{other:?}"),
        };
        let held = text.strip_prefix(given).unwrap();
        let tags: &[&str] = match format {
            ToolFormat::Hermes | ToolFormat::Generic => &["<tool_call>"],
            ToolFormat::Qwen3Coder => &["<tool_call>", "<function="],
            ToolFormat::Llama3Json => &["<|python_tag|>"],
        };
        // White space before everything else waits for what it separates.
        let space = if given.is_empty() { held.trim_start() } else { held };
        prop_assert!(space.is_empty() || tags.iter().any(|tag| tag.starts_with(space)), "{:?}", held);
    }

    #[test]
    fn calls_are_read_back_as_they_were_written(
        format in select(FORMATS),
        list in prop::collection::vec(("[a-z_.]{1,8}", object()), 1..4),
        before in "[a-z][a-z \n]{0,10}",
        places in prop::collection::vec(any::<Index>(), 0..8),
    ) {
        let any_type = |name: &String, arguments: &Map<String, Value>| {
            // Strings are declared so, other values not at all: both have to come back.
            let types = arguments.iter().map(|(key, value)| {
                (key.clone(), if value.is_string() { json!({"type": "string"}) } else { json!({}) })
            });
            json!({"name": name, "parameters": {"properties": types.collect::<Map<_, _>>()}})
        };
        let list: Vec<_> = list.into_iter().enumerate()
            .map(|(index, (name, arguments))| (format!("{name}{index}"), arguments))
            .collect();
        let texts: Option<Vec<_>> = list.iter().map(|(name, arguments)| written(format, name, arguments)).collect();
        let Some(texts) = texts else { return Ok(()) };
        let before = if format == ToolFormat::Llama3Json { "" } else { &before };
        let text = before.to_owned() + &texts.join(format.separator().unwrap_or("\n")) + "\n";
        let tools: Vec<_> = list.iter().map(|(name, arguments)| any_type(name, arguments)).collect();
        let options = OutputParserOptions { tool_format: Some(format), tools: &tools, ..OutputParserOptions::default() };
        let parts = parse(&options, cut(&text, &places));
        let content: String = parts.iter().filter_map(|part| match part {
            Content(text) => Some(text.as_str()),
            _ => None,
        }).collect();
        prop_assert_eq!(content, before);
        let found: Vec<_> = calls(&parts).into_iter()
            .map(|(name, arguments, complete)| (name, serde_json::from_str::<Map<_, _>>(&arguments).ok(), complete))
            .collect();
        let expected: Vec<_> = list.into_iter().map(|(name, arguments)| (name, Some(arguments), true)).collect();
        prop_assert_eq!(found, expected, "{}", text);
    }
}
