//! Fuzzing of both header parsers: whatever the bytes, an answer and never a panic.
//!
//! In the normal test run each target gets a short time of random inputs. To go on for longer, set the time, or
//! run a target under a coverage-guided engine; a failure prints the seed that repeats it.
//!
//! ```text
//! BOLERO_RANDOM_TEST_TIME_MS=600000 cargo nextest run -p paceline-weights fuzz
//! cargo install cargo-bolero && cargo bolero test -p paceline-weights fuzz_mutated_gguf
//! ```
//!
//! Random bytes alone never get past the first checks. So there are also targets that change a valid file in a few
//! places or write one from random parts, and these check that a fair share of their inputs is accepted and a fair
//! share refused: a target that always ends in the same branch tests nothing.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{entry, gguf as small_gguf, safetensors_raw};
use bolero::check;
use paceline_types::DType;
use paceline_weights::gguf::{self, Value, ValueType, ggml_type_of};
use paceline_weights::gguf_writer::{GgufWriter, Meta, WrittenTensor};
use paceline_weights::{Bytes, safetensors};

const TIME: Duration = Duration::from_secs(2);

/// One change to a file: where, what kind, and with what.
type Mutation = (u16, u8, u64);

/// How many of a few changes to make, and which.
type Mutations = (u8, [Mutation; 3]);

/// How often parsing ended which way.
#[derive(Default)]
struct Tally {
    accepted: AtomicUsize,
    all: AtomicUsize,
}

impl Tally {
    fn count(&self, accepted: bool) {
        self.all.fetch_add(1, Ordering::Relaxed);
        self.accepted.fetch_add(usize::from(accepted), Ordering::Relaxed);
    }

    /// Asserts that both ends were reached in at least one of a hundred cases.
    fn assert_mixed(&self) {
        let (accepted, all) = (
            self.accepted.load(Ordering::Relaxed),
            self.all.load(Ordering::Relaxed),
        );
        println!("{accepted} of {all} inputs were accepted");
        assert!(
            accepted * 100 > all && (all - accepted) * 100 > all,
            "{accepted} of {all} were accepted"
        );
    }
}

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
fn mutate(file: &mut Vec<u8>, (count, mutations): &Mutations) {
    for &(at, kind, with) in &mutations[..=usize::from(count % 3)] {
        if file.is_empty() {
            return;
        }
        let at = usize::from(at) % file.len();
        let nasty = NASTY[with as usize % NASTY.len()];
        let mut put = |bytes: &[u8]| {
            let end = file.len().min(at + bytes.len());
            file[at..end].copy_from_slice(&bytes[..end - at]);
        };
        match kind % 16 {
            0..6 => put(&[with as u8]),
            6..10 => file[at] ^= 1 << (with % 8),
            10 => put(&nasty.to_le_bytes()),
            11 => put(&(nasty as u32).to_le_bytes()),
            12 => put(&with.to_le_bytes()),
            13 => file.truncate(at),
            14 => drop(file.drain(at..file.len().min(at + with as usize % 16))),
            _ => {
                let piece: Vec<u8> = file[at..file.len().min(at + with as usize % 64)].to_vec();
                file.splice(at..at, piece);
            }
        }
    }
}

/// A metadata value made of `seed`, sometimes an array and sometimes one in another.
fn meta(seed: u64) -> Meta {
    let number = seed >> 8;
    let items = || (0..number % 5).map(|n| seed.rotate_right(8).wrapping_add(n));
    match seed % 16 {
        0 => Meta::U8(number as u8),
        1 => Meta::I8(number as i8),
        2 => Meta::U16(number as u16),
        3 => Meta::I16(number as i16),
        4 => Meta::U32(number as u32),
        5 => Meta::I32(number as i32),
        6 => Meta::F32(f32::from_bits(number as u32)),
        7 => Meta::Bool(number.is_multiple_of(2)),
        8 => Meta::String(number.to_le_bytes().to_vec()),
        9 => Meta::U64(number),
        10 => Meta::I64(number as i64),
        11 => Meta::F64(f64::from_bits(number)),
        12 => Meta::strings(items().map(|n| n.to_string())),
        13 => Meta::i32s(items().map(|n| n as i32)),
        14 => Meta::Array(ValueType::U64, items().map(Meta::U64).collect()),
        _ => (0..number % 7).fold(Meta::bools([true]), |inner, _| {
            Meta::Array(ValueType::Array, vec![inner])
        }),
    }
}

