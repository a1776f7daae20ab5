//! Metadata values, decoded on demand from the bytes of the file.

use super::reader::Reader;
use super::{GgufError, MAX_ARRAY_DEPTH};

/// The type of a metadata value, by its number in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants are the names of the types")]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// Bytes of a value of fixed size; `None` for strings and arrays.
    const fn fixed_bytes(self) -> Option<u64> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }

    /// Fewest bytes a value can take: a string has its length, an array its item type and length.
    const fn least_bytes(self) -> u64 {
        match self {
            Self::String => 8,
            Self::Array => 4 + 8,
            other => match other.fixed_bytes() {
                Some(bytes) => bytes,
                None => 1,
            },
        }
    }

    /// The type's name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }
}

/// One metadata value. Strings are bytes, since files exist whose vocabulary is not UTF-8.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "the variants are the names of the types")]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(&'a [u8]),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    /// The value if it is an integer of any width.
    pub fn as_integer(self) -> Option<i128> {
        Some(match self {
            Self::U8(n) => n.into(),
            Self::I8(n) => n.into(),
            Self::U16(n) => n.into(),
            Self::I16(n) => n.into(),
            Self::U32(n) => n.into(),
            Self::I32(n) => n.into(),
            Self::U64(n) => n.into(),
            Self::I64(n) => n.into(),
            _ => return None,
        })
    }

    /// The value if it is an integer in the range of `u64`.
    pub fn as_u64(self) -> Option<u64> {
        self.as_integer().and_then(|n| n.try_into().ok())
    }

    /// The value for a message: its type, and what it is where that is short.
    pub fn describe(self) -> String {
        match self {
            Self::F32(x) => format!("f32 {x}"),
            Self::F64(x) => format!("f64 {x}"),
            Self::Bool(b) => format!("bool {b}"),
            Self::String(bytes) => {
                let text = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]);
                format!("string {text:?}{}", if bytes.len() > 60 { "..." } else { "" })
            }
            Self::Array(array) => format!("array of {} {}", array.len, array.item.name()),
            integer => format!(
                "{} {}",
                integer.kind().name(),
                integer.as_integer().unwrap_or_default()
            ),
        }
    }

    /// The value's type.
    pub const fn kind(self) -> ValueType {
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
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// Decodes the value of type `kind` at the front of `data`, and gives what follows it.
    fn decode(kind: ValueType, data: &'a [u8]) -> Option<(Self, &'a [u8])> {
        fn fixed<const N: usize, T>(data: &[u8], make: impl FnOnce([u8; N]) -> T) -> Option<(T, &[u8])> {
            data.split_first_chunk().map(|(bytes, rest)| (make(*bytes), rest))
        }
        match kind {
            ValueType::U8 => fixed(data, |b| Self::U8(u8::from_le_bytes(b))),
            ValueType::I8 => fixed(data, |b| Self::I8(i8::from_le_bytes(b))),
            ValueType::U16 => fixed(data, |b| Self::U16(u16::from_le_bytes(b))),
            ValueType::I16 => fixed(data, |b| Self::I16(i16::from_le_bytes(b))),
            ValueType::U32 => fixed(data, |b| Self::U32(u32::from_le_bytes(b))),
            ValueType::I32 => fixed(data, |b| Self::I32(i32::from_le_bytes(b))),
            ValueType::F32 => fixed(data, |b| Self::F32(f32::from_le_bytes(b))),
            ValueType::U64 => fixed(data, |b| Self::U64(u64::from_le_bytes(b))),
            ValueType::I64 => fixed(data, |b| Self::I64(i64::from_le_bytes(b))),
            ValueType::F64 => fixed(data, |b| Self::F64(f64::from_le_bytes(b))),
            ValueType::Bool => fixed(data, |[b]| Self::Bool(b != 0)),
            ValueType::String => {
                let mut reader = Reader::new(data);
                let text = reader.string(String::new).ok()?;
                Some((Self::String(text), &data[reader.position()..]))
            }
            ValueType::Array => {
                let mut reader = Reader::new(data);
                let item = ValueType::from_number(reader.u32(String::new).ok()?)?;
                let len = usize::try_from(reader.u64(String::new).ok()?).ok()?;
                let start = reader.position();
                skip_items(&mut reader, "", item, len, 0).ok()?;
                let array = Array {
                    item,
                    len,
                    data: &data[start..reader.position()],
                };
                Some((Self::Array(array), &data[reader.position()..]))
            }
        }
    }

    /// Decodes a value whose bytes [`skip_value`] has walked over.
    pub(super) fn decode_checked(kind: ValueType, data: &'a [u8]) -> Option<Self> {
        Self::decode(kind, data).map(|(value, _)| value)
    }
}

/// An array of metadata values of one type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array<'a> {
    item: ValueType,
    len: usize,
    data: &'a [u8],
}

impl<'a> Array<'a> {
    /// The type of the items.
    pub const fn item_type(self) -> ValueType {
        self.item
    }

    /// How many items there are.
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The items in order.
    pub fn iter(self) -> impl Iterator<Item = Value<'a>> {
        let mut rest = self.data;
        (0..self.len).map_while(move |_| {
            let (value, after) = Value::decode(self.item, rest)?;
            rest = after;
            Some(value)
        })
    }
}

/// Reads a value's type number.
pub(super) fn read_type(reader: &mut Reader<'_>, key: &str) -> Result<ValueType, GgufError> {
    let found = reader.u32(|| format!("the type of metadata key {key}"))?;
    ValueType::from_number(found).ok_or_else(|| GgufError::BadValueType {
        key: key.to_owned(),
        found,
    })
}

/// Walks over a value, checking that it lies in the file.
pub(super) fn skip_value(
    reader: &mut Reader<'_>,
    key: &str,
    kind: ValueType,
    depth: usize,
) -> Result<(), GgufError> {
    let what = || format!("the value of metadata key {key}");
    match kind {
        ValueType::String => reader.string(what).map(drop),
        ValueType::Array => {
            if depth == MAX_ARRAY_DEPTH {
                return Err(GgufError::ArrayTooDeep { key: key.to_owned() });
            }
            let item = read_type(reader, key)?;
            let count = reader.u64(what)?;
            let len = reader.check_count(count, item.least_bytes(), || {
                format!("the array length of metadata key {key}")
            })?;
            skip_items(reader, key, item, len, depth + 1)
        }
        fixed => {
            let bytes = reader.take(fixed.least_bytes(), what)?;
            check_bools(key, fixed, bytes)
        }
    }
}

fn skip_items(
    reader: &mut Reader<'_>,
    key: &str,
    item: ValueType,
    len: usize,
    depth: usize,
) -> Result<(), GgufError> {
    if let Some(each) = item.fixed_bytes() {
        let what = || format!("the array of metadata key {key}");
        let bytes = reader.take((len as u64).saturating_mul(each), what)?;
        return check_bools(key, item, bytes);
    }
    (0..len).try_for_each(|_| skip_value(reader, key, item, depth))
}

fn check_bools(key: &str, kind: ValueType, bytes: &[u8]) -> Result<(), GgufError> {
    match bytes.iter().find(|&&byte| kind == ValueType::Bool && byte > 1) {
        Some(&found) => Err(GgufError::BadBool {
            key: key.to_owned(),
            found,
        }),
        None => Ok(()),
    }
}
