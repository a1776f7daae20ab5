//! The types of tools' parameters, for formats that write values without types.

use std::collections::HashMap;

use serde_json::Value;

use super::json::{quoted, whole_value};

const STRING: u8 = 1;
const NUMBER: u8 = 2;
const BOOLEAN: u8 = 4;
const NULL: u8 = 8;
const OBJECT: u8 = 16;
const ARRAY: u8 = 32;
const ANY: u8 = 63;

/// How far references and alternatives are followed; schemas may refer to themselves.
const MAX_DEPTH: usize = 8;

/// The kinds of values that a parameter takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kinds(u8);

impl Kinds {
    /// The type of a parameter that no schema describes.
    pub(super) const TEXT: Self = Self(STRING);
    pub(super) const TEXT_OR_NULL: Self = Self(STRING | NULL);

    /// `text` as a JSON value of one of the kinds; a string if it is nothing else.
    pub(super) fn json(self, text: &str) -> String {
        let value = whole_value(text).or_else(|| self.python_literal(text.trim()));
        // An optional parameter that is not optional in the schema is still meant to be absent.
        let null = if self.0 & STRING == 0 { NULL } else { 0 };
        let fits = |value: &String| (self.0 | null) & !STRING & kind_of_text(value) != 0;
        value.filter(fits).unwrap_or_else(|| quoted(text))
    }

    /// Models trained on Python write its literals.
    fn python_literal(self, text: &str) -> Option<String> {
        let literals = [("true", BOOLEAN), ("false", BOOLEAN)];
        let literal = literals
            .iter()
            .find(|(literal, kind)| self.0 & kind != 0 && text.eq_ignore_ascii_case(literal));
        if let Some((literal, _)) = literal {
            return Some((*literal).to_owned());
        }
        (text == "None").then(|| "null".to_owned())
    }
}

/// The parameters of the tools on offer, by the names of both.
#[derive(Debug, Default)]
pub(super) struct Schemas {
    tools: HashMap<String, HashMap<String, Kinds>>,
}

impl Schemas {
    /// Reads the tools as OpenAI or Anthropic clients describe them; what is not understood is left out.
    pub(super) fn new(tools: &[Value]) -> Self {
        let mut schemas = Self::default();
        for tool in tools {
            let function = tool.get("function").unwrap_or(tool);
            let Some(name) = function.get("name").and_then(Value::as_str) else {
                continue;
            };
            let parameters = ["parameters", "input_schema"]
                .iter()
                .find_map(|key| function.get(key));
            let root = parameters.unwrap_or(&Value::Null);
            let properties = root.get("properties").and_then(Value::as_object);
            let kinds = properties.into_iter().flatten();
            let kinds = kinds.map(|(key, schema)| (key.clone(), Kinds(kinds_of_schema(schema, root, 0))));
            schemas.tools.insert(name.to_owned(), kinds.collect());
        }
        schemas
    }

    /// Whether there may be a tool of this name: yes, if no tools are known.
    pub(super) fn may_have(&self, tool: &str) -> bool {
        self.tools.is_empty() || self.tools.contains_key(tool)
    }

    /// What a parameter takes.
    pub(super) fn kinds(&self, tool: &str, parameter: &str) -> Kinds {
        let tool = self.tools.get(tool);
        let kinds = tool.and_then(|parameters| parameters.get(parameter));
        kinds.copied().unwrap_or(Kinds::TEXT)
    }
}

fn kinds_of_schema(schema: &Value, root: &Value, depth: usize) -> u8 {
    if depth > MAX_DEPTH {
        return ANY;
    }
    let list = |key: &str| schema.get(key).and_then(Value::as_array);
    if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
        let target = target.strip_prefix('#').and_then(|path| root.pointer(path));
        return target.map_or(ANY, |target| kinds_of_schema(target, root, depth + 1));
    }
    match schema.get("type") {
        Some(Value::String(name)) => return kind_of_name(name),
        Some(Value::Array(names)) => {
            let kinds = names.iter().filter_map(Value::as_str).map(kind_of_name);
            return kinds.fold(0, |all, kind| all | kind);
        }
        _ => {}
    }
    if let Some(values) = list("enum") {
        return values.iter().fold(0, |all, value| all | kind_of_value(value));
    }
    if let Some(value) = schema.get("const") {
        return kind_of_value(value);
    }
    if let Some(choices) = list("anyOf").or_else(|| list("oneOf")) {
        let kinds = choices
            .iter()
            .map(|choice| kinds_of_schema(choice, root, depth + 1));
        return kinds.fold(0, |all, kinds| all | kinds);
    }
    if let Some(conditions) = list("allOf") {
        let kinds = conditions
            .iter()
            .map(|condition| kinds_of_schema(condition, root, depth + 1));
        return kinds.fold(ANY, |all, kinds| all & kinds);
    }
    match (schema.get("properties"), schema.get("items")) {
        (Some(_), _) => OBJECT,
        (None, Some(_)) => ARRAY,
        (None, None) => ANY,
    }
}

/// The kind that a schema's "type" means. Clients also send the names that Python has.
fn kind_of_name(name: &str) -> u8 {
    match name {
        "string" | "str" => STRING,
        "number" | "integer" | "int" | "float" => NUMBER,
        "boolean" | "bool" => BOOLEAN,
        "null" => NULL,
        "object" | "dict" => OBJECT,
        "array" | "list" => ARRAY,
        _ => ANY,
    }
}

fn kind_of_value(value: &Value) -> u8 {
    match value {
        Value::Null => NULL,
        Value::Bool(_) => BOOLEAN,
        Value::Number(_) => NUMBER,
        Value::String(_) => STRING,
        Value::Array(_) => ARRAY,
        Value::Object(_) => OBJECT,
    }
}

/// The kind of a value by the first character of its JSON text.
fn kind_of_text(json: &str) -> u8 {
    match json.as_bytes().first() {
        Some(b'"') => STRING,
        Some(b'{') => OBJECT,
        Some(b'[') => ARRAY,
        Some(b't' | b'f') => BOOLEAN,
        Some(b'n') => NULL,
        _ => NUMBER,
    }
}
