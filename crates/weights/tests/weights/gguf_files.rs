//! What is accepted and refused in GGUF files.

use std::fs;
use std::path::Path;

use crate::support::{assert_names, gguf};
use paceline_types::DType;
use paceline_weights::gguf::{GgufMetadata, Value, ValueType};
use paceline_weights::gguf_writer::{GgufWriter, Meta, WrittenTensor};
use paceline_weights::{Checkpoint, Format, WeightsError};

fn open(file: Vec<u8>) -> Result<Checkpoint, WeightsError> {
    Checkpoint::from_gguf("small.gguf", file.into())
}

/// The message of the error that opening `file` must give.
fn refusal(file: Vec<u8>) -> String {
    let message = open(file).expect_err("the file must be refused").to_string();
    assert_names(&message, &["small.gguf"]);
    message
}

/// A writer with one F32 tensor changed by `change`.
fn one_tensor(change: impl FnOnce(&mut WrittenTensor)) -> Vec<u8> {
    let (name, dims, data) = ("blk.0.w".to_owned(), vec![4, 2], vec![0; 32]);
    let mut tensor = WrittenTensor {
        name,
        dims,
        ggml_type: 0,
        data,
        offset: None,
    };
    change(&mut tensor);
    GgufWriter::new().raw_tensor(tensor).to_bytes()
}

/// A file header with the counts given and nothing after it but `rest`.
fn header(n_tensors: u64, n_keys: u64, rest: &[u8]) -> Vec<u8> {
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend(n_tensors.to_le_bytes());
    file.extend(n_keys.to_le_bytes());
    file.extend_from_slice(rest);
    file
}

#[test]
fn tensors_come_out_with_reversed_dimensions_and_their_data() {
    for version in [2, 3] {
        let model = open(gguf().version(version).to_bytes()).unwrap();
        assert_eq!(model.format(), Format::Gguf);
        assert_eq!(model.gguf().unwrap().version(), version);
        let names: Vec<_> = model.tensors().map(|t| t.name).collect();
        assert_eq!(
            names,
            ["token_embd.weight", "blk.0.attn_q.weight", "output_norm.weight"]
        );
        let embed = model.tensor("token_embd.weight").unwrap();
        assert_eq!((embed.dtype, embed.shape), (DType::F32, &[2, 4][..]));
        assert_eq!(embed.data, (0..32).collect::<Vec<u8>>());
        let q = model.tensor("blk.0.attn_q.weight").unwrap();
        assert_eq!(
            (q.dtype, q.shape, q.data),
            (DType::Q8_0, &[3, 32][..], &[1; 102][..])
        );
        assert_eq!(model.tensor("output_norm.weight").unwrap().data, [2; 32]);
    }
}

#[test]
fn a_file_opens_from_disk_by_extension_or_by_magic() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["model.gguf", "0123abcd"] {
        let path = folder.path().join(name);
        gguf().write(&path).unwrap();
        assert_eq!(Checkpoint::open(&path).unwrap().tensors().count(), 3);
    }
}

#[test]
fn an_empty_file_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("empty.gguf");
    std::fs::write(&path, b"").unwrap();
    assert_names(
        &Checkpoint::open(&path).unwrap_err().to_string(),
        &["empty.gguf", "not a GGUF file"],
    );
}

#[test]
fn a_stated_alignment_is_followed() {
    let file = gguf().alignment(128).to_bytes();
    assert_eq!(
        open(file).unwrap().tensor("output_norm.weight").unwrap().data,
        [2; 32]
    );
    let bad = GgufWriter::new()
        .key("general.alignment", Meta::U32(24))
        .to_bytes();
    assert_names(&refusal(bad), &["general.alignment", "24", "power of two"]);
    let zero = GgufWriter::new()
        .key("general.alignment", Meta::U32(0))
        .to_bytes();
    assert_names(&refusal(zero), &["general.alignment", "0"]);
}

