//! Typed access to a model's configuration, with errors that name the field.

use crate::ModelError;
use serde_json::Value;

/// Larger counts are damage, not models.
const MAX_COUNT: u64 = 1 << 24;

/// A JSON object of configuration fields.
#[derive(Clone, Copy, Debug)]
pub struct Config<'a> {
    fields: &'a Value,
    outer: &'a Value,
}

impl<'a> Config<'a> {
    /// The configuration of the text model: of multimodal checkpoints the `text_config` part.
    pub fn new(root: &'a Value) -> Self {
        let fields = root
            .get("text_config")
            .filter(|part| part.is_object())
            .unwrap_or(root);
        Self { fields, outer: root }
    }

    /// A field, `None` when absent or null.
    pub fn get(&self, field: &str) -> Option<&'a Value> {
        self.fields.get(field).filter(|value| !value.is_null())
    }

    /// A field that may also sit at the top level of a multimodal configuration.
    pub fn get_any(&self, field: &str) -> Option<&'a Value> {
        self.get(field)
            .or_else(|| self.outer.get(field).filter(|value| !value.is_null()))
    }

    /// A positive count.
    pub fn count(&self, field: &str) -> Result<usize, ModelError> {
        let value = self
            .get(field)
            .ok_or_else(|| ModelError::config(field, "missing"))?;
        positive(field, value)
    }

    /// A positive count, or `default` when absent.
    pub fn count_or(&self, field: &str, default: usize) -> Result<usize, ModelError> {
        self.get(field)
            .map_or(Ok(default), |value| positive(field, value))
    }

    /// A count that may be zero, or `default` when absent.
    pub fn size_or(&self, field: &str, default: usize) -> Result<usize, ModelError> {
        match self.get(field) {
            Some(value) if value.as_u64() == Some(0) => Ok(0),
            Some(value) => positive(field, value),
            None => Ok(default),
        }
    }

    /// A finite number, or `default` when absent.
    pub fn number_or(&self, field: &str, default: f32) -> Result<f32, ModelError> {
        self.get(field).map_or(Ok(default), |value| number(field, value))
    }

    /// A flag, or `default` when absent.
    pub fn flag_or(&self, field: &str, default: bool) -> Result<bool, ModelError> {
        self.get(field).map_or(Ok(default), |value| {
            value
                .as_bool()
                .ok_or_else(|| ModelError::config(field, format!("{value} is not true or false")))
        })
    }

    /// A string, or `None` when absent.
    pub fn text(&self, field: &str) -> Result<Option<&'a str>, ModelError> {
        self.get(field).map_or(Ok(None), |value| {
            value
                .as_str()
                .map(Some)
                .ok_or_else(|| ModelError::config(field, format!("{value} is not a string")))
        })
    }

    /// A list of `len` numbers, or `default` repeated when absent.
    pub fn numbers_or(&self, field: &str, len: usize, default: f32) -> Result<Vec<f32>, ModelError> {
        let Some(value) = self.get(field) else {
            return Ok(vec![default; len]);
        };
        let list = value.as_array().filter(|list| list.len() == len);
        let list =
            list.ok_or_else(|| ModelError::config(field, format!("{value} is not a list of {len}")))?;
        list.iter().map(|item| number(field, item)).collect()
    }

    /// A list of strings, `None` when absent.
    pub fn texts(&self, field: &str) -> Result<Option<Vec<&'a str>>, ModelError> {
        let Some(value) = self.get(field) else {
            return Ok(None);
        };
        let bad = || ModelError::config(field, "is not a list of strings");
        let list = value.as_array().ok_or_else(bad)?;
        list.iter()
            .map(|item| item.as_str().ok_or_else(bad))
            .collect::<Result<Vec<_>, _>>()
            .map(Some)
    }

    /// A list of indices, `None` when absent.
    pub fn indices(&self, field: &str) -> Result<Option<Vec<usize>>, ModelError> {
        let Some(value) = self.get(field) else {
            return Ok(None);
        };
        let bad = || ModelError::config(field, "is not a list of indices");
        let list = value.as_array().ok_or_else(bad)?;
        let index = |item: &Value| {
            item.as_u64()
                .filter(|i| *i < MAX_COUNT)
                .map(|i| i as usize)
                .ok_or_else(bad)
        };
        list.iter().map(index).collect::<Result<Vec<_>, _>>().map(Some)
    }

    /// One of the two names a field has had.
    pub fn count_either(&self, field: &str, older: &str) -> Result<usize, ModelError> {
        if self.get(field).is_none() && self.get(older).is_some() {
            self.count(older)
        } else {
            self.count(field)
        }
    }

    /// Whether the output matrix is the embedding; the flag appears at both levels of multimodal files.
    pub fn tied(&self, default: bool) -> Result<bool, ModelError> {
        match self.get_any("tie_word_embeddings") {
            Some(value) => value.as_bool().ok_or_else(|| {
                ModelError::config("tie_word_embeddings", format!("{value} is not true or false"))
            }),
            None => Ok(default),
        }
    }

    /// A pair such as `time_step_limit`, whose bounds may be infinite (written as an object or null).
    pub fn limits_or(&self, field: &str, default: (f32, f32)) -> Result<(f32, f32), ModelError> {
        let Some(value) = self.get(field) else {
            return Ok(default);
        };
        let bound = |item: &Value, open: f32| match item {
            Value::Number(n) => n.as_f64().map_or(open, |n| n as f32),
            _ => open,
        };
        match value.as_array().map(Vec::as_slice) {
            Some([low, high]) => Ok((bound(low, 0.0), bound(high, f32::INFINITY))),
            _ => Err(ModelError::config(field, format!("{value} is not a pair"))),
        }
    }
}

fn positive(field: &str, value: &Value) -> Result<usize, ModelError> {
    match value.as_u64() {
        Some(n) if (1..=MAX_COUNT).contains(&n) => Ok(n as usize),
        _ => Err(ModelError::config(
            field,
            format!("{value} is not a count within 1..={MAX_COUNT}"),
        )),
    }
}

fn number(field: &str, value: &Value) -> Result<f32, ModelError> {
    let number = value.as_f64().map(|n| n as f32).filter(|n| n.is_finite());
    number.ok_or_else(|| ModelError::config(field, format!("{value} is not a finite number")))
}

/// Fails unless `part` divides `whole`.
pub(crate) fn divides(field: &str, whole: usize, part: usize) -> Result<usize, ModelError> {
    if part == 0 || !whole.is_multiple_of(part) {
        return Err(ModelError::config(
            field,
            format!("{whole} cannot be divided by {part}"),
        ));
    }
    Ok(whole / part)
}
