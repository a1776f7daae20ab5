//! Reference models as tensors in memory, to be changed and written in other layouts.

use paceline_testkit::Fixture;
use paceline_weights::{Bytes, Checkpoint, ModelParts};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// A tensor as a file stores it.
#[derive(Clone)]
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
        assert_eq!(shape.iter().product::<usize>(), values.len());
        Self {
            dtype: "F32".to_owned(),
            shape: shape.to_vec(),
            data: values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        }
    }

    /// Zeros of a type with elements of so many bytes.
    pub fn zeros(dtype: &str, bytes: usize, shape: &[usize]) -> Self {
        Self {
            dtype: dtype.to_owned(),
            shape: shape.to_vec(),
            data: vec![0; bytes * shape.iter().product::<usize>()],
        }
    }

    /// The elements of a tensor of 32-bit floats.
    pub fn values(&self) -> Vec<f32> {
        assert_eq!(self.dtype, "F32");
        let bytes = self.data.chunks_exact(4);
        bytes.map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }
}

/// A model in Hugging Face layout.
#[derive(Clone)]
pub struct ModelFiles {
    /// `config.json`.
    pub config: Value,
    /// The tensors by name.
    pub tensors: BTreeMap<String, Stored>,
}

impl ModelFiles {
    /// The model of a fixture.
    pub fn of(fixture: &Fixture) -> Self {
        let checkpoint = fixture.checkpoint();
        let tensors = checkpoint.raw_tensors().map(|tensor| {
            let stored = Stored {
                dtype: tensor.dtype.to_owned(),
                shape: tensor.shape.to_vec(),
                data: tensor.data.to_vec(),
            };
            (tensor.name.to_owned(), stored)
        });
        Self {
            config: checkpoint.config().unwrap().clone(),
            tensors: tensors.collect(),
        }
    }

    /// Sets a field of the configuration.
    pub fn with(mut self, field: &str, value: Value) -> Self {
        self.config[field] = value;
        self
    }

    /// Removes a field of the configuration.
    pub fn without(mut self, field: &str) -> Self {
        self.config.as_object_mut().unwrap().remove(field);
        self
    }

    /// The model opened from memory.
    pub fn checkpoint(&self) -> Checkpoint {
        let parts = ModelParts {
            name: "model".to_owned(),
            config_json: Bytes::from(self.config.to_string().into_bytes()),
            safetensors: Bytes::from(safetensors(&self.tensors)),
            tokenizer_json: None,
            tokenizer_config: None,
            generation_config: None,
            chat_template: None,
        };
        Checkpoint::from_parts(parts).unwrap_or_else(|e| panic!("{e}"))
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
