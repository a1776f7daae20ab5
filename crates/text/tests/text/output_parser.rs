//! Outputs of models, split into content, reasoning and calls.

use std::path::Path;

use crate::parts::joined;
use paceline_text::{
    ChatInput, ChatTemplate, OutputParser, OutputParserOptions, OutputPart, ReasoningFormat, ToolFormat,
};
use serde_json::{Value, json};

use OutputPart::{Content, Reasoning, ToolCallArguments, ToolCallEnd, ToolCallStart};

fn tools() -> Vec<Value> {
    let parameters = json!({
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "exact": {"type": "boolean"},
            "unit": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "places": {"type": "array", "items": {"type": "string"}},
            "options": {"$ref": "#/$defs/Options"},
            "limit": {"type": ["number", "string"]},
        },
        "$defs": {"Options": {"type": "object"}},
    });
    vec![
        json!({"type": "function", "function": {"name": "weather", "parameters": parameters}}),
        json!({"name": "time", "input_schema": {"type": "object", "properties": {"zone": {"type": "integer"}}}}),
    ]
}

/// What the parser makes of a text that arrives character by character.
fn parse(options: &OutputParserOptions<'_>, text: &str) -> Vec<OutputPart> {
    let mut parser = OutputParser::new(options);
    let mut pieces: Vec<_> = text.chars().map(|c| parser.push(&c.to_string())).collect();
    pieces.push(parser.finish());
    joined(pieces.concat())
}

fn parse_tools(format: ToolFormat, text: &str) -> Vec<OutputPart> {
    let tools = tools();
    let options = OutputParserOptions {
        tool_format: Some(format),
        tools: &tools,
        ..OutputParserOptions::default()
    };
    parse(&options, text)
}

fn content(text: &str) -> Vec<OutputPart> {
    vec![Content(text.to_owned())]
}

fn reasoning(text: &str) -> Vec<OutputPart> {
    vec![Reasoning(text.to_owned())]
}

fn call(index: usize, name: &str, arguments: &str) -> Vec<OutputPart> {
    parts_of_call(index, name, arguments, true)
}

fn cut_call(index: usize, name: &str, arguments: &str) -> Vec<OutputPart> {
    parts_of_call(index, name, arguments, false)
}

fn parts_of_call(index: usize, name: &str, arguments: &str, complete: bool) -> Vec<OutputPart> {
    vec![
        ToolCallStart {
            index,
            name: name.to_owned(),
        },
        ToolCallArguments {
            index,
            delta: arguments.to_owned(),
        },
        ToolCallEnd { index, complete },
    ]
}

#[test]
fn hermes_calls_come_one_by_one_with_their_arguments_as_written() {
    let text = "Let me look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Łódź </tool_call>\", \
                \"days\":  3}}\n</tool_call>\n<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>\n";
    let expected = [
        content("Let me look.\n"),
        call(0, "weather", "{\"city\": \"Łódź </tool_call>\", \"days\":  3}"),
        call(1, "time", "{}"),
    ];
    assert_eq!(parse_tools(ToolFormat::Hermes, text), expected.concat());
}

#[test]
fn hermes_arguments_are_streamed() {
    let options = OutputParserOptions {
        tool_format: Some(ToolFormat::Hermes),
        ..OutputParserOptions::default()
    };
    let mut parser = OutputParser::new(&options);
    assert_eq!(parser.push("Hi <tool"), content("Hi "));
    assert_eq!(parser.push("_call>\n{\"name\": \"f\", \"arg"), []);
    let start = &cut_call(0, "f", "{\"a\": \"so fa")[..2];
    assert_eq!(parser.push("uments\": {\"a\": \"so fa"), start);
    let more = ToolCallArguments {
        index: 0,
        delta: "r\"}".to_owned(),
    };
    let end = ToolCallEnd {
        index: 0,
        complete: true,
    };
    assert_eq!(parser.push("r\"}}"), [more, end]);
    assert_eq!(parser.push("\n</tool_call>\n\nDone <"), content("\n\nDone "));
    assert_eq!(parser.finish(), content("<"));
}

