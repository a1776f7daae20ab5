//! The metadata of a GGUF file and typed access to it.

use std::collections::HashMap;
use std::ops::Range;

use super::reader::Reader;
use super::value::{read_type, skip_value};
use super::{GgufError, MAX_RESERVE, Value, ValueType};
use crate::bytes::Bytes;
use crate::error::WeightsError;

/// Fewest bytes an entry can take: key length, value type and a one-byte value.
const LEAST_ENTRY: u64 = 8 + 4 + 1;

/// Where one entry lies in the file; its bytes have been walked over and are known to decode.
pub(super) struct Entry {
    key: String,
    kind: ValueType,
    range: Range<usize>,
}

pub(super) fn read_entries(reader: &mut Reader<'_>, count: u64) -> Result<Vec<Entry>, GgufError> {
    let count = reader.check_count(count, LEAST_ENTRY, || "the number of metadata keys".to_owned())?;
    let mut entries = Vec::with_capacity(count.min(MAX_RESERVE));
    for index in 0..count {
        let key = reader.text(|| format!("metadata key {index}"))?;
        let kind = read_type(reader, key)?;
        let start = reader.position();
        skip_value(reader, key, kind, 0)?;
        entries.push(Entry {
            key: key.to_owned(),
            kind,
            range: start..reader.position(),
        });
    }
    Ok(entries)
}

/// The key-value metadata of a GGUF file. Values stay in the file and are decoded when asked for.
///
/// The `get_*` methods give `None` for a missing key and an error naming the key and what was found when the value
/// has another type; integers of any width are accepted where the value is in range. [`require`](Self::require)
/// makes a missing key an error too.
pub struct GgufMetadata {
    bytes: Bytes,
    file: String,
    version: u32,
    entries: Vec<Entry>,
    index: HashMap<String, usize>,
}

impl GgufMetadata {
    pub(super) fn new(
        bytes: Bytes,
        file: String,
        version: u32,
        entries: Vec<Entry>,
    ) -> Result<Self, GgufError> {
        let mut index = HashMap::with_capacity(entries.len());
        for (at, entry) in entries.iter().enumerate() {
            if index.insert(entry.key.clone(), at).is_some() {
                return Err(GgufError::DuplicateKey {
                    key: entry.key.clone(),
                });
            }
        }
        Ok(Self {
            bytes,
            file,
            version,
            entries,
            index,
        })
    }

    /// The version of the format the file is written in.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The keys, in the order of the file.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.key.as_str())
    }

    /// Whether there is a value for `key`, of whatever type.
    pub fn contains(&self, key: &str) -> bool {
        self.index.contains_key(key)
    }

    /// The value for `key` as it is stored.
    pub fn value(&self, key: &str) -> Option<Value<'_>> {
        let entry = &self.entries[*self.index.get(key)?];
        Value::decode_checked(entry.kind, &self.bytes[entry.range.clone()])
    }

    /// The value for `key` as a `T`, or `None` when there is none.
    pub fn get<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, WeightsError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        T::from_value(value)
            .map(Some)
            .map_err(|found| WeightsError::KeyType {
                file: self.file.clone(),
                key: key.to_owned(),
                expected: T::EXPECTED,
                found,
            })
    }

    /// The value for `key` as a `T`; a missing key is an error.
    pub fn require<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, WeightsError> {
        let missing = || WeightsError::MissingKey {
            file: self.file.clone(),
            key: key.to_owned(),
        };
        self.get(key)?.ok_or_else(missing)
    }

    /// An integer in the range of `u32`.
    pub fn get_u32(&self, key: &str) -> Result<Option<u32>, WeightsError> {
        self.get(key)
    }

    /// An integer in the range of `u64`.
    pub fn get_u64(&self, key: &str) -> Result<Option<u64>, WeightsError> {
        self.get(key)
    }

    /// An `f32`, or an `f64` rounded to one.
    pub fn get_f32(&self, key: &str) -> Result<Option<f32>, WeightsError> {
        self.get(key)
    }

    /// A boolean.
    pub fn get_bool(&self, key: &str) -> Result<Option<bool>, WeightsError> {
        self.get(key)
    }

    /// A string.
    pub fn get_str(&self, key: &str) -> Result<Option<&str>, WeightsError> {
        self.get(key)
    }

    /// An array of strings, borrowed from the file.
    pub fn get_array_str(&self, key: &str) -> Result<Option<Vec<&str>>, WeightsError> {
        self.get(key)
    }

    /// An array of integers in the range of `i32`.
    pub fn get_array_i32(&self, key: &str) -> Result<Option<Vec<i32>>, WeightsError> {
        self.get(key)
    }

    /// An array of integers in the range of `u32`.
    pub fn get_array_u32(&self, key: &str) -> Result<Option<Vec<u32>>, WeightsError> {
        self.get(key)
    }

    /// An array of `f32` or `f64`.
    pub fn get_array_f32(&self, key: &str) -> Result<Option<Vec<f32>>, WeightsError> {
        self.get(key)
    }

    /// An array of booleans.
    pub fn get_array_bool(&self, key: &str) -> Result<Option<Vec<bool>>, WeightsError> {
        self.get(key)
    }
}

