//! Typed access to a model's configuration, with errors that name the field.

use crate::ModelError;
use serde_json::Value;

/// Larger counts, and larger widths made of two of them, are damage and not models. Within these bounds no product
/// that the layers form overflows, and row numbers fit 32 bits.
const MAX_COUNT: usize = 1 << 20;

/// The same for positions and vocabularies.
const MAX_TOKENS: usize = 1 << 24;

/// The same for layers.
const MAX_LAYERS: usize = 1 << 10;

/// The same for the taps of a convolution.
const MAX_TAPS: usize = 64;

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
        within(field, self.required(field)?, MAX_COUNT)
    }

    /// A positive count, or `default` when absent.
    pub fn count_or(&self, field: &str, default: usize) -> Result<usize, ModelError> {
        self.get(field)
            .map_or(Ok(default), |value| within(field, value, MAX_COUNT))
    }

    /// The number of layers.
    pub fn layers(&self) -> Result<usize, ModelError> {
        let field = "num_hidden_layers";
        within(field, self.required(field)?, MAX_LAYERS)
    }

    /// The size of the vocabulary.
    pub fn vocabulary(&self) -> Result<usize, ModelError> {
        let field = "vocab_size";
        within(field, self.required(field)?, MAX_TOKENS)
    }

    /// The longest sequence, or `default` when absent.
    pub fn positions_or(&self, default: usize) -> Result<usize, ModelError> {
        let field = "max_position_embeddings";
        self.get(field)
            .map_or(Ok(default), |value| within(field, value, MAX_TOKENS))
    }

    /// The taps of a convolution: 2 or more, 4 when absent.
    pub fn taps(&self, field: &str) -> Result<usize, ModelError> {
        match self.count_or(field, 4)? {
            taps if (2..=MAX_TAPS).contains(&taps) => Ok(taps),
            other => Err(ModelError::config(
                field,
                format!("{other} is not within 2..={MAX_TAPS}"),
            )),
        }
    }

    fn required(&self, field: &str) -> Result<&'a Value, ModelError> {
        self.get(field)
            .ok_or_else(|| ModelError::config(field, "missing"))
    }

    /// A count that may be zero, or `default` when absent.
    pub fn size_or(&self, field: &str, default: usize) -> Result<usize, ModelError> {
        match self.get(field) {
            Some(value) if value.as_u64() == Some(0) => Ok(0),
            Some(value) => within(field, value, MAX_COUNT),
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
                .and_then(|i| usize::try_from(i).ok())
                .filter(|i| *i < MAX_COUNT)
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
    /// `default` also decides where the levels contradict each other.
    pub fn tied(&self, default: bool) -> Result<bool, ModelError> {
        let field = "tie_word_embeddings";
        let outer = Self {
            fields: self.outer,
            outer: self.outer,
        };
        let inner_flag = self.flag_or(field, outer.flag_or(field, default)?)?;
        let outer_flag = outer.flag_or(field, inner_flag)?;
        Ok(if inner_flag == outer_flag {
            inner_flag
        } else {
            default
        })
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
        let pair = match value.as_array().map(Vec::as_slice) {
            Some([low, high]) => Some((bound(low, 0.0), bound(high, f32::INFINITY))),
            _ => None,
        };
        pair.filter(|(low, high)| low <= high)
            .ok_or_else(|| ModelError::config(field, format!("{value} is not a pair of bounds")))
    }
}

fn within(field: &str, value: &Value, limit: usize) -> Result<usize, ModelError> {
    let count = value.as_u64().and_then(|n| usize::try_from(n).ok());
    count
        .filter(|n| (1..=limit).contains(n))
        .ok_or_else(|| ModelError::config(field, format!("{value} is not a count within 1..={limit}")))
}

fn number(field: &str, value: &Value) -> Result<f32, ModelError> {
    let number = value.as_f64().map(|n| n as f32).filter(|n| n.is_finite());
    number.ok_or_else(|| ModelError::config(field, format!("{value} is not a finite number")))
}

/// A width of `count` times `size`, the second of which `field` gives.
pub(crate) fn width(field: &str, count: usize, size: usize) -> Result<usize, ModelError> {
    let product = count.checked_mul(size).filter(|width| *width <= MAX_COUNT);
    product.ok_or_else(|| ModelError::config(field, format!("{count} times {size} is above {MAX_COUNT}")))
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
