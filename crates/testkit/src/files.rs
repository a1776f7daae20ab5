//! Models in Hugging Face layout, made in memory.

use paceline_weights::{Bytes, Checkpoint, ModelParts};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// A tensor as a file stores it.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The type's name in safetensors files.
    pub dtype: String,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// Little-endian elements.
    pub data: Vec<u8>,
}

impl Stored {
    /// A tensor of 32-bit floats.
    pub fn f32(shape: &[usize], values: &[f32]) -> Self {
        assert_eq!(
            shape.iter().product::<usize>(),
            values.len(),
            "elements of {shape:?}"
        );
        Self {
            dtype: "F32".to_owned(),
            shape: shape.to_vec(),
            data: values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        }
    }

    /// A list of 64-bit integers.
    pub fn i64(values: &[i64]) -> Self {
        Self {
            dtype: "I64".to_owned(),
            shape: vec![values.len()],
            data: values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        }
    }

    /// Zeros of a type whose elements have `bytes` bytes.
    pub fn zeros(dtype: &str, bytes: usize, shape: &[usize]) -> Self {
        Self {
            dtype: dtype.to_owned(),
            shape: shape.to_vec(),
            data: vec![0; bytes * shape.iter().product::<usize>()],
        }
    }

    /// The elements of a tensor of 32-bit floats.
    pub fn values(&self) -> Vec<f32> {
        assert_eq!(self.dtype, "F32", "the type of the elements");
        let bytes = self.data.as_chunks().0;
        bytes.iter().map(|element| f32::from_le_bytes(*element)).collect()
    }
}

/// A safetensors file.
pub fn safetensors(tensors: &BTreeMap<String, Stored>) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, tensor) in tensors {
        let start = data.len();
        data.extend_from_slice(&tensor.data);
        let entry = json!({
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": [start, data.len()],
        });
        header.insert(name.clone(), entry);
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.into_bytes());
    file.extend(data);
    file
}

/// A model opened from memory, called `name` in messages.
pub fn in_memory(name: &str, config: &Value, tensors: &BTreeMap<String, Stored>) -> Checkpoint {
    let parts = ModelParts {
        name: name.to_owned(),
        config_json: Bytes::from(config.to_string().into_bytes()),
        safetensors: Bytes::from(safetensors(tensors)),
        tokenizer_json: None,
        tokenizer_config: None,
        generation_config: None,
        chat_template: None,
    };
    Checkpoint::from_parts(parts).unwrap_or_else(|e| panic!("{e}"))
}