impl std::fmt::Debug for GgufMetadata {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let described = self
            .keys()
            .map(|key| (key, self.value(key).map(Value::describe).unwrap_or_default()));
        f.debug_map().entries(described).finish()
    }
}

/// A Rust type that metadata values convert to.
pub trait FromValue<'a>: Sized {
    /// What the type is called in messages.
    const EXPECTED: &'static str;

    /// Converts `value`, or describes what was found instead.
    fn from_value(value: Value<'a>) -> Result<Self, String>;
}

macro_rules! from_integer {
    ($($type:ty, $expected:literal, $array:literal;)*) => {$(
        impl FromValue<'_> for $type {
            const EXPECTED: &'static str = $expected;

            fn from_value(value: Value<'_>) -> Result<Self, String> {
                value.as_integer().and_then(|n| n.try_into().ok()).ok_or_else(|| value.describe())
            }
        }

        impl FromValue<'_> for Vec<$type> {
            const EXPECTED: &'static str = $array;

            fn from_value(value: Value<'_>) -> Result<Self, String> {
                items(value)
            }
        }
    )*};
}

from_integer! {
    u32, "an integer in the range of u32", "an array of integers in the range of u32";
    i32, "an integer in the range of i32", "an array of integers in the range of i32";
    u64, "an integer in the range of u64", "an array of integers in the range of u64";
}

impl FromValue<'_> for f32 {
    const EXPECTED: &'static str = "a float";

    fn from_value(value: Value<'_>) -> Result<Self, String> {
        match value {
            Value::F32(x) => Ok(x),
            Value::F64(x) => Ok(x as f32),
            other => Err(other.describe()),
        }
    }
}

impl FromValue<'_> for bool {
    const EXPECTED: &'static str = "a bool";

    fn from_value(value: Value<'_>) -> Result<Self, String> {
        match value {
            Value::Bool(b) => Ok(b),
            other => Err(other.describe()),
        }
    }
}

impl<'a> FromValue<'a> for &'a str {
    const EXPECTED: &'static str = "a UTF-8 string";

    fn from_value(value: Value<'a>) -> Result<Self, String> {
        match value {
            Value::String(bytes) => std::str::from_utf8(bytes).map_err(|_| value.describe()),
            other => Err(other.describe()),
        }
    }
}

impl FromValue<'_> for Vec<f32> {
    const EXPECTED: &'static str = "an array of floats";

    fn from_value(value: Value<'_>) -> Result<Self, String> {
        items(value)
    }
}

impl FromValue<'_> for Vec<bool> {
    const EXPECTED: &'static str = "an array of bools";

    fn from_value(value: Value<'_>) -> Result<Self, String> {
        items(value)
    }
}

impl<'a> FromValue<'a> for Vec<&'a str> {
    const EXPECTED: &'static str = "an array of UTF-8 strings";

    fn from_value(value: Value<'a>) -> Result<Self, String> {
        items(value)
    }
}

fn items<'a, T: FromValue<'a>>(value: Value<'a>) -> Result<Vec<T>, String> {
    let Value::Array(array) = value else {
        return Err(value.describe());
    };
    let mut out = Vec::with_capacity(array.len());
    for (at, item) in array.iter().enumerate() {
        let item = T::from_value(item)
            .map_err(|found| format!("{} whose item {at} is {found}", value.describe()))?;
        out.push(item);
    }
    Ok(out)
}
