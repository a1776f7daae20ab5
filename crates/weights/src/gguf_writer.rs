//! Writes GGUF files, for tests and tools. Inference never writes weights.
//!
//! ```
//! use paceline_types::DType;
//! use paceline_weights::gguf_writer::{GgufWriter, Meta};
//!
//! let mut writer = GgufWriter::new();
//! writer.key("general.architecture", Meta::string("llama"));
//! writer.key("llama.block_count", Meta::U32(2));
//! writer.tensor("token_embd.weight", DType::F32, &[8, 4], &[0; 128]);
//! let file: Vec<u8> = writer.to_bytes();
//! assert!(file.starts_with(b"GGUF"));
//! ```

use std::io;
use std::path::Path;

use paceline_types::DType;

use crate::gguf::{DEFAULT_ALIGNMENT, MAGIC, ValueType, ggml_type_of};

/// A metadata value to write.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the variants are the names of the types")]
pub enum Meta {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(Vec<u8>),
    /// Items of one type; the type is stated because there may be none.
    Array(ValueType, Vec<Meta>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Meta {
    /// A string.
    pub fn string(text: &str) -> Self {
        Self::String(text.as_bytes().to_vec())
    }

    /// An array of strings.
    pub fn strings<S: AsRef<str>>(items: impl IntoIterator<Item = S>) -> Self {
        Self::Array(
            ValueType::String,
            items
                .into_iter()
                .map(|item| Self::string(item.as_ref()))
                .collect(),
        )
    }

    /// An array of `i32`.
    pub fn i32s(items: impl IntoIterator<Item = i32>) -> Self {
        Self::Array(ValueType::I32, items.into_iter().map(Self::I32).collect())
    }

    /// An array of `u32`.
    pub fn u32s(items: impl IntoIterator<Item = u32>) -> Self {
        Self::Array(ValueType::U32, items.into_iter().map(Self::U32).collect())
    }

    /// An array of `f32`.
    pub fn f32s(items: impl IntoIterator<Item = f32>) -> Self {
        Self::Array(ValueType::F32, items.into_iter().map(Self::F32).collect())
    }

    /// An array of booleans.
    pub fn bools(items: impl IntoIterator<Item = bool>) -> Self {
        Self::Array(ValueType::Bool, items.into_iter().map(Self::Bool).collect())
    }

    fn kind(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(..) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::U8(n) => out.extend(n.to_le_bytes()),
            Self::I8(n) => out.extend(n.to_le_bytes()),
            Self::U16(n) => out.extend(n.to_le_bytes()),
            Self::I16(n) => out.extend(n.to_le_bytes()),
            Self::U32(n) => out.extend(n.to_le_bytes()),
            Self::I32(n) => out.extend(n.to_le_bytes()),
            Self::F32(x) => out.extend(x.to_le_bytes()),
            Self::Bool(b) => out.push((*b).into()),
            Self::String(bytes) => write_string(bytes, out),
            Self::Array(item, items) => {
                out.extend((*item as u32).to_le_bytes());
                out.extend((items.len() as u64).to_le_bytes());
                for value in items {
                    assert_eq!(value.kind(), *item, "an array's items have one type");
                    value.write(out);
                }
            }
            Self::U64(n) => out.extend(n.to_le_bytes()),
            Self::I64(n) => out.extend(n.to_le_bytes()),
            Self::F64(x) => out.extend(x.to_le_bytes()),
        }
    }
}

/// One tensor to write. The fields say what goes into the file, right or wrong, so that tests can make bad files.
#[derive(Clone, Debug)]
pub struct WrittenTensor {
    /// The name.
    pub name: String,
    /// The dimensions as stored, innermost first.
    pub dims: Vec<u64>,
    /// The number of the element type.
    pub ggml_type: u32,
    /// The data.
    pub data: Vec<u8>,
    /// The offset to state instead of where the data really goes.
    pub offset: Option<u64>,
}

/// Collects metadata and tensors and writes them as one GGUF file.
#[derive(Clone, Debug)]
pub struct GgufWriter {
    version: u32,
    alignment: u64,
    keys: Vec<(String, Meta)>,
    tensors: Vec<WrittenTensor>,
}

impl Default for GgufWriter {
    fn default() -> Self {
        Self::new()
    }
}

impl GgufWriter {
    /// An empty file of version 3.
    pub fn new() -> Self {
        Self {
            version: 3,
            alignment: DEFAULT_ALIGNMENT,
            keys: Vec::new(),
            tensors: Vec::new(),
        }
    }

    /// Writes another version number.
    pub fn version(&mut self, version: u32) -> &mut Self {
        self.version = version;
        self
    }

    /// Aligns tensor data to `alignment` and says so in `general.alignment`.
    pub fn alignment(&mut self, alignment: u32) -> &mut Self {
        self.alignment = alignment.into();
        self.key("general.alignment", Meta::U32(alignment))
    }

    /// Adds a metadata entry.
    pub fn key(&mut self, key: &str, value: Meta) -> &mut Self {
        self.keys.push((key.to_owned(), value));
        self
    }

    /// Adds a tensor. `shape` is outermost first, as [`TensorView::shape`](crate::TensorView::shape); `data` must
    /// have the bytes that shape and type need.
    pub fn tensor(&mut self, name: &str, dtype: DType, shape: &[usize], data: &[u8]) -> &mut Self {
        let bytes = dtype.bytes_for(shape.iter().product());
        assert_eq!(
            bytes,
            Some(data.len()),
            "the data of {name} does not fit shape {shape:?} of {dtype}"
        );
        self.raw_tensor(WrittenTensor {
            name: name.to_owned(),
            dims: shape.iter().rev().map(|&dim| dim as u64).collect(),
            ggml_type: ggml_type_of(dtype).expect("a type that GGUF files have"),
            data: data.to_vec(),
            offset: None,
        })
    }

    /// Adds a tensor without checking anything about it.
    pub fn raw_tensor(&mut self, tensor: WrittenTensor) -> &mut Self {
        self.tensors.push(tensor);
        self
    }

    /// The whole file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            write_string(key.as_bytes(), &mut out);
            out.extend((value.kind() as u32).to_le_bytes());
            value.write(&mut out);
        }
        let mut next = 0;
        for tensor in &self.tensors {
            write_string(tensor.name.as_bytes(), &mut out);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.ggml_type.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(next).to_le_bytes());
            next = (next + tensor.data.len() as u64).next_multiple_of(self.alignment);
        }
        for tensor in &self.tensors {
            self.pad(&mut out);
            out.extend_from_slice(&tensor.data);
        }
        self.pad(&mut out);
        out
    }

    /// Writes the file to `path`.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        std::fs::write(path, self.to_bytes())
    }

    fn pad(&self, out: &mut Vec<u8>) {
        out.resize(out.len().next_multiple_of(self.alignment as usize), 0);
    }
}

fn write_string(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}