#[test]
fn a_file_without_tensors_opens() {
    assert_eq!(open(header(0, 0, b"")).unwrap().tensors().count(), 0);
}

#[test]
fn getters_give_values_and_widen_or_narrow_integers_in_range() {
    let model = open(gguf().to_bytes()).unwrap();
    let meta = model.gguf().unwrap();
    assert_eq!(meta.get_str("general.architecture").unwrap(), Some("llama"));
    for (key, value) in [("u8", 8), ("u16", 16), ("u32", 32)] {
        assert_eq!(meta.get_u32(key).unwrap(), Some(value));
    }
    for (key, value) in [("i8", -8), ("i16", -16), ("i32", -32)] {
        assert_eq!(meta.require::<i32>(key).unwrap(), value);
    }
    assert_eq!(meta.get_u64("u64").unwrap(), Some(1 << 40));
    assert_eq!(
        (meta.get_f32("f32").unwrap(), meta.get_f32("f64").unwrap()),
        (Some(0.5), Some(0.25))
    );
    assert_eq!(meta.get_bool("bool").unwrap(), Some(true));
    assert_eq!(meta.get_array_str("strings").unwrap().unwrap(), ["a", "", "bc"]);
    assert_eq!(meta.get_array_i32("i32s").unwrap().unwrap(), [1, -2, 3]);
    assert_eq!(meta.get_array_f32("f32s").unwrap().unwrap(), [0.5, 1.5]);
    assert_eq!(meta.get_array_bool("bools").unwrap().unwrap(), [true, false]);
    assert_eq!(meta.get_array_u32("empty").unwrap().unwrap(), [] as [u32; 0]);
    assert_eq!(meta.get_u32("absent").unwrap(), None);
    assert!(meta.contains("u8") && !meta.contains("absent"));
    assert_eq!(meta.keys().next(), Some("general.architecture"));
}

#[test]
fn nested_arrays_are_iterated() {
    let model = open(gguf().to_bytes()).unwrap();
    let Some(Value::Array(outer)) = model.gguf().unwrap().value("nested") else {
        panic!("not an array")
    };
    let inner: Vec<_> = outer.iter().map(Value::describe).collect();
    assert_eq!(inner, ["array of 2 u32", "array of 1 string"]);
    let Some(Value::Array(numbers)) = outer.iter().next() else {
        panic!("not an array")
    };
    assert_eq!(
        numbers.iter().filter_map(Value::as_u64).collect::<Vec<_>>(),
        [1, 2]
    );
}

#[test]
fn getter_errors_name_the_key_and_what_was_found() {
    let mut writer = gguf();
    writer.key("binary", Meta::String(vec![0xff])).key("binaries", {
        Meta::Array(
            ValueType::String,
            vec![Meta::string("ok"), Meta::String(vec![0xff])],
        )
    });
    let model = open(writer.to_bytes()).unwrap();
    let meta: &GgufMetadata = model.gguf().unwrap();
    let check = |error: WeightsError, parts: &[&str]| {
        assert_names(&error.to_string(), &["small.gguf", "metadata key"]);
        assert_names(&error.to_string(), parts);
    };
    check(
        meta.get_u32("u64").unwrap_err(),
        &["u64", "range of u32", "u64 1099511627776"],
    );
    check(meta.get_u32("i8").unwrap_err(), &["i8", "found i8 -8"]);
    check(meta.get_u32("f32").unwrap_err(), &["f32 0.5"]);
    check(meta.get_str("u8").unwrap_err(), &["a UTF-8 string", "found u8 8"]);
    check(
        meta.get_f32("general.architecture").unwrap_err(),
        &["found string \"llama\""],
    );
    check(
        meta.get_bool("strings").unwrap_err(),
        &["found array of 3 string"],
    );
    check(
        meta.get_array_u32("i32s").unwrap_err(),
        &["i32s", "item 1 is i32 -2"],
    );
    check(
        meta.get_array_f32("u8").unwrap_err(),
        &["an array of floats", "u8 8"],
    );
    check(meta.get_str("binary").unwrap_err(), &["binary"]);
    check(
        meta.get_array_str("binaries").unwrap_err(),
        &["binaries", "item 1"],
    );
    check(
        meta.require::<u32>("absent").unwrap_err(),
        &["no metadata key absent"],
    );
}

