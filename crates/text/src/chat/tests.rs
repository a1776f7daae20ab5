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
    assert!(error.to_string().contains("handles more than"), "{error}");
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

/// Templates that a bound on steps alone does not stop. Each ran out of memory, out of stack or on for minutes.
#[test]
fn what_a_template_can_spend_is_bounded() {
    let doubling = "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}";
    let list = "{% set ns = namespace(l=[1, 2], m=[1, 2], s='x') %}{% for i in range(60) %}";
    let cases = [
        ("concatenation", format!("{doubling}{{% set ns.s = ns.s ~ ns.s %}}{{% endfor %}}")),
        ("addition", format!("{doubling}{{% set ns.s = ns.s + ns.s %}}{{% endfor %}}")),
        ("plain variables", format!("{{% set a = 'xx' %}}{}", "{% set a = a ~ a %}".repeat(60))),
        ("captures", format!("{doubling}{{% set s %}}{{{{ ns.s }}}}{{{{ ns.s }}}}{{% endset %}}{{% set ns.s = s %}}{{% endfor %}}")),
        ("macros", "{% macro m(s, n) %}{% if n %}{{ m(s ~ s, n - 1) }}{% endif %}{% endmacro %}{{ m('xx', 60) }}".to_owned()),
        ("raw text", format!("{{% set s %}}{{% for i in range(99999) %}}{}{{% endfor %}}{{% endset %}}", "x".repeat(100_000))),
        ("repeated text", "{{ ('x' * 99999999) ~ ('x' * 99999999) ~ ('x' * 99999999) }}".to_owned()),
        ("repeated lists", "{% set l = [1] * 99999999 %}".to_owned()),
        ("repeated tuples", "{% set l = (1,) * 99999999 %}".to_owned()),
        ("replace", format!("{doubling}{{% set ns.s = ns.s | replace('x', ns.s) %}}{{% endfor %}}")),
        ("replace, a method", format!("{doubling}{{% set ns.s = ns.s.replace('x', ns.s) %}}{{% endfor %}}")),
        ("join", "{{ range(99999) | join('x' * 99999) }}".to_owned()),
        ("join, a method", "{{ ('x' * 99999).join(range(99999)) }}".to_owned()),
        ("indent", "{{ 'a\\nb' | indent(9999999999) }}".to_owned()),
        ("format", "{{ '%9999999999d' | format(1) }}".to_owned()),
        ("format, a method", "{{ '{:9999999999}'.format(1) }}".to_owned()),
        ("format, width by argument", "{{ '{:{}}'.format(1, 9999999999) }}".to_owned()),
        ("doubled lists", format!("{list}{{% set ns.l = ns.l + ns.l %}}{{% endfor %}}{{{{ ns.l | length }}}}")),
        ("lists of lists", format!("{list}{{% set ns.l = [ns.l, ns.l] %}}{{% endfor %}}{{{{ ns.l }}}}")),
        ("lists of lists as JSON", format!("{list}{{% set ns.l = [ns.l, ns.l] %}}{{% endfor %}}{{{{ ns.l | tojson }}}}")),
        ("compared", format!("{list}{{% set ns.l = [ns.l, ns.l] %}}{{% set ns.m = [ns.m, ns.m] %}}{{% endfor %}}{{{{ ns.l == ns.m }}}}")),
        ("as keys", format!("{list}{{% set ns.l = [ns.l, ns.l] %}}{{% endfor %}}{{{{ {{ns.l: 1}} }}}}")),
        ("sorts", "{% set l = (range(99999) | list) %}{% for i in range(99999) %}{% set m = l | sort %}{% endfor %}".to_owned()),
        ("mapped", "{% set s = 'x' * 9999999 %}{{ ([s] * 99999) | map('upper') | list | length }}".to_owned()),
        ("mapped replace", "{% set s = 'x' * 999 %}{{ ([s] * 99999) | map('replace', 'x', s) | list | length }}".to_owned()),
        ("compared texts", "{% set a = 'x' * 9999999 %}{% set b = 'x' * 9999999 %}{% for i in range(99999) %}{% if a == b %}{% endif %}{% endfor %}".to_owned()),
        ("searched texts", "{% set a = 'x' * 9999999 %}{% for i in range(99999) %}{% if 'y' in a %}{% endif %}{% endfor %}".to_owned()),
        ("sliced texts", "{% set a = 'x' * 9999999 %}{% for i in range(99999) %}{% set b = a[-1:] %}{% endfor %}".to_owned()),
        ("deep values", "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% endfor %}".to_owned()),
        ("a namespace in itself", "{% set ns = namespace() %}{% set ns.a = [ns] %}".to_owned()),
        ("a namespace in itself, by a filter", "{% set ns = namespace() %}{% set ns.a = [x] | map('default', ns) %}".to_owned()),
        ("long expressions", format!("{{{{ {}a }}}}", "a ~ ".repeat(100_000))),
        ("long conditions", format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(50_000))),
        ("long paths", format!("{{{{ a{} }}}}", ".a".repeat(100_000))),
    ];
    for (name, source) in cases {
        let error = render(&source).expect_err(name);
        assert!(
            matches!(error, TextError::Render(_) | TextError::InvalidTemplate(_)),
            "{name}: {error}"
        );
    }
}