/// A tensor made of random parts that mostly fit each other.
fn written_tensor(name: String, dims: [u8; 3], dtype: u8, oddity: u64) -> WrittenTensor {
    let dtype = DType::ALL[usize::from(dtype) % DType::ALL.len()];
    let row = u64::from(dims[0] % 3) * dtype.block_len() as u64;
    let mut dims = vec![row, u64::from(dims[1] % 4), u64::from(dims[2] % 3)];
    let data = vec![
        0;
        dtype
            .bytes_for(dims.iter().product::<u64>() as usize)
            .unwrap_or_default()
    ];
    let (mut ggml_type, mut offset) = (ggml_type_of(dtype).unwrap_or(u32::MAX), None);
    let nasty = NASTY[(oddity >> 8) as usize % NASTY.len()];
    match oddity % 32 {
        0 => dims[(oddity >> 16) as usize % 3] = nasty,
        1 => ggml_type = nasty as u32,
        2 => offset = Some(nasty),
        3 => offset = Some(oddity >> 8 & 0xe0),
        4 => dims.push(nasty),
        _ => {}
    }
    WrittenTensor {
        name,
        dims,
        ggml_type,
        data,
        offset,
    }
}

/// Parses, and on success touches everything that parsing promised.
fn exercise_gguf(file: Vec<u8>) -> bool {
    let bytes = Bytes::from(file);
    let Ok(parsed) = gguf::parse(&bytes, "fuzz.gguf") else {
        return false;
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
    true
}

fn exercise_value(value: Value<'_>) {
    assert!(value.describe().len() < 1000);
    if let Value::Array(array) = value {
        assert_eq!(array.iter().map(exercise_value).count(), array.len());
    }
}

/// Parses, and checks that what is accepted is what the reference implementation accepts, with the same contents.
fn exercise_safetensors(file: &[u8]) -> bool {
    let Ok(entries) = safetensors::parse(file) else {
        return false;
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
    true
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
    assert!(exercise_gguf(small_gguf().to_bytes()));
    assert!(exercise_safetensors(&small_safetensors()));
}

#[test]
fn fuzz_raw_gguf() {
    check!().with_test_time(TIME).for_each(|bytes: &[u8]| {
        exercise_gguf(bytes.to_vec());
        // A good beginning gets the bytes past the first checks.
        exercise_gguf([b"GGUF\x03\0\0\0\x02\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0", bytes].concat());
    });
}

#[test]
fn fuzz_mutated_gguf() {
    let (seed, tally) = (small_gguf().to_bytes(), Tally::default());
    check!()
        .with_test_time(TIME)
        .with_type::<Mutations>()
        .for_each(|mutations| {
            let mut file = seed.clone();
            mutate(&mut file, mutations);
            tally.count(exercise_gguf(file));
        });
    tally.assert_mixed();
}

#[test]
fn fuzz_written_gguf() {
    let tally = Tally::default();
    let parts = check!()
        .with_test_time(TIME)
        .with_type::<([u64; 3], [([u8; 3], u8, u64); 3])>();
    parts.for_each(|(keys, tensors)| {
        let mut writer = GgufWriter::new();
        for (at, &seed) in keys.iter().enumerate() {
            writer.key(&format!("key{at}"), meta(seed));
        }
        for (at, &(dims, dtype, oddity)) in tensors.iter().enumerate() {
            writer.raw_tensor(written_tensor(format!("tensor{at}"), dims, dtype, oddity));
        }
        tally.count(exercise_gguf(writer.to_bytes()));
    });
    tally.assert_mixed();
}

#[test]
fn fuzz_raw_safetensors() {
    check!().with_test_time(TIME).for_each(|bytes: &[u8]| {
        exercise_safetensors(bytes);
        exercise_safetensors(&[&(bytes.len() as u64).to_le_bytes(), bytes].concat());
    });
}

#[test]
fn fuzz_mutated_safetensors() {
    let (seed, tally) = (small_safetensors(), Tally::default());
    check!()
        .with_test_time(TIME)
        .with_type::<Mutations>()
        .for_each(|mutations| {
            let mut file = seed.clone();
            mutate(&mut file, mutations);
            // With the length put right again, the header itself is reached even when its size changed.
            let header_end = file.windows(2).rposition(|pair| pair == b"}}").map(|at| at + 2);
            if let Some(length) = header_end.and_then(|end| end.checked_sub(8)) {
                exercise_safetensors(&file);
                file[..8].copy_from_slice(&(length as u64).to_le_bytes());
            }
            tally.count(exercise_safetensors(&file));
        });
    tally.assert_mixed();
}
