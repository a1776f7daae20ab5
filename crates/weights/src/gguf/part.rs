//! What a file says of itself where a model is split over several.

use super::{GgufError, GgufFile, Value};

/// The place of a file among the parts of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// From 0 on.
    pub number: Option<u64>,
    /// How many there are.
    pub count: u64,
    /// The tensors of all parts together.
    pub tensors: Option<u64>,
}

impl GgufFile {
    /// Which part of a model this is; nothing, if it is all of it.
    pub fn part(&self) -> Option<Part> {
        let number = |key: &str| self.metadata.value(key).and_then(Value::as_u64);
        let count = number("split.count").filter(|count| *count > 1)?;
        Some(Part {
            number: number("split.no"),
            count,
            tensors: number("split.tensors.count"),
        })
    }
}

/// Checks that a file is the part its name says: `number` from 1 on, of `count`.
pub(crate) fn check_part(part: Option<Part>, number: u32, count: u32) -> Result<(), GgufError> {
    let found = match part {
        Some(part) if part.count == u64::from(count) && part.number == Some(u64::from(number) - 1) => {
            return Ok(());
        }
        Some(Part {
            number: Some(number),
            count,
            ..
        }) => format!("part {} of {count}", number.saturating_add(1)),
        Some(Part { count, .. }) => format!("a part of {count} without a number"),
        None => "it is no part".to_owned(),
    };
    Err(GgufError::WrongPart { number, count, found })
}
