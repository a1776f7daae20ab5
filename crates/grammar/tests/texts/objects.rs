//! Which members objects have.

use crate::support::check;
use paceline_grammar::GrammarSpec;
use serde_json::{Value, json};

fn schema(schema: Value, good: &[&str], bad: &[&str]) {
    check(&GrammarSpec::JsonSchema(schema), good, bad);
}

#[test]
fn objects_have_the_members_that_are_declared() {
    let inner = json!({"type": "object", "properties": {"x": {"type": "integer"}}});
    schema(
        json!({
            "type": "object",
            "properties": {"a": inner, "b": {"type": "array", "items": inner}},
            "required": ["a", "c"],
        }),
        &[
            r#"{"a":{},"c":1}"#,
            r#"{"a":{"x":1},"b":[{"x":2},{}],"c":{"any":"thing"}}"#,
        ],
        &[
            r#"{"a":{},"c":1,"d":2}"#,
            r#"{"a":{"y":1},"c":1}"#,
            r#"{"a":{},"b":[{"y":1}],"c":1}"#,
            r#"{"a":{}}"#,
        ],
    );
    schema(
        json!({"type": "object", "properties": {}}),
        &["{}"],
        &[r#"{"a":1}"#],
    );
}

#[test]
fn objects_are_open_where_a_schema_asks_for_it() {
    let any = r#"{"z":{"y":[1]}}"#;
    schema(json!({"type": "object"}), &["{}", any], &[]);
    schema(json!({}), &["{}", any, "1"], &[]);
    for keyword in ["additionalProperties", "unevaluatedProperties"] {
        let open = json!({"type": "object", "properties": {"a": {"type": "null"}}, keyword: true});
        schema(open, &["{}", any, r#"{"a":null,"b":1}"#], &[r#"{"a":1}"#]);
        let closed = json!({"type": "object", "properties": {"a": {"type": "null"}}, keyword: false});
        schema(closed, &["{}", r#"{"a":null}"#], &[any]);
    }
    schema(
        json!({"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "integer"}}),
        &[r#"{"a":null,"b":1}"#],
        &[r#"{"b":null}"#],
    );
    schema(
        json!({"type": "object", "properties": {"a": {}}, "patternProperties": {"^p": {"type": "integer"}}}),
        &[r#"{"a":null,"p1":1}"#],
        &[r#"{"p1":null}"#],
    );
}

#[test]
fn schemas_that_hold_together_are_closed_together() {
    let base = json!({"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]});
    let name = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
    let good = [r#"{"id":1,"name":"n"}"#];
    let bad = [
        r#"{"id":1}"#,
        r#"{"id":1,"name":"n","z":1}"#,
        r#"{"id":"1","name":"n"}"#,
    ];
    schema(json!({"allOf": [base, name]}), &good, &bad);
    let derived = json!({"allOf": [{"$ref": "#/$defs/base"}, name], "$defs": {"base": base}});
    schema(derived, &good, &bad);
    let beside = json!({
        "type": "object",
        "properties": {"base": {"$ref": "#/definitions/base"}, "both": {"$ref": "#/definitions/both"}},
        "definitions": {
            "base": base,
            "both": {"$ref": "#/definitions/base", "properties": {"name": {"type": "string"}}},
        },
    });
    schema(
        beside,
        &[r#"{"base":{"id":1},"both":{"id":1,"name":"n"}}"#],
        &[
            r#"{"base":{"id":1,"name":"n"}}"#,
            r#"{"both":{"id":1,"z":1}}"#,
            r#"{"both":{"name":"n"}}"#,
        ],
    );
    // One that stands in `allOf` alone, as generators write a reference with a description.
    let wrapped = json!({"allOf": [{"$ref": "#/$defs/base"}], "description": "d", "$defs": {"base": base}});
    schema(wrapped, &[r#"{"id":1}"#], &[r#"{"id":1,"z":1}"#]);
    // If one of them is open, all are.
    let open = json!({"allOf": [base, {"properties": {"b": {}}, "additionalProperties": true}]});
    schema(open, &[r#"{"id":1,"z":1}"#], &[r#"{"z":1}"#]);
}

#[test]
fn each_branch_is_closed_with_what_stands_beside_it() {
    let branch = |name: &str| json!({"properties": {name: {"type": "integer"}}, "required": [name]});
    schema(
        json!({
            "type": "object",
            "properties": {"kind": {"type": "string"}},
            "required": ["kind"],
            "anyOf": [branch("a"), branch("b")],
        }),
        &[r#"{"kind":"k","a":1}"#, r#"{"kind":"k","b":1}"#],
        &[
            r#"{"kind":"k"}"#,
            r#"{"kind":"k","a":1,"b":1}"#,
            r#"{"kind":"k","a":1,"z":1}"#,
        ],
    );
    // At least one of two.
    schema(
        json!({
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        }),
        &[r#"{"a":1}"#, r#"{"b":1}"#, r#"{"a":1,"b":2}"#],
        &["{}", r#"{"a":1,"z":1}"#],
    );
    let optional = json!({"anyOf": [{"$ref": "#/$defs/leaf"}, {"type": "null"}]});
    schema(
        json!({
            "type": "object",
            "properties": {"left": optional, "right": optional},
            "$defs": {"leaf": {"type": "object", "properties": {"next": optional}}},
        }),
        &[r#"{"left":null,"right":{"next":{"next":null}}}"#],
        &[r#"{"left":{"z":1}}"#],
    );
}

#[test]
fn joining_many_schemas_is_bounded() {
    let branch = |number: usize| json!({"properties": {format!("b{number}"): {}}});
    let properties: Value = (0..250).map(|number| (format!("p{number}"), json!({}))).collect();
    let spec = json!({"properties": properties, "anyOf": (0..2000).map(branch).collect::<Vec<_>>()});
    let message = crate::support::refusal(&GrammarSpec::JsonSchema(spec));
    assert!(message.contains("the number of values"), "{message}");
}
