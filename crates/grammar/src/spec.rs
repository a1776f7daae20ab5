//! What a text can be asked to follow.

use paceline_text::ToolFormat;
use serde_json::Value;

/// A grammar as a request states it.
#[derive(Clone, Debug, PartialEq)]
pub enum GrammarSpec {
    /// A JSON value that a schema describes.
    JsonSchema(Value),
    /// Any JSON object.
    JsonObject,
    /// A text that a regular expression matches as a whole. `\d` and `\w` are ASCII's, as in patterns of schemas.
    Regex(String),
    /// What the rule `start` of a Lark grammar gives, in llguidance's dialect.
    Lark(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// What any of these describes; no text should be the beginning of two.
    Either(Vec<GrammarSpec>),
    /// Calls of tools.
    Calls {
        /// The tools that can be called.
        calls: Vec<Call>,
        /// What stands between two calls; with `None` there is one.
        separator: Option<String>,
    },
    /// Any text, which ends with calls if it begins one.
    TextOrCalls {
        /// The tools that can be called.
        calls: Vec<Call>,
        /// What stands between two calls; with `None` there is one.
        separator: Option<String>,
        /// What every call begins with, and where calls begin in a text. With `None`, the calls are the whole text
        /// and begin with a brace, as no other text does.
        trigger: Option<String>,
    },
}

impl GrammarSpec {
    /// A name for messages.
    pub(crate) fn place(&self) -> &'static str {
        match self {
            Self::JsonSchema(_) | Self::JsonObject => "schema",
            Self::Regex(_) => "regex",
            Self::Lark(_) => "grammar",
            Self::Choice(_) => "choice",
            Self::Calls { .. } | Self::TextOrCalls { .. } => "tool call",
            Self::Either(specs) => specs.first().map_or("grammar", Self::place),
        }
    }

    /// Whether it has rules that its author wrote, which may be ambiguous.
    pub(crate) fn has_rules(&self) -> bool {
        match self {
            Self::Lark(_) => true,
            Self::Either(specs) => specs.iter().any(Self::has_rules),
            _ => false,
        }
    }
}

/// What a text may have before what it is to follow, such as a model's reasoning. Newlines between the two belong to
/// neither.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Lead {
    /// Nothing comes before it.
    #[default]
    None,
    /// Any text that ends with this.
    Until(String),
    /// Nothing, or a block from its first text to its second.
    Block(String, String),
}

/// A call of a tool as a model writes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Call(pub Vec<Part>);

/// A part of a text.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// This text. Names of special tokens in it stand for the tokens.
    Literal(String),
    /// A JSON value that a schema describes.
    Json(Value),
    /// Any text up to and with this one.
    Until(String),
    /// One of these texts.
    OneOf(Vec<String>),
    /// Parts that may be left out.
    Optional(Vec<Part>),
}

impl Call {
    /// What is left of it behind the text that it begins with.
    pub(crate) fn behind(&self, trigger: &str) -> Self {
        let mut parts = self.0.clone();
        if let Some(Part::Literal(text)) = parts.first_mut()
            && let Some(rest) = text.strip_prefix(trigger)
        {
            *text = rest.to_owned();
        }
        Self(parts)
    }

    /// A literal text, arguments that a schema describes, and a literal text.
    pub fn framed(prefix: impl Into<String>, arguments: Value, suffix: impl Into<String>) -> Self {
        Self(vec![
            Part::Literal(prefix.into()),
            Part::Json(arguments),
            Part::Literal(suffix.into()),
        ])
    }

    /// A call of the tool `name` with arguments that a schema (`parameters` of the tool) describes, as models with
    /// that format write it.
    pub fn of(format: ToolFormat, name: &str, parameters: &Value) -> Self {
        let frame = format.wrap(name);
        if !frame.parameters {
            return Self::framed(frame.prefix, object_schema(parameters), frame.suffix);
        }
        let mut parts = vec![Part::Literal(frame.prefix)];
        let none = serde_json::Map::new();
        let properties = parameters["properties"].as_object().unwrap_or(&none);
        let required = parameters["required"].as_array();
        for (key, schema) in properties {
            let Some((before, after)) = format.wrap_parameter(key) else {
                continue;
            };
            let mut argument = vec![Part::Literal(before)];
            argument.extend(value(schema, parameters, after));
            if required.is_some_and(|required| required.iter().any(|name| name == key)) {
                parts.extend(argument);
            } else {
                parts.push(Part::Optional(argument));
            }
        }
        parts.push(Part::Literal(frame.suffix));
        Self(parts)
    }
}

/// The value of one argument and what comes behind it: text where the schema says string, JSON otherwise.
fn value(schema: &Value, parameters: &Value, after: String) -> Vec<Part> {
    let choices = schema["enum"].as_array().and_then(|values| {
        let texts = values.iter().map(|value| value.as_str().map(str::to_owned));
        texts
            .collect::<Option<Vec<_>>>()
            .filter(|texts| !texts.is_empty())
    });
    if let Some(choices) = choices {
        return vec![Part::OneOf(choices), Part::Literal(after)];
    }
    if schema["type"] == "string" {
        return vec![Part::Until(after)];
    }
    vec![
        Part::Json(with_definitions(schema, parameters)),
        Part::Literal(after),
    ]
}

/// A part of a schema with the definitions of the whole, which it may refer to.
fn with_definitions(schema: &Value, whole: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(members) = schema.as_object_mut() {
        for name in ["$defs", "definitions"] {
            if let Some(definitions) = whole.get(name) {
                members.entry(name).or_insert_with(|| definitions.clone());
            }
        }
    }
    schema
}

/// Arguments are an object even if the schema does not say so.
fn object_schema(parameters: &Value) -> Value {
    let mut schema = parameters.clone();
    match schema.as_object_mut() {
        Some(members) => {
            members.entry("type").or_insert_with(|| "object".into());
            schema
        }
        None => serde_json::json!({"type": "object"}),
    }
}