#[test]
fn a_vocabulary_of_150k_strings_is_read_whole() {
    let tokens = Meta::strings((0..150_000).map(|n| format!("token{n}")));
    let merges = Meta::strings((0..150_000).map(|n| format!("to ken{n}")));
    let mut writer = GgufWriter::new();
    let file = writer
        .key("tokenizer.ggml.tokens", tokens)
        .key("tokenizer.ggml.merges", merges)
        .to_bytes();
    let model = open(file).unwrap();
    let strings = |key| model.gguf().unwrap().get_array_str(key).unwrap().unwrap();
    for (key, last) in [
        ("tokenizer.ggml.tokens", "token149999"),
        ("tokenizer.ggml.merges", "to ken149999"),
    ] {
        assert_eq!((strings(key).len(), strings(key)[149_999]), (150_000, last));
    }
}

#[test]
fn every_prefix_of_a_file_is_refused() {
    let whole = gguf().to_bytes();
    for cut in 0..whole.len() {
        refusal(whole[..cut].to_vec());
    }
    open(whole).unwrap();
}

#[test]
fn a_file_cut_in_its_data_names_the_tensor() {
    let whole = gguf().to_bytes();
    let message = refusal(whole[..whole.len() - 1].to_vec());
    assert_names(&message, &["tensor output_norm.weight", "32 bytes", "beyond"]);
}

#[test]
fn other_magics_and_versions_are_refused() {
    assert_names(
        &refusal(b"GGML\x03\0\0\0".to_vec()),
        &["not a GGUF file", "[47, 47, 4d, 4c]"],
    );
    assert_names(&refusal(Vec::new()), &["not a GGUF file"]);
    assert_names(&refusal(gguf().version(1).to_bytes()), &["version 1"]);
    assert_names(&refusal(gguf().version(4).to_bytes()), &["version 4"]);
    assert_names(&refusal(gguf().version(3 << 24).to_bytes()), &["big-endian"]);
}

#[test]
fn absurd_counts_are_refused_before_anything_is_allocated() {
    for count in [u64::MAX, 1 << 40, 5] {
        assert_names(
            &refusal(header(count, 0, &[0; 64])),
            &["number of tensors", &count.to_string(), "64"],
        );
        assert_names(&refusal(header(0, count, &[0; 64])), &["metadata key"]);
    }
    assert_names(
        &refusal(header(0, u64::MAX, &[0; 64])),
        &["number of metadata keys", "at most 4"],
    );
}

#[test]
fn string_lengths_beyond_the_file_are_refused() {
    for length in [u64::MAX, 1 << 40, 100] {
        let mut entry = length.to_le_bytes().to_vec();
        entry.extend_from_slice(b"key with some bytes");
        assert_names(
            &refusal(header(0, 1, &entry)),
            &["metadata key 0", &length.to_string()],
        );

        let mut entry = [3u64.to_le_bytes().as_slice(), b"key", &8u32.to_le_bytes()].concat();
        entry.extend(length.to_le_bytes());
        assert_names(
            &refusal(header(0, 1, &entry)),
            &["metadata key key", &length.to_string()],
        );
    }
}

#[test]
fn array_lengths_beyond_the_file_are_refused() {
    for (item, length) in [(4u32, u64::MAX), (8, 1 << 40), (9, 100), (12, u64::MAX / 8 + 1)] {
        let mut entry = [3u64.to_le_bytes().as_slice(), b"key", &9u32.to_le_bytes()].concat();
        entry.extend(item.to_le_bytes());
        entry.extend(length.to_le_bytes());
        entry.extend([0; 100]);
        assert_names(
            &refusal(header(0, 1, &entry)),
            &["metadata key key", &length.to_string()],
        );
    }
}

