//! Replies of `/v1/embeddings`.

use crate::embedding::normalise;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use paceline::Embedded;
use serde::Serialize;

/// The vectors of a request.
#[derive(Debug, Serialize)]
pub(crate) struct Reply {
    object: &'static str,
    data: Vec<Row>,
    model: String,
    usage: Usage,
}

#[derive(Debug, Serialize)]
struct Row {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

/// A vector as it is written.
#[derive(Debug, PartialEq, Serialize)]
#[serde(untagged)]
enum Vector {
    Floats(Vec<f32>),
    /// Floats of 32 bits, lowest byte first.
    Base64(String),
}

#[derive(Debug, Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: Details,
}

#[derive(Debug, Serialize)]
struct Details {
    cached_tokens: usize,
}

/// What is made of the engine's vectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Elements to keep, from the first on.
    pub(super) dimensions: usize,
    /// Bring them to unit length.
    pub(super) normalize: bool,
    /// Write them as bytes.
    pub(super) base64: bool,
}

impl Reply {
    pub(super) fn new(model: String, vectors: Vec<Embedded>, shape: Shape) -> Self {
        let prompt_tokens = vectors.iter().map(|vector| vector.usage.prompt_tokens).sum();
        let cached_tokens = vectors.iter().map(|vector| vector.usage.cached_tokens).sum();
        let row = |(index, vector): (usize, Embedded)| Row {
            object: "embedding",
            index,
            embedding: shape.write(vector.values),
        };
        Self {
            object: "list",
            data: vectors.into_iter().enumerate().map(row).collect(),
            model,
            usage: Usage {
                prompt_tokens,
                total_tokens: prompt_tokens,
                prompt_tokens_details: Details { cached_tokens },
            },
        }
    }
}

impl Shape {
    fn write(self, mut values: Vec<f32>) -> Vector {
        values.truncate(self.dimensions);
        if self.normalize {
            normalise(&mut values);
        }
        if self.base64 {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            Vector::Base64(BASE64_STANDARD.encode(bytes))
        } else {
            Vector::Floats(values)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(dimensions: usize, normalize: bool, base64: bool) -> Shape {
        Shape {
            dimensions,
            normalize,
            base64,
        }
    }

    #[test]
    fn vectors_are_cut_first_and_then_brought_to_unit_length() {
        let values = || vec![3.0, -4.0, 12.0];
        assert_eq!(
            shape(3, false, false).write(values()),
            Vector::Floats(vec![3.0, -4.0, 12.0])
        );
        assert_eq!(
            shape(2, true, false).write(values()),
            Vector::Floats(vec![0.6, -0.8])
        );
        assert_eq!(
            shape(2, false, false).write(values()),
            Vector::Floats(vec![3.0, -4.0])
        );
        assert_eq!(
            shape(2, true, false).write(vec![0.0; 3]),
            Vector::Floats(vec![0.0; 2])
        );
    }

    #[test]
    fn bytes_are_little_endian_floats() {
        let written = shape(2, false, true).write(vec![1.0, -2.5]);
        assert_eq!(written, Vector::Base64("AACAPwAAIMA=".to_owned()));
    }
}