#[test]
fn arguments_are_an_object_whichever_way_they_are_given() {
    let cases = [
        (
            r#""arguments": "{\"city\": \"a\\n\"}", "name": "f""#,
            r#"{"city": "a\n"}"#,
        ),
        (r#""name": "f", "arguments": "{\"city\": 1}""#, r#"{"city": 1}"#),
        (r#""arguments": {"a": [1]}, "name": "f""#, r#"{"a": [1]}"#),
        (r#""name": "f", "parameters": {"a": 1}"#, r#"{"a": 1}"#),
        (
            r#""id": 7, "name": "f", "arguments": {"a": 1}, "x": [{}]"#,
            r#"{"a": 1}"#,
        ),
        (r#""name": "f", "arguments": """#, "{}"),
        (r#""name": "f", "arguments": null"#, "{}"),
        (r#""name": "f""#, "{}"),
    ];
    for (object, arguments) in cases {
        let text = format!("<tool_call>{{{object}}}</tool_call>");
        assert_eq!(
            parse_tools(ToolFormat::Hermes, &text),
            call(0, "f", arguments),
            "{text}"
        );
    }
    let newline = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x\ny\"}}</tool_call>";
    assert_eq!(
        parse_tools(ToolFormat::Hermes, newline),
        call(0, "f", r#"{"a": "x\ny"}"#)
    );
}

#[test]
fn what_is_no_hermes_call_is_content() {
    let texts = [
        "Use <tool_call> tags.",
        "<tool_call>",
        "<tool_call>\n{\"name\": \"f",
        "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": \"five\"}</tool_call>",
        "<tool_call>{\"arguments\": {}}</tool_call>",
        "<tool_call><function=weather>",
        "\n <tool_call",
        "\n\n",
    ];
    for text in texts {
        assert_eq!(parse_tools(ToolFormat::Hermes, text), content(text), "{text}");
    }
}

#[test]
fn a_broken_call_does_not_hide_the_next_one() {
    let good = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let text = format!("<tool_call>\noops {good}");
    let expected = [content("<tool_call>\noops "), call(0, "f", "{}")];
    assert_eq!(parse_tools(ToolFormat::Hermes, &text), expected.concat());
    let text = format!("<tool_call>{{\"name\": \"g\", \"arguments\": {{\"a\": nope}}}} {good}");
    let expected = [
        cut_call(0, "g", "{\"a\": n"),
        content("ope}} "),
        call(1, "f", "{}"),
    ];
    assert_eq!(parse_tools(ToolFormat::Hermes, &text), expected.concat());
}

#[test]
fn forgotten_ends_of_hermes_calls_do_no_harm() {
    let one = "<tool_call>{\"name\": \"f\", \"arguments\": {}";
    for end in ["", "}", "}\n", "}\n</tool", "</tool_call>", "\n</tool_call>\n"] {
        let text = format!("{one}{end}");
        assert_eq!(
            parse_tools(ToolFormat::Hermes, &text),
            call(0, "f", "{}"),
            "{text}"
        );
    }
    let text = format!("{one}}}\n{one}}}");
    let expected = [call(0, "f", "{}"), call(1, "f", "{}")];
    assert_eq!(parse_tools(ToolFormat::Hermes, &text), expected.concat());
}

#[test]
fn a_call_that_is_cut_off_keeps_the_arguments_it_has() {
    let text = "<tool_call>{\"name\": \"f\", \"arguments\": {\"path\": \"/tmp";
    assert_eq!(
        parse_tools(ToolFormat::Hermes, text),
        cut_call(0, "f", "{\"path\": \"/tmp")
    );
    let text = "{\"name\": \"f\", \"parameters\": {\"n\": 12";
    assert_eq!(
        parse_tools(ToolFormat::Llama3Json, text),
        cut_call(0, "f", "{\"n\": 12")
    );
    let cases = [
        ("", "{"),
        ("\n<parameter=city>", "{\"city\": \""),
        ("\n<parameter=city>\nBonn\n</para", "{\"city\": \"Bonn\\n</para"),
        ("\n<parameter=days>\n12", "{\"days\": \"12"),
        ("\n<parameter=days>\n12\n</parameter>\n<para", "{\"days\": 12"),
    ];
    for (body, arguments) in cases {
        let text = format!("<tool_call>\n<function=weather>{body}");
        assert_eq!(
            parse_tools(ToolFormat::Qwen3Coder, &text),
            cut_call(0, "weather", arguments),
            "{text}"
        );
    }
}

#[test]
fn qwen3_coder_values_take_the_types_of_the_schema() {
    let text = "I'll check.\n\n<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n12\n\
                </parameter>\n<parameter=exact>\nTrue\n</parameter>\n<parameter=unit>\nnull\n</parameter>\n\
                <parameter=places>\n[\"a\",\n 1]\n</parameter>\n<parameter=options>\n{\"x\": null}\n</parameter>\n\
                <parameter=limit>\nten\n</parameter>\n<parameter=else>\n5\n</parameter>\n</function>\n</tool_call>\n\
                <tool_call>\n<function=time>\n<parameter=zone>\n-1\n</parameter>\n</function>\n</tool_call>";
    let arguments = "{\"city\": \"12\", \"days\": 12, \"exact\": true, \"unit\": null, \"places\": [\"a\",\n 1], \
                     \"options\": {\"x\": null}, \"limit\": \"ten\", \"else\": \"5\"}";
    let expected = [
        content("I'll check.\n\n"),
        call(0, "weather", arguments),
        call(1, "time", "{\"zone\": -1}"),
    ];
    assert_eq!(parse_tools(ToolFormat::Qwen3Coder, text), expected.concat());
}

#[test]
fn qwen3_coder_values_that_do_not_fit_the_schema_are_strings() {
    let cases = [
        ("days", "a few", "\"a few\""),
        ("days", "null", "null"),
        ("days", "\"3\"", "\"\\\"3\\\"\""),
        ("exact", "perhaps", "\"perhaps\""),
        ("unit", "nullable", "\"nullable\""),
        ("unit", "nul", "\"nul\""),
        ("options", "{'x': 1}", "\"{'x': 1}\""),
        ("limit", "1.5", "1.5"),
        ("limit", "null", "\"null\""),
    ];
    for (key, value, json) in cases {
        let text = format!(
            "<tool_call><function=weather><parameter={key}>{value}</parameter></function></tool_call>"
        );
        let arguments = format!("{{\"{key}\": {json}}}");
        assert_eq!(
            parse_tools(ToolFormat::Qwen3Coder, &text),
            call(0, "weather", &arguments)
        );
    }
}

#[test]
fn qwen3_coder_strings_keep_their_lines_and_are_streamed() {
    let options = OutputParserOptions {
        tool_format: Some(ToolFormat::Qwen3Coder),
        ..OutputParserOptions::default()
    };
    let mut parser = OutputParser::new(&options);
    let start = &cut_call(0, "write", "{")[..2];
    assert_eq!(parser.push("<tool_call>\n<function=write>\n<parameter"), start);
    let delta = |text: &str| {
        vec![ToolCallArguments {
            index: 0,
            delta: text.to_owned(),
        }]
    };
    assert_eq!(
        parser.push("=text>\n\n  if a < b:\n"),
        delta("\"text\": \"\\n  if a < b:")
    );
    assert_eq!(parser.push("    \"x\" </param"), delta("\\n    \\\"x\\\" "));
    assert_eq!(parser.push("s>\n\n"), delta("</params>"));
    assert_eq!(parser.push("</parameter>"), delta("\\n\""));
}

#[test]
fn qwen3_coder_forgives_forgotten_tags() {
    let cases = [
        "<function=time>\n<parameter=zone>\n1\n</parameter>\n</function>",
        "<function=time>\n<parameter=zone>\n1\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=time>\n<parameter=zone>\n1\n</function>\n</tool_call>",
        "<tool_call>\n<function=time>\n<parameter=zone>\n1\n</parameter>\n</tool_call>",
        "\n\n<tool_call><function=time><parameter=zone>1</parameter></function>",
    ];
    for text in cases {
        let expected = call(0, "time", "{\"zone\": 1}");
        assert_eq!(parse_tools(ToolFormat::Qwen3Coder, text), expected, "{text}");
    }
    let text = "<tool_call><function=f>\n<parameter=a>\nx\n\n<parameter=b>\ny\n</parameter>\n</function></tool_call>";
    let expected = call(0, "f", "{\"a\": \"x\\n\", \"b\": \"y\"}");
    assert_eq!(parse_tools(ToolFormat::Qwen3Coder, text), expected);
}

#[test]
fn what_is_no_qwen3_coder_call_is_content() {
    let long = format!("<tool_call><function={}>", "é".repeat(200));
    let texts = [
        "<tool_call> or <function= or </tool_call>",
        "<tool_call>\n{\"name\": \"weather\"}",
        "<function=unknown>\n</function>",
        "<tool_call><function=>",
        "<tool_call><function=a\nb>",
        "<tool_call>\n<function=weath",
        long.as_str(),
    ];
    for text in texts {
        assert_eq!(parse_tools(ToolFormat::Qwen3Coder, text), content(text), "{text}");
    }
    let text = "<tool_call><function=f>\nwell\n<parameter=a>1</parameter></function></tool_call>";
    let expected = [
        cut_call(0, "f", "{"),
        content("well\n<parameter=a>1</parameter></function></tool_call>"),
    ];
    assert_eq!(parse_tools(ToolFormat::Qwen3Coder, text), expected.concat());
}

#[test]
fn llama_calls_are_objects_at_the_beginning() {
    let one = "{\"name\": \"weather\", \"parameters\": {\"city\": \"a;b\"}}";
    let two = "{\"type\": \"function\", \"name\": \"time\", \"arguments\": \"{}\"}";
    for (before, between, after) in [
        ("", "; ", ""),
        ("<|python_tag|>", ";", "\n"),
        ("\n<|python_tag|> ", "\n", " ; "),
        ("", "; <|python_tag|>", ""),
    ] {
        let text = format!("{before}{one}{between}{two}{after}");
        let expected = [call(0, "weather", "{\"city\": \"a;b\"}"), call(1, "time", "{}")];
        assert_eq!(
            parse_tools(ToolFormat::Llama3Json, &text),
            expected.concat(),
            "{text}"
        );
    }
    let text = format!("{one}; that was it; {two}");
    let rest = format!("; that was it; {two}");
    let expected = [call(0, "weather", "{\"city\": \"a;b\"}"), content(&rest)];
    assert_eq!(parse_tools(ToolFormat::Llama3Json, &text), expected.concat());
}

#[test]
fn what_is_no_llama_call_is_content() {
    let texts = [
        "Sure: {\"name\": \"f\", \"parameters\": {}}",
        " {\"name\": \"Ann\", \"age\": 7}",
        "{\"name\": \"Ann\"}",
        "<|python_tag|>weather.call(city=\"Bonn\")",
        "<|python_tag|>",
        "<|pyth",
        "; {\"name\": \"f\", \"parameters\": {}}",
        "{}",
    ];
    for text in texts {
        assert_eq!(parse_tools(ToolFormat::Llama3Json, text), content(text), "{text}");
    }
    // The first key that no call has is enough to know.
    let options = OutputParserOptions {
        tool_format: Some(ToolFormat::Llama3Json),
        ..OutputParserOptions::default()
    };
    let mut parser = OutputParser::new(&options);
    assert_eq!(parser.push("{\"answer\": "), content("{\"answer\": "));
}

#[test]
fn reasoning_is_the_block_at_the_beginning() {
    let parse_reasoning = |inside: bool, text: &str| {
        let options = OutputParserOptions {
            reasoning: Some(ReasoningFormat::Qwen3),
            inside_reasoning: inside,
            ..OutputParserOptions::default()
        };
        parse(&options, text)
    };
    let both = [reasoning("So <thin\n\nor </thin"), content("Hi <think>\n")].concat();
    let block = "So <thin\n\nor </thin\n</think>\n\nHi <think>\n";
    assert_eq!(parse_reasoning(false, &format!("<think>\n{block}")), both);
    assert_eq!(parse_reasoning(false, &format!("\n <think>{block}")), both);
    assert_eq!(parse_reasoning(true, &format!("<think>\n{block}")), both);
    assert_eq!(parse_reasoning(true, &format!("\n{block}")), both);
    assert_eq!(parse_reasoning(false, "<think>\n\n</think>\n\nHi"), content("Hi"));
    assert_eq!(parse_reasoning(true, "\n\n</think>\n\nHi"), content("Hi"));
    assert_eq!(parse_reasoning(false, " Hi </think>"), content(" Hi </think>"));
    assert_eq!(parse_reasoning(false, "<think>\nSo\n"), reasoning("So"));
    assert_eq!(parse_reasoning(true, " So\n</th"), reasoning(" So\n</th"));
    assert_eq!(parse_reasoning(false, "<thi"), content("<thi"));
    assert_eq!(parse_reasoning(true, "<think>"), []);
}

#[test]
fn calls_come_after_reasoning_and_not_in_it() {
    let one = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    let text = format!("<think>\nI could {one}.\n</think>\n\n{one}");
    let options = OutputParserOptions {
        reasoning: Some(ReasoningFormat::Qwen3),
        tool_format: Some(ToolFormat::Hermes),
        ..OutputParserOptions::default()
    };
    let expected = [reasoning(&format!("I could {one}.")), call(0, "f", "{}")];
    assert_eq!(parse(&options, &text), expected.concat());
}

#[test]
fn without_formats_everything_is_content() {
    let text = "<think>\n</think>\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n ";
    assert_eq!(parse(&OutputParserOptions::default(), text), content(text));
}

fn template(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/templates");
    std::fs::read_to_string(path.join(format!("{name}.jinja"))).unwrap()
}

#[test]
fn what_templates_write_is_read_back() {
    let tools = tools();
    let arguments =
        json!({"city": "Łódź\n\"x\"", "days": 3, "exact": true, "places": ["a"], "options": {"b": {}}});
    let tool_calls = json!([
        {"type": "function", "function": {"name": "weather", "arguments": arguments}},
        {"type": "function", "function": {"name": "time", "arguments": {"zone": 2}}},
    ]);
    for name in ["qwen2.5-coder", "qwen3", "qwen3.5"] {
        let source = template(name);
        let chat = ChatTemplate::new(&source, None, None).unwrap();
        let user = json!({"role": "user", "content": "How is the weather?"});
        let assistant = json!({"role": "assistant", "content": "Well.", "reasoning_content": "Hm", "tool_calls": tool_calls});
        let input = |messages: Vec<Value>, add_generation_prompt| ChatInput {
            messages,
            tools: Some(tools.clone()),
            add_generation_prompt,
            ..ChatInput::default()
        };
        let prompt = chat.render(&input(vec![user.clone()], true)).unwrap();
        let whole = chat.render(&input(vec![user, assistant], false)).unwrap();
        let output = whole
            .strip_prefix(&prompt)
            .unwrap()
            .strip_suffix("<|im_end|>\n")
            .unwrap();

        let format = ReasoningFormat::detect(&source);
        let options = OutputParserOptions {
            reasoning: format,
            inside_reasoning: format.is_some_and(|format| format.starts_inside(&prompt)),
            tool_format: ToolFormat::detect(&source),
            tools: &tools,
        };
        let parts = parse(&options, output);
        let thought = parts.contains(&Reasoning("Hm".to_owned()));
        assert_eq!(thought, format.is_some(), "{name}: {parts:?}");
        let deltas = parts.iter().filter_map(|part| match part {
            ToolCallArguments { delta, .. } => Some(serde_json::from_str::<Value>(delta).unwrap()),
            _ => None,
        });
        assert_eq!(
            deltas.collect::<Vec<_>>(),
            [arguments.clone(), json!({"zone": 2})],
            "{name}"
        );
    }
}