#[test]
fn operators_work_as_in_python() {
    let cases = [
        ("{{ 3 * 4 }} {{ 2 * 1.5 }} {{ -2 * 3 }}", "12 3.0 -6"),
        (
            "{{ 'ab' * 3 }} {{ 3 * 'ab' }} {{ 'ab' * -1 }}|{{ [1, 2] * 2 }}",
            "ababab ababab |[1, 2, 1, 2]",
        ),
        ("{{ [1] + [2] }} {{ 'a' + 'b' }} {{ 1 ~ [2] }}", "[1, 2] ab 1[2]"),
        (
            "{{ 'a' in 'abc' }} {{ 1 in [1] }} {{ 'k' not in {'k': 1} }} {{ 1 < 2 < 3 }}",
            "True True False True",
        ),
        (
            "{{ 'abcdef'[1:3] }} {{ [1, 2, 3][::-1] | list }} {{ 'x' if undefined_name else 'y' }}",
            "bc [3, 2, 1] y",
        ),
        (
            "{{ 'a-b'.replace('-', '+') }} {{ ','.join([1, 2]) }} {{ [3, 1] | sort | join(', ') }}",
            "a+b 1,2 1, 3",
        ),
        (
            "{{ '%s-%03d' | format('a', 7) }} {{ '{}:{:>4}'.format(1, 'b') }} {{ [1, 2] | sum }}",
            "a-007 1:   b 3",
        ),
        (
            "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ caller() if caller }}{% endmacro %}{% call m(1) %}!{% endcall %}",
            "12!",
        ),
        (
            "{% filter upper %}a{% endfilter %}{% set x | trim %} b {% endset %}{{ x }}",
            "Ab",
        ),
        (
            "{% for a in [1, 2, 3, 4] if a is even %}{{ loop.index }}{{ a }}{% else %}-{% endfor %}",
            "1224",
        ),
        (
            "{% for a in [1, [2]] recursive %}{{ loop(a) if a is sequence else a }}{% endfor %}",
            "12",
        ),
        (
            "{% set ns = namespace(a=1) %}{% with b = 2 %}{% set ns.a = ns.a + b %}{% endwith %}{{ ns.a }}",
            "3",
        ),
        (
            "{{ [{'a': 1}, {'a': 2}] | selectattr('a', 'equalto', 2) | list }}",
            "[{'a': 2}]",
        ),
    ];
    for (source, expected) in cases {
        assert_eq!(render(source).unwrap(), expected, "{source}");
    }
}
