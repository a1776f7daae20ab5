//! Fuzzing of both header parsers: whatever the bytes, an answer and never a panic.
//!
//! In the normal test run each target gets a few seconds of random inputs. To go on for longer, raise the limits
//! below through bolero's variables, or run a target under a coverage-guided engine:
//!
//! ```text
//! BOLERO_RANDOM_TEST_TIME_MS=600000 BOLERO_RANDOM_ITERATIONS=1000000000 cargo nextest run -p paceline-weights fuzz
//! cargo install cargo-bolero && cargo bolero test -p paceline-weights --test fuzz_headers fuzz_mutated_gguf
//! ```

mod support;

use std::time::Duration;

use bolero::check;
use paceline_weights::gguf::{self, Value};
use paceline_weights::{Bytes, safetensors};
use support::{entry, gguf as small_gguf, safetensors_raw};

const ITERATIONS: usize = 200_000;
const TIME: Duration = Duration::from_secs(3);

/// One change to a file: where, what kind, and with what.
type Mutation = (u16, u8, u64);

/// Numbers that parsers get wrong.
const NASTY: [u64; 12] = [
    0,
    1,
    9,
    31,
    32,
    0xff,
    1 << 31,
    u32::MAX as u64,
    1 << 40,
    1 << 63,
    u64::MAX - 31,
    u64::MAX,
];

/// Changes a valid file in a few places, so that most of it still parses and the rest is reached.
fn mutate(file: &mut Vec<u8>, mutations: &[Mutation]) {
    for &(at, kind, with) in mutations.iter().take(6) {
        if file.is_empty() {
            return;
        }
        let at = usize::from(at) % file.len();
        let nasty = NASTY[with as usize % NASTY.len()];
        let mut put = |bytes: &[u8]| {
            let end = file.len().min(at + bytes.len());
            file[at..end].copy_from_slice(&bytes[..end - at]);
        };
        match kind % 8 {
            0 => put(&[with as u8]),
            1 => put(&nasty.to_le_bytes()),
            2 => put(&(nasty as u32).to_le_bytes()),
            3 => put(&with.to_le_bytes()),
            4 => file[at] ^= 1 << (with % 8),
            5 => file.truncate(at),
            6 => drop(file.drain(at..file.len().min(at + with as usize % 16))),
            _ => {
                let piece: Vec<u8> = file[at..file.len().min(at + with as usize % 64)].to_vec();
                file.splice(at..at, piece);
            }
        }
    }
}

/// Parses, and on success touches everything that parsing promised.
fn exercise_gguf(file: Vec<u8>) {
    let bytes = Bytes::from(file);
    let Ok(parsed) = gguf::parse(&bytes, "fuzz.gguf") else {
        return;
    };
    for key in parsed.metadata.keys() {
        let value = parsed
            .metadata
            .value(key)
            .expect("every key has a value that decodes");
        exercise_value(value);
        let _ = parsed.metadata.get_u32(key);
        let _ = parsed.metadata.get_array_str(key);
        let _ = parsed.metadata.get_array_i32(key);
    }
    let mut ranges: Vec<_> = parsed.tensors.iter().map(|tensor| tensor.range.clone()).collect();
    for tensor in &parsed.tensors {
        let elements = tensor.shape.iter().product();
        assert_eq!(
            tensor.dtype.bytes_for(elements),
            Some(bytes[tensor.range.clone()].len())
        );
    }
    ranges.retain(|range| !range.is_empty());
    ranges.sort_by_key(|range| range.start);
    assert!(
        ranges.windows(2).all(|pair| pair[0].end <= pair[1].start),
        "tensors do not overlap"
    );
}

fn exercise_value(value: Value<'_>) {
    assert!(value.describe().len() < 1000);
    if let Value::Array(array) = value {
        assert_eq!(array.iter().map(exercise_value).count(), array.len());
    }
}

/// Parses, and checks that what is accepted is what the reference implementation accepts, with the same contents.
fn exercise_safetensors(file: &[u8]) {
    let Ok(entries) = safetensors::parse(file) else {
        return;
    };
    let reference =
        ::safetensors::SafeTensors::deserialize(file).expect("a subset of what the reference accepts");
    assert_eq!(entries.len(), reference.len());
    for entry in entries {
        let view = reference.tensor(&entry.name).expect("the same names");
        assert_eq!(
            (view.dtype(), view.shape()),
            (entry.dtype, entry.shape.as_slice())
        );
        assert_eq!(view.data(), &file[entry.range]);
    }
}

fn small_safetensors() -> Vec<u8> {
    let header = serde_json::json!({
        "__metadata__": {"format": "pt"},
        "a": entry("F32", &[2, 3], 0, 24),
        "b": entry("I64", &[2], 24, 40),
        "c": entry("F8_E4M3", &[0, 4], 40, 40),
        "d": entry("BF16", &[], 40, 42),
    });
    safetensors_raw(&header.to_string(), 42)
}

#[test]
fn fuzz_the_seeds_themselves_are_accepted() {
    assert!(gguf::parse(&small_gguf().to_bytes().into(), "seed").is_ok());
    assert_eq!(
        safetensors::parse(&small_safetensors())
            .expect("a valid seed")
            .len(),
        4
    );
    exercise_gguf(small_gguf().to_bytes());
    exercise_safetensors(&small_safetensors());
}

#[test]
fn fuzz_raw_gguf() {
    check!()
        .with_iterations(ITERATIONS)
        .with_test_time(TIME)
        .for_each(|bytes: &[u8]| {
            exercise_gguf(bytes.to_vec());
            // A good beginning gets the bytes past the first checks.
            exercise_gguf([b"GGUF\x03\0\0\0\x02\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0", bytes].concat());
        });
}

#[test]
fn fuzz_mutated_gguf() {
    let seed = small_gguf().to_bytes();
    check!()
        .with_iterations(ITERATIONS)
        .with_test_time(TIME)
        .with_type::<Vec<Mutation>>()
        .for_each(|mutations| {
            let mut file = seed.clone();
            mutate(&mut file, mutations);
            exercise_gguf(file);
        });
}

#[test]
fn fuzz_raw_safetensors() {
    check!()
        .with_iterations(ITERATIONS)
        .with_test_time(TIME)
        .for_each(|bytes: &[u8]| {
            exercise_safetensors(bytes);
            exercise_safetensors(&[&(bytes.len() as u64).to_le_bytes(), bytes].concat());
        });
}

#[test]
fn fuzz_mutated_safetensors() {
    let seed = small_safetensors();
    check!()
        .with_iterations(ITERATIONS)
        .with_test_time(TIME)
        .with_type::<Vec<Mutation>>()
        .for_each(|mutations| {
            let mut file = seed.clone();
            mutate(&mut file, mutations);
            exercise_safetensors(&file);
            // With the length put right again, the header itself is reached even when its size changed.
            if let Some(data) = file.windows(2).rposition(|pair| pair == b"}}") {
                let length = (data + 2 - 8) as u64;
                file[..8].copy_from_slice(&length.to_le_bytes());
                exercise_safetensors(&file);
            }
        });
}