#[test]
fn arrays_nested_deep_are_refused() {
    let mut bomb = [4u64.to_le_bytes().as_slice(), b"bomb", &9u32.to_le_bytes()].concat();
    for _ in 0..200_000 {
        bomb.extend(9u32.to_le_bytes());
        bomb.extend(1u64.to_le_bytes());
    }
    assert_names(
        &refusal(header(0, 1, &bomb)),
        &["metadata key bomb", "deeper than 4"],
    );
}

#[test]
fn unknown_value_types_and_odd_bools_are_refused() {
    let entry = |kind: u32| [1u64.to_le_bytes().as_slice(), b"k", &kind.to_le_bytes(), &[7; 16]].concat();
    assert_names(&refusal(header(0, 1, &entry(13))), &["metadata key k", "type 13"]);
    assert_names(
        &refusal(header(0, 1, &entry(7))),
        &["metadata key k", "stored as 7"],
    );
}

#[test]
fn a_key_or_tensor_twice_is_refused() {
    let twice = GgufWriter::new()
        .key("a", Meta::U8(1))
        .key("a", Meta::U8(2))
        .to_bytes();
    assert_names(&refusal(twice), &["metadata key a appears twice"]);
    let mut writer = GgufWriter::new();
    writer
        .tensor("w", DType::F32, &[1], &[0; 4])
        .tensor("w", DType::F32, &[1], &[0; 4]);
    assert_names(&refusal(writer.to_bytes()), &["tensor w appears twice"]);
}

#[test]
fn unsupported_tensor_types_are_named() {
    assert_names(
        &refusal(one_tensor(|t| t.ggml_type = 21)),
        &["tensor blk.0.w", "IQ3_S (21)"],
    );
    assert_names(
        &refusal(one_tensor(|t| t.ggml_type = 39)),
        &["tensor blk.0.w", "MXFP4"],
    );
    assert_names(
        &refusal(one_tensor(|t| t.ggml_type = 999)),
        &["tensor blk.0.w", "999"],
    );
}

#[test]
fn dimensions_that_overflow_or_are_too_many_are_refused() {
    assert_names(
        &refusal(one_tensor(|t| t.dims = vec![1; 5])),
        &["tensor blk.0.w", "5 dimensions"],
    );
    let overflow = one_tensor(|t| t.dims = vec![1 << 32, 1 << 32]);
    assert_names(
        &refusal(overflow),
        &["tensor blk.0.w", "[4294967296, 4294967296]", "overflows"],
    );
    let bytes_overflow = one_tensor(|t| t.dims = vec![1 << 62]);
    assert_names(&refusal(bytes_overflow), &["tensor blk.0.w", "overflows"]);
    let absurd = one_tensor(|t| t.dims = vec![u64::MAX - 3; 4]);
    assert_names(&refusal(absurd), &["tensor blk.0.w", "overflows"]);
}

#[test]
fn rows_that_do_not_fill_blocks_are_refused() {
    let partial = one_tensor(|t| (t.ggml_type, t.dims) = (8, vec![16, 2]));
    assert_names(
        &refusal(partial),
        &["tensor blk.0.w", "matrix rows of 16", "Q8_0", "32"],
    );
}

