//! Makes the files the tests read, good and bad.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod hub;

use std::path::Path;

use paceline_types::DType;
use paceline_weights::gguf_writer::{GgufWriter, Meta};
use serde_json::{Value, json};

/// A safetensors file with the header `header` and `data` bytes of data.
pub(crate) fn safetensors_raw(header: &str, data: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend((0..data).map(|at| at as u8));
    file
}

/// One entry of a safetensors header.
pub(crate) fn entry(dtype: &str, shape: &[usize], start: usize, end: usize) -> Value {
    json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]})
}

/// A well-formed safetensors file with F32 tensors of the given names and shapes.
pub(crate) fn safetensors(tensors: &[(&str, &[usize])]) -> Vec<u8> {
    let mut header = json!({"__metadata__": {"format": "pt"}});
    let mut end = 0;
    for (name, shape) in tensors {
        let bytes = 4 * shape.iter().product::<usize>();
        header[name] = entry("F32", shape, end, end + bytes);
        end += bytes;
    }
    safetensors_raw(&header.to_string(), end)
}

/// A folder with `config.json` and the given files.
pub(crate) fn folder(files: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write(folder.path(), "config.json", br#"{"model_type": "llama"}"#);
    for (name, data) in files {
        write(folder.path(), name, data);
    }
    folder
}

/// Writes one file into `folder`.
pub(crate) fn write(folder: &Path, name: &str, data: &[u8]) {
    std::fs::write(folder.join(name), data).expect("a writable temporary folder");
}

/// A GGUF writer with every kind of metadata value and three tensors.
pub(crate) fn gguf() -> GgufWriter {
    use paceline_weights::gguf::ValueType;
    let mut writer = GgufWriter::new();
    writer
        .key("general.architecture", Meta::string("llama"))
        .key("u8", Meta::U8(8))
        .key("i8", Meta::I8(-8))
        .key("u16", Meta::U16(16))
        .key("i16", Meta::I16(-16))
        .key("u32", Meta::U32(32))
        .key("i32", Meta::I32(-32))
        .key("f32", Meta::F32(0.5))
        .key("bool", Meta::Bool(true))
        .key("u64", Meta::U64(1 << 40))
        .key("i64", Meta::I64(-(1 << 40)))
        .key("f64", Meta::F64(0.25))
        .key("strings", Meta::strings(["a", "", "bc"]))
        .key("i32s", Meta::i32s([1, -2, 3]))
        .key("f32s", Meta::f32s([0.5, 1.5]))
        .key("bools", Meta::bools([true, false]))
        .key("empty", Meta::u32s([]))
        .key(
            "nested",
            Meta::Array(ValueType::Array, vec![Meta::u32s([1, 2]), Meta::strings(["x"])]),
        );
    let numbers: Vec<u8> = (0..8 * 4).collect();
    writer
        .tensor("token_embd.weight", DType::F32, &[2, 4], &numbers)
        .tensor("blk.0.attn_q.weight", DType::Q8_0, &[3, 32], &[1; 3 * 34])
        .tensor("output_norm.weight", DType::BF16, &[16], &[2; 32]);
    writer
}

/// Asserts that `message` contains every one of `parts`.
#[track_caller]
pub(crate) fn assert_names(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(
            message.contains(part),
            "{part:?} is not in the message: {message}"
        );
    }
}
