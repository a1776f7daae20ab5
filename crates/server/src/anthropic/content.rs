//! Content that is text: a string or blocks of type text.

use crate::body::shorten;
use crate::error::ApiError;
use serde_json::{Map, Value};

/// A block of a content, and where it is.
pub(super) struct Place<'a> {
    pub(super) param: &'a str,
    pub(super) index: usize,
}

impl Place<'_> {
    fn field(&self, name: &str) -> String {
        format!("{}[{}].{name}", self.param, self.index)
    }

    /// A text that the block must have.
    pub(super) fn text<'b>(&self, block: &'b Map<String, Value>, name: &str) -> Result<&'b str, ApiError> {
        block.get(name).and_then(Value::as_str).ok_or_else(|| {
            let param = self.field(name);
            let message = format!("`{param}` is missing or not a string");
            ApiError::field(param, message)
        })
    }

    /// An object that the block may have; none is an empty one.
    pub(super) fn object(
        &self,
        block: &Map<String, Value>,
        name: &str,
    ) -> Result<Map<String, Value>, ApiError> {
        match block.get(name) {
            None | Some(Value::Null) => Ok(Map::new()),
            Some(Value::Object(object)) => Ok(object.clone()),
            Some(_) => {
                let param = self.field(name);
                let message = format!("`{param}` is not an object");
                Err(ApiError::field(param, message))
            }
        }
    }

    /// The refusal of a block that is of another type than `bound` says.
    pub(super) fn refuse(&self, kind: &str, bound: &str) -> ApiError {
        ApiError::bound(&self.field("type"), &shorten(kind), bound)
    }
}

/// The blocks of a content; a string is one block of text.
pub(super) fn blocks(param: &str, content: Value) -> Result<Vec<Map<String, Value>>, ApiError> {
    let entries = match content {
        Value::String(text) => {
            let fields = [("type", "text".to_owned()), ("text", text)];
            let fields = fields.map(|(name, value)| (name.to_owned(), Value::String(value)));
            return Ok(vec![Map::from_iter(fields)]);
        }
        Value::Array(entries) => entries,
        _ => {
            let message = format!("`{param}` must be a string or a list of blocks");
            return Err(ApiError::field(param, message));
        }
    };
    let entries = entries.into_iter().enumerate();
    let block = |(index, entry): (usize, Value)| {
        let Value::Object(block) = entry else {
            let param = format!("{param}[{index}]");
            let message = format!("`{param}` is not an object");
            return Err(ApiError::field(param, message));
        };
        Ok(block)
    };
    entries.map(block).collect()
}

/// The type of a block.
pub(super) fn kind(block: &Map<String, Value>) -> &str {
    block.get("type").and_then(Value::as_str).unwrap_or_default()
}

/// The text of a content that may be nothing else.
pub(super) fn text(param: &str, content: Value) -> Result<String, ApiError> {
    if content.is_null() {
        return Ok(String::new());
    }
    let blocks = blocks(param, content)?;
    let mut texts = Vec::with_capacity(blocks.len());
    for (index, block) in blocks.iter().enumerate() {
        let place = Place { param, index };
        match kind(block) {
            "text" => texts.push(place.text(block, "text")?),
            other => return Err(place.refuse(other, "text: the model reads nothing else")),
        }
    }
    Ok(texts.join("\n"))
}
