//! Formats of calls and reasoning: their names, their templates, and the text around a forced call.

use std::path::Path;

use paceline_text::{OutputParser, OutputParserOptions, OutputPart, ReasoningFormat, ToolFormat};
use serde_json::json;

fn template(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/templates");
    std::fs::read_to_string(path.join(format!("{name}.jinja"))).unwrap()
}

#[test]
fn names_are_those_of_vllm() {
    for &name in ToolFormat::NAMES {
        let format = ToolFormat::from_name(name).unwrap();
        assert_eq!(ToolFormat::from_name(format.name()).unwrap(), format);
    }
    for &name in ReasoningFormat::NAMES {
        assert_eq!(ReasoningFormat::from_name(name).unwrap().name(), name);
    }
    assert_eq!(
        ToolFormat::from_name("qwen3_xml").unwrap(),
        ToolFormat::Qwen3Coder
    );
    assert_eq!(
        ToolFormat::from_name("Hermes").unwrap_err().to_string(),
        "unknown tool call parser \"Hermes\" (known: hermes, qwen3_coder, qwen3_xml, llama3_json, llama4_json, generic)"
    );
    assert_eq!(
        ReasoningFormat::from_name("").unwrap_err().to_string(),
        "unknown reasoning parser \"\" (known: deepseek_r1, qwen3)"
    );
}

#[test]
fn templates_give_their_formats_away() {
    let known = [
        ("qwen2.5-coder", Some(ToolFormat::Hermes), None),
        ("qwen3", Some(ToolFormat::Hermes), Some(ReasoningFormat::Qwen3)),
        (
            "qwen3.5",
            Some(ToolFormat::Qwen3Coder),
            Some(ReasoningFormat::Qwen3),
        ),
        ("smollm2", None, None),
    ];
    for (name, tools, reasoning) in known {
        let source = template(name);
        assert_eq!(ToolFormat::detect(&source), tools, "{name}");
        assert_eq!(ReasoningFormat::detect(&source), reasoning, "{name}");
    }
    let llama =
        r#"{{- 'Respond in the format {"name": function name, "parameters": dictionary of argument name"#;
    assert_eq!(ToolFormat::detect(llama), Some(ToolFormat::Llama3Json));
    let glm = "<tool_call>{{ name }}<arg_key>{{ k }}</arg_key> arguments";
    assert_eq!(ToolFormat::detect(glm), None);
    let deepseek = "{{'<｜Assistant｜>' + content.split('</think>')[-1]}}";
    assert_eq!(
        ReasoningFormat::detect(deepseek),
        Some(ReasoningFormat::DeepseekR1)
    );
}

#[test]
fn the_prompt_says_whether_the_text_begins_inside_the_reasoning() {
    let cases = [
        ("<|im_start|>assistant\n", false, true),
        ("<|im_start|>assistant\n<think>\n", true, true),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", false, false),
    ];
    for (prompt, qwen3, deepseek) in cases {
        assert_eq!(ReasoningFormat::Qwen3.starts_inside(prompt), qwen3, "{prompt}");
        assert_eq!(
            ReasoningFormat::DeepseekR1.starts_inside(prompt),
            deepseek,
            "{prompt}"
        );
    }
}

#[test]
fn forced_calls_are_read_back() {
    let tools = [json!({"name": "say \"hi\"", "parameters": {"properties": {"n": {"type": "integer"}}}})];
    let name = "say \"hi\"";
    for format in [
        ToolFormat::Hermes,
        ToolFormat::Qwen3Coder,
        ToolFormat::Llama3Json,
        ToolFormat::Generic,
    ] {
        let frame = format.wrap(name);
        let arguments = match format.wrap_parameter("n") {
            Some((before, after)) => format!("{before}5{after}"),
            None => "{\"n\": 5}".to_owned(),
        };
        assert_eq!(frame.parameters, format.wrap_parameter("n").is_some());
        let one = frame.prefix + &arguments + &frame.suffix;
        let text = match format.separator() {
            Some(separator) => format!("{one}{separator}{one}"),
            None => one,
        };
        assert!(text.starts_with(format.trigger().unwrap_or_default()));
        let mut parser = OutputParser::new(&OutputParserOptions {
            tool_format: Some(format),
            tools: &tools,
            ..OutputParserOptions::default()
        });
        let parts = [parser.push(&text), parser.finish()].concat();
        let call = |index| {
            let start = OutputPart::ToolCallStart {
                index,
                name: name.to_owned(),
            };
            let delta = "{\"n\": 5}".to_owned();
            let arguments = OutputPart::ToolCallArguments { index, delta };
            let complete = true;
            [start, arguments, OutputPart::ToolCallEnd { index, complete }]
        };
        let calls = if format == ToolFormat::Generic { 1 } else { 2 };
        assert_eq!(parts, [call(0), call(1)][..calls].concat(), "{format:?}");
    }
    let frame = ToolFormat::Hermes.wrap("f");
    assert_eq!(frame.prefix, "<tool_call>\n{\"name\": \"f\", \"arguments\": ");
    assert_eq!(frame.suffix, "}\n</tool_call>");
}
