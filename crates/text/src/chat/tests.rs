//! What a template may do and what it may not.

use serde_json::json;

use super::*;

fn render(source: &str) -> Result<String> {
    render_with(source, &ChatInput::default())
}

fn render_with(source: &str, input: &ChatInput) -> Result<String> {
    ChatTemplate::new(source, Some("<s>"), None)?.render(input)
}

#[test]
fn a_template_that_raises_gives_its_own_message() {
    let error = render("{{ raise_exception('Only users: ' ~ 3) }}").unwrap_err();
    assert!(matches!(error, TextError::TemplateRaised(message) if message == "Only users: 3"));
    let inside_a_macro = "{% macro m() %}{{ raise_exception('deep') }}{% endmacro %}{{ m() }}";
    assert!(matches!(render(inside_a_macro), Err(TextError::TemplateRaised(message)) if message == "deep"));
}

#[test]
fn blank_and_broken_templates_are_errors() {
    assert!(matches!(render(""), Err(TextError::NoTemplate)));
    assert!(matches!(render(" \n"), Err(TextError::NoTemplate)));
    assert!(matches!(render("{% if %}"), Err(TextError::InvalidTemplate(_))));
    assert!(matches!(
        render("{% for x in y %}"),
        Err(TextError::InvalidTemplate(_))
    ));
    assert!(matches!(
        ChatTemplate::from_config(&TokenizerConfig::default()),
        Err(TextError::NoTemplate)
    ));
}

#[test]
fn failures_while_rendering_are_errors() {
    for bad in [
        "{{ a.b.c }}",
        "{{ 'x' + none }}",
        "{{ nothing() }}",
        "{{ x | tojson }}",
        "{{ [][::-1] }}",
    ] {
        let result = render(bad);
        assert!(matches!(result, Err(TextError::Render(_))), "{bad}: {result:?}");
    }
}

#[test]
fn endless_work_output_and_recursion_are_cut_off() {
    let work = "{% for a in range(9999) %}{% for b in range(9999) %}{{ '' }}{% endfor %}{% endfor %}";
    let error = render(work).unwrap_err();
    assert!(error.to_string().contains("20000000 steps"), "{error}");
    let output = "{% for a in range(9999) %}{{ 'x' * 100000 }}{% endfor %}";
    let error = render(output).unwrap_err();
    assert!(error.to_string().contains("longer than"), "{error}");
    let recursion = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
    assert!(matches!(render(recursion), Err(TextError::Render(_))));
}

#[test]
fn templates_cannot_reach_other_templates_or_files() {
    assert!(render("{% include '/etc/passwd' %}").is_err());
    assert!(render("{% extends 'nothing' %}").is_err());
}

#[test]
fn the_date_is_that_of_today() {
    let year = render("{{ strftime_now('%Y') }}").unwrap();
    assert!(year.parse::<i32>().is_ok_and(|year| year >= 2025), "{year}");
    let date = render("{{ strftime_now('%d %b %Y') }}").unwrap();
    assert_eq!(date.split(' ').map(str::len).collect::<Vec<_>>(), [2, 3, 4]);
    assert!(matches!(
        render("{{ strftime_now('%') }}"),
        Err(TextError::Render(_))
    ));
}

#[test]
fn the_tool_use_template_serves_conversations_with_tools() {
    let config =
        br#"{"eos_token": "E", "chat_template": [{"name": "tool_use", "template": "tools{{ eos_token }}"},
        {"name": "default", "template": "plain{{ bos_token }}"}]}"#;
    let template = ChatTemplate::from_config(&TokenizerConfig::from_json_bytes(config).unwrap()).unwrap();
    let input = |tools| ChatInput {
        tools,
        ..ChatInput::default()
    };
    assert_eq!(template.render(&input(None)).unwrap(), "plain");
    assert_eq!(template.render(&input(Some(Vec::new()))).unwrap(), "plain");
    assert_eq!(template.render(&input(Some(vec![json!({})]))).unwrap(), "toolsE");
}

#[test]
fn marks_of_the_training_target_leave_no_trace() {
    let source = "a\n{%- generation %}\n b\n{%+ endgeneration -%}\n c {{ 'generation' }}";
    assert_eq!(render(source).unwrap(), "a b\nc generation");
}

#[test]
fn json_options_are_those_of_python() {
    let source = "{{ x | tojson(sort_keys=true, separators=(',', ':'), ensure_ascii=true) }}";
    let extra = json!({ "x": { "b": "é", "a": [1, 2] } })
        .as_object()
        .cloned()
        .unwrap();
    let input = ChatInput {
        extra,
        ..ChatInput::default()
    };
    assert_eq!(
        render_with(source, &input).unwrap(),
        r#"{"a":[1,2],"b":"\u00e9"}"#
    );
}

#[test]
fn arguments_sent_as_text_become_objects() {
    let call = |arguments: Value| json!({ "function": { "name": "f", "arguments": arguments } });
    let message = json!({ "role": "assistant", "tool_calls": [
        call(json!("{\"z\": 1, \"a\": 2}")), call(json!("not json")), call(json!({ "b": 1 })),
        { "name": "g", "arguments": "{}" }, 7,
    ] });
    let mut input = ChatInput {
        messages: vec![json!("odd"), message],
        ..ChatInput::default()
    };
    input.parse_tool_arguments();
    let calls = &input.messages[1]["tool_calls"];
    assert_eq!(calls[0]["function"]["arguments"].to_string(), r#"{"z":1,"a":2}"#);
    assert_eq!(calls[1]["function"]["arguments"], "not json");
    assert_eq!(calls[2]["function"]["arguments"], json!({ "b": 1 }));
    assert_eq!(calls[3]["arguments"], json!({}));
}

#[test]
fn values_print_as_in_python() {
    let source =
        "{{ 1e20 }} {{ 0.5 | string }} {{ 2.0 }} {{ none }} {{ true }} {{ [1, 'a', none] }} {{ {'k': 1} }}";
    assert_eq!(
        render(source).unwrap(),
        "1e+20 0.5 2.0 None True [1, 'a', None] {'k': 1}"
    );
}
