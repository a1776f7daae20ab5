//! What is accepted and refused in folders of safetensors files.

use std::path::Path;

use crate::support::{assert_names, entry, folder, safetensors, safetensors_raw, write};
use paceline_types::DType;
use paceline_weights::{Bytes, Checkpoint, Format, ModelParts};
use serde_json::json;

/// The message of the error that opening `path` must give.
fn refusal(path: &Path) -> String {
    Checkpoint::open(path)
        .expect_err("the checkpoint must be refused")
        .to_string()
}

/// The message for a folder with `model.safetensors` made of `header` and `data` bytes of data.
fn header_refusal(header: &serde_json::Value, data: usize) -> String {
    let folder = folder(&[("model.safetensors", safetensors_raw(&header.to_string(), data))]);
    let message = refusal(folder.path());
    assert_names(&message, &["model.safetensors"]);
    message
}

fn index(entries: &[(&str, &str)]) -> Vec<u8> {
    let map: serde_json::Map<_, _> = entries.iter().map(|(t, s)| ((*t).to_owned(), json!(s))).collect();
    json!({"metadata": {"total_size": 1}, "weight_map": map})
        .to_string()
        .into_bytes()
}

#[test]
fn a_single_file_gives_its_tensors_in_file_order() {
    let folder = folder(&[
        ("model.safetensors", safetensors(&[("b", &[2, 3]), ("a", &[4])])),
        ("golden.safetensors", safetensors(&[("other", &[1])])),
        ("tokenizer.json", b"{}".to_vec()),
        ("tokenizer_config.json", br#"{"eos_token": "</s>"}"#.to_vec()),
        ("generation_config.json", br#"{"temperature": 0.5}"#.to_vec()),
        ("chat_template.jinja", b"{{ messages }}".to_vec()),
    ]);
    let model = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(model.format(), Format::HuggingFace);
    assert_eq!(model.tensors().map(|t| t.name).collect::<Vec<_>>(), ["b", "a"]);
    let b = model.tensor("b").unwrap();
    assert_eq!((b.dtype, b.shape, b.data.len()), (DType::F32, &[2, 3][..], 24));
    assert_eq!(b.data[..4], [0, 1, 2, 3]);
    assert_eq!(model.config().unwrap()["model_type"], "llama");
    assert_eq!(model.tokenizer_json(), Some(&b"{}"[..]));
    assert_eq!(model.tokenizer_config().unwrap()["eos_token"], "</s>");
    assert_eq!(model.generation_config().unwrap()["temperature"], 0.5);
    assert_eq!(model.chat_template_file(), Some("{{ messages }}"));
    assert_eq!(model.source(), folder.path().display().to_string());
    assert!(model.gguf().is_none());
}

#[test]
fn shards_with_and_without_an_index_are_one_checkpoint() {
    let shards = [
        ("model-00002-of-00002.safetensors", safetensors(&[("c", &[2])])),
        (
            "model-00001-of-00002.safetensors",
            safetensors(&[("a", &[1]), ("b", &[3])]),
        ),
        ("consolidated.safetensors", safetensors(&[("a", &[1])])),
    ];
    let folder = folder(&shards);
    let without = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(
        without.tensors().map(|t| t.name).collect::<Vec<_>>(),
        ["a", "b", "c"]
    );

    let (first, second) = (
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    );
    write(
        folder.path(),
        "model.safetensors.index.json",
        &index(&[("a", first), ("b", first), ("c", second)]),
    );
    let with = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(with.tensors().count(), 3);
}

#[test]
fn embedded_parts_open_like_a_folder() {
    let parts = ModelParts {
        name: "storyteller".to_owned(),
        config_json: Bytes::from_static(br#"{"model_type": "llama"}"#),
        safetensors: safetensors(&[("a", &[2])]).into(),
        tokenizer_json: Some(Bytes::from_static(b"{}")),
        tokenizer_config: None,
        generation_config: Some(Bytes::from_static(br#"{"top_k": 5}"#)),
        chat_template: None,
    };
    let model = Checkpoint::from_parts(parts.clone()).unwrap();
    assert_eq!(model.source(), "storyteller");
    assert_eq!(model.tensor("a").unwrap().shape, [2]);
    assert_eq!(model.generation_config().unwrap()["top_k"], 5);

    let broken = ModelParts {
        config_json: Bytes::from_static(b"{"),
        ..parts
    };
    assert_names(
        &Checkpoint::from_parts(broken).unwrap_err().to_string(),
        &["storyteller/config.json", "JSON"],
    );
}

#[test]
fn the_default_model_of_the_repository_opens() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/storyteller");
    let model = Checkpoint::open(&path).unwrap();
    assert!(model.config().is_some() && model.tokenizer_json().is_some());
    assert_eq!(model.tensors().count(), model.raw_tensors().count());
}

#[test]
fn config_only_needs_no_weights() {
    let folder = folder(&[("generation_config.json", b"{}".to_vec())]);
    let model = Checkpoint::config_only(folder.path()).unwrap();
    assert!(model.config().is_some() && model.generation_config().is_some());
    assert_eq!(model.raw_tensors().count(), 0);
    let file = Checkpoint::config_only(&folder.path().join("config.json")).unwrap();
    assert_eq!(file.config().unwrap()["model_type"], "llama");
    let missing = Checkpoint::config_only(&folder.path().join("nope.json"))
        .unwrap_err()
        .to_string();
    assert_names(&missing, &["nope.json", "no such file"]);
}

#[test]
fn tensors_of_other_types_open_and_are_refused_only_on_use() {
    let header = json!({
        "d2t": entry("I64", &[2], 0, 16),
        "w": entry("F8_E5M2", &[2, 2], 16, 20),
        "mask": entry("BOOL", &[4], 20, 24),
        "norm": entry("BF16", &[2], 24, 28),
    });
    let folder = folder(&[("model.safetensors", safetensors_raw(&header.to_string(), 28))]);
    let model = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(model.tensors().map(|t| t.name).collect::<Vec<_>>(), ["norm"]);
    assert!(model.tensor("w").is_none());
    let raw = model.raw_tensor("d2t").unwrap();
    assert_eq!((raw.dtype, raw.shape, raw.data.len()), ("I64", &[2][..], 16));
    let message = model.require("w").unwrap_err().to_string();
    assert_names(
        &message,
        &[
            "model.safetensors",
            "tensor w has dtype F8_E5M2, which is not supported",
        ],
    );
    assert_names(
        &model.require("x").unwrap_err().to_string(),
        &["no tensor named x"],
    );
}

#[test]
fn paths_that_are_no_model_say_why() {
    let folder = folder(&[
        ("model.safetensors", safetensors(&[])),
        ("notes.txt", b"hello".to_vec()),
    ]);
    assert_names(
        &refusal(Path::new("/no/such/model")),
        &["/no/such/model", "no such file or folder"],
    );
    assert_names(
        &refusal(&folder.path().join("model.safetensors")),
        &["model.safetensors", "give the folder"],
    );
    assert_names(
        &refusal(&folder.path().join("notes.txt")),
        &["notes.txt", "not a model"],
    );
}

#[test]
fn folders_that_lack_files_say_which() {
    let empty = tempfile::tempdir().unwrap();
    assert_names(&refusal(empty.path()), &["no config.json", "empty"]);
    write(empty.path(), "model.Q4_0.gguf", b"");
    assert_names(&refusal(empty.path()), &["no config.json", "model.Q4_0.gguf"]);
    let bare = folder(&[("pytorch_model.bin", vec![])]);
    assert_names(&refusal(bare.path()), &["no .safetensors", "pytorch_model.bin"]);
    write(bare.path(), "config.json", b"{\"a\": tru}");
    assert_names(&refusal(bare.path()), &["config.json", "not valid JSON"]);
}

#[test]
fn every_truncation_is_refused_and_names_the_file() {
    let whole = safetensors(&[("a", &[2]), ("b", &[3])]);
    let folder = folder(&[]);
    for cut in 0..whole.len() {
        write(folder.path(), "model.safetensors", &whole[..cut]);
        assert_names(&refusal(folder.path()), &["model.safetensors"]);
    }
    write(folder.path(), "model.safetensors", &whole[..whole.len() - 1]);
    assert_names(&refusal(folder.path()), &["tensor b", "8..20", "19 bytes"]);
}

#[test]
fn a_header_length_beyond_the_file_or_the_limit_is_refused() {
    for length in [1000, u64::MAX] {
        let mut file = safetensors(&[("a", &[2])]);
        file[..8].copy_from_slice(&length.to_le_bytes());
        let folder = folder(&[("model.safetensors", file)]);
        assert_names(
            &refusal(folder.path()),
            &["model.safetensors", "header length", &length.to_string()],
        );
    }
    let length = paceline_weights::safetensors::MAX_HEADER + 1;
    let file = [&length.to_le_bytes()[..], &vec![b' '; length as usize]].concat();
    let message = paceline_weights::safetensors::parse(&file)
        .unwrap_err()
        .to_string();
    assert_names(&message, &["100000001", "at most 100000000"]);
}

#[test]
fn overlapping_ranges_are_refused() {
    let header = json!({"a": entry("F32", &[2], 0, 8), "b": entry("F32", &[2], 4, 12)});
    assert_names(
        &header_refusal(&header, 12),
        &["tensor b", "a ends at 8", "overlap"],
    );
}

#[test]
fn holes_and_trailing_bytes_are_refused() {
    let header = json!({"a": entry("F32", &[2], 0, 8), "b": entry("F32", &[1], 12, 16)});
    assert_names(
        &header_refusal(&header, 16),
        &["tensor b", "starts at 12", "hole"],
    );
    let header = json!({"a": entry("F32", &[2], 0, 8)});
    assert_names(&header_refusal(&header, 11), &["3 bytes follow"]);
}

#[test]
fn ranges_beyond_the_file_or_reversed_are_refused() {
    let header = json!({"a": entry("F32", &[2], 0, 8)});
    assert_names(&header_refusal(&header, 7), &["tensor a", "0..8", "7 bytes"]);
    let header = json!({"a": entry("F32", &[2], 8, 0)});
    assert_names(&header_refusal(&header, 8), &["tensor a", "8..0"]);
    let header = json!({"a": entry("F32", &[2], 0, usize::MAX)});
    assert_names(
        &header_refusal(&header, 8),
        &["tensor a", &usize::MAX.to_string()],
    );
}

#[test]
fn a_shape_that_does_not_match_its_range_is_refused() {
    let header = json!({"a": entry("F32", &[3], 0, 8)});
    assert_names(
        &header_refusal(&header, 8),
        &["tensor a", "[3]", "F32", "96 bits", "8 bytes"],
    );
    let header = json!({"a": entry("F32", &[usize::MAX, 2], 0, 8)});
    assert_names(&header_refusal(&header, 8), &["tensor a", "overflows"]);
    let header = json!({"a": entry("F4", &[3], 0, 1)});
    assert_names(&header_refusal(&header, 1), &["tensor a", "12 bits"]);
}

#[test]
fn a_name_twice_in_one_header_is_refused() {
    let one = entry("F32", &[1], 0, 4).to_string();
    let folder = folder(&[(
        "model.safetensors",
        safetensors_raw(&format!(r#"{{"a":{one},"a":{one}}}"#), 4),
    )]);
    assert_names(
        &refusal(folder.path()),
        &["model.safetensors", "two entries named a"],
    );
}

#[test]
fn malformed_headers_name_the_entry() {
    let header = json!({"a": {"dtype": "F128", "shape": [1], "data_offsets": [0, 16]}});
    assert_names(&header_refusal(&header, 16), &["entry a", "F128"]);
    let header = json!({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}});
    assert_names(&header_refusal(&header, 4), &["entry a", "-1"]);
    assert_names(&header_refusal(&json!([1, 2]), 0), &["malformed header"]);
    let mut file = safetensors_raw(&json!({"a": {"note": "?"}}).to_string(), 0);
    file[22] = 0xff;
    let folder = folder(&[("model.safetensors", file)]);
    assert_names(
        &refusal(folder.path()),
        &["model.safetensors", "UTF-8 from byte 14"],
    );
}

#[test]
fn a_tensor_in_two_shards_is_refused() {
    let folder = folder(&[
        ("x-1.safetensors", safetensors(&[("a", &[1])])),
        ("x-2.safetensors", safetensors(&[("a", &[1])])),
    ]);
    assert_names(
        &refusal(folder.path()),
        &["tensor a", "x-1.safetensors", "x-2.safetensors"],
    );
}

#[test]
fn broken_indexes_are_refused() {
    let shard = safetensors(&[("a", &[1])]);
    let folder = folder(&[
        ("s1.safetensors", shard),
        ("s2.safetensors", safetensors(&[("b", &[1])])),
    ]);
    let with_index = |index: &[u8]| {
        write(folder.path(), "model.safetensors.index.json", index);
        let message = refusal(folder.path());
        assert_names(&message, &["model.safetensors.index.json"]);
        message
    };
    assert_names(&with_index(b"{"), &["not valid JSON"]);
    assert_names(&with_index(b"{}"), &["no weight_map"]);
    assert_names(&with_index(br#"{"weight_map": []}"#), &["not an object"]);
    assert_names(&with_index(br#"{"weight_map": {}}"#), &["empty"]);
    assert_names(&with_index(br#"{"weight_map": {"a": 1}}"#), &["tensor a"]);
    assert_names(
        &with_index(&index(&[("a", "../s1.safetensors")])),
        &["tensor a", "../s1.safetensors"],
    );
    assert_names(
        &with_index(&index(&[("a", "s9.safetensors")])),
        &["shard s9.safetensors"],
    );
    assert_names(
        &with_index(&index(&[("z", "s1.safetensors")])),
        &["tensor z", "none of the shards"],
    );
    let swapped = index(&[("a", "s2.safetensors"), ("b", "s1.safetensors")]);
    assert_names(
        &with_index(&swapped),
        &["tensor a is listed in s2.safetensors, but is in s1.safetensors"],
    );
}