#[test]
fn misplaced_tensor_data_is_refused() {
    let misaligned = refusal(one_tensor(|t| t.offset = Some(4)));
    assert_names(&misaligned, &["tensor blk.0.w", "offset 4", "alignment 32"]);
    for offset in [32, 1 << 40, u64::MAX - 31] {
        let beyond = refusal(one_tensor(|t| t.offset = Some(offset)));
        assert_names(&beyond, &["tensor blk.0.w", &offset.to_string(), "32 bytes"]);
    }
    let raw = |name: &str, offset| WrittenTensor {
        name: name.to_owned(),
        dims: vec![16],
        ggml_type: 0,
        data: vec![0; 64],
        offset: Some(offset),
    };
    let overlap = GgufWriter::new()
        .raw_tensor(raw("b", 32))
        .raw_tensor(raw("a", 0))
        .to_bytes();
    assert_names(
        &refusal(overlap),
        &["tensor b at offset 32 overlaps tensor a, which ends at 64"],
    );
}

#[test]
fn one_part_of_a_split_model_is_refused_with_the_number_of_parts() {
    let split = GgufWriter::new().key("split.count", Meta::U16(3)).to_bytes();
    assert_names(&refusal(split), &["3 parts", "name-00001-of-00003.gguf"]);
}

/// The parts of a model with a tensor each, written into `folder`.
fn write_parts(folder: &Path, change: impl Fn(u16, &mut GgufWriter)) {
    for part in 0..3_u16 {
        let mut writer = GgufWriter::new();
        if part == 0 {
            writer.key("general.architecture", Meta::string("llama"));
        }
        writer
            .key("split.no", Meta::U16(part))
            .key("split.count", Meta::U16(3))
            .key("split.tensors.count", Meta::I32(3));
        change(part, &mut writer);
        let data = [part as u8; 32];
        writer.tensor(&format!("blk.{part}.attn_norm.weight"), DType::F32, &[8], &data);
        let name = format!("m-{:05}-of-00003.gguf", part + 1);
        writer
            .write(&folder.join(name))
            .expect("a writable temporary folder");
    }
}

#[test]
fn parts_of_a_model_open_as_one_whichever_is_named() {
    let folder = tempfile::tempdir().unwrap();
    write_parts(folder.path(), |_, _| {});
    for name in ["m-00001-of-00003.gguf", "m-00003-of-00003.gguf"] {
        let model = Checkpoint::open(&folder.path().join(name)).unwrap();
        assert!(model.source().ends_with("m-00001-of-00003.gguf"));
        let architecture = model.gguf().unwrap().get_str("general.architecture");
        assert_eq!(architecture.unwrap(), Some("llama"));
        for part in 0..3_u8 {
            let tensor = model.require(&format!("blk.{part}.attn_norm.weight")).unwrap();
            assert_eq!(tensor.data, [part; 32]);
        }
    }
    // A file that is whole may have any name.
    let whole = folder.path().join("w-00002-of-00009.gguf");
    gguf().write(&whole).unwrap();
    assert_eq!(Checkpoint::open(&whole).unwrap().tensors().count(), 3);
}

#[test]
fn parts_that_do_not_belong_together_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Checkpoint::open(&folder.path().join("m-00001-of-00003.gguf"));
    let refused = || open().unwrap_err().to_string();
    write_parts(folder.path(), |_, _| {});
    let at = |number: u8| folder.path().join(format!("m-0000{number}-of-00003.gguf"));
    fs::copy(at(2), at(3)).unwrap();
    assert_names(
        &refused(),
        &["m-00003-of-00003.gguf", "part 3 of 3", "part 2 of 3"],
    );
    gguf().write(&at(3)).unwrap();
    assert_names(&refused(), &["m-00003-of-00003.gguf", "it is no part"]);
    fs::remove_file(at(3)).unwrap();
    assert_names(&refused(), &["m-00003-of-00003.gguf", "no such file"]);
    write_parts(folder.path(), |part, writer| {
        if part == 2 {
            writer.tensor("more", DType::F32, &[1], &[0; 4]);
        }
    });
    assert_names(
        &refused(),
        &["m-00001-of-00003.gguf", "4 tensors", "should have 3"],
    );
    fs::write(at(2), b"GGUF").unwrap();
    assert_names(&refused(), &["m-00002-of-00003.gguf", "truncated"]);
}
