//! The header of one safetensors file.
//!
//! The `safetensors` crate defines the entries ([`TensorInfo`]) and element
//! types. Its own reader checks that the entries tile the file, but its errors mostly do not say which tensor is at
//! fault, and it keeps the last of two entries of one name. So the header is decoded here into the crate's types
//! and checked with the names at hand: what is accepted here is a subset of what the crate accepts, which a fuzz
//! test holds on to.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;

use ::safetensors::tensor::{Dtype, TensorInfo};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

/// Most bytes of header accepted, the limit of the format.
pub const MAX_HEADER: u64 = 100_000_000;

const LENGTH_BYTES: usize = 8;

/// What is wrong with a safetensors file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SafetensorsError {
    /// Too short for the length of the header.
    #[error("truncated: {0} bytes, too short for a safetensors header")]
    TooShort(usize),
    /// A header longer than the format allows.
    #[error("the header length is {length} bytes, but at most {MAX_HEADER} are accepted")]
    HeaderTooLarge {
        /// The length in the file.
        length: u64,
    },
    /// A header longer than the file.
    #[error(
        "truncated or not safetensors: the header length is {length} bytes, but only {left} bytes follow it"
    )]
    HeaderBeyondFile {
        /// The length in the file.
        length: u64,
        /// Bytes in the file after the length.
        left: usize,
    },
    /// A header that is not UTF-8.
    #[error("malformed header: not valid UTF-8 from byte {0}")]
    NotUtf8(usize),
    /// A header that does not decode.
    #[error("malformed header: {0}")]
    Header(serde_json::Error),
    /// A shape whose number of bytes overflows.
    #[error("tensor {tensor}: the size of shape {shape:?} overflows")]
    Overflow {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// A shape that does not match the tensor's byte range.
    #[error(
        "tensor {tensor}: shape {shape:?} of {dtype} takes {expected} bits, but its range {start}..{end} has {bytes} bytes"
    )]
    ShapeMismatch {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
        /// Its element type.
        dtype: String,
        /// The bits that shape and type need.
        expected: usize,
        /// The bytes of the range.
        bytes: usize,
        /// The range's start in the data section.
        start: usize,
        /// The range's end.
        end: usize,
    },
    /// A byte range that ends before it starts.
    #[error("tensor {tensor}: its range {start}..{end} ends before it starts")]
    ReversedRange {
        /// The tensor.
        tensor: String,
        /// The range's start in the data section.
        start: usize,
        /// The range's end.
        end: usize,
    },
    /// A byte range beyond the end of the file.
    #[error(
        "tensor {tensor}: its range {start}..{end} is beyond the {available} bytes of data in the file (truncated?)"
    )]
    OutOfRange {
        /// The tensor.
        tensor: String,
        /// The range's start in the data section.
        start: usize,
        /// The range's end.
        end: usize,
        /// Bytes of data in the file.
        available: usize,
    },
    /// Two tensors that share bytes, or bytes between two tensors that belong to none.
    #[error("tensor {tensor}: its range starts at {start}, but {previous} ends at {expected} ({})", if start < expected { "they overlap" } else { "there is a hole" })]
    NotAdjacent {
        /// The tensor.
        tensor: String,
        /// Where it starts in the data section.
        start: usize,
        /// What comes before it.
        previous: String,
        /// Where that ends.
        expected: usize,
    },
    /// Bytes after the last tensor.
    #[error("{extra} bytes follow the last tensor")]
    TrailingBytes {
        /// How many.
        extra: usize,
    },
}

/// One tensor of a file.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: Dtype,
    /// Its shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Where its data lies in the file.
    pub range: Range<usize>,
}

/// Reads and checks the header of the file with contents `file`; gives the tensors in the order of their data.
pub fn parse(file: &[u8]) -> Result<Vec<Entry>, SafetensorsError> {
    let (length, rest) = file
        .split_first_chunk::<LENGTH_BYTES>()
        .ok_or(SafetensorsError::TooShort(file.len()))?;
    let length = u64::from_le_bytes(*length);
    if length > rest.len() as u64 {
        return Err(SafetensorsError::HeaderBeyondFile {
            length,
            left: rest.len(),
        });
    }
    if length > MAX_HEADER {
        return Err(SafetensorsError::HeaderTooLarge { length });
    }
    let (header, data) = rest.split_at(length as usize);
    // Checked as a whole, because the JSON parser looks at neither names nor strings that it skips.
    let header = str::from_utf8(header).map_err(|cause| SafetensorsError::NotUtf8(cause.valid_up_to()))?;
    let Header(mut infos) = serde_json::from_str(header).map_err(SafetensorsError::Header)?;
    infos.sort_by_key(|(_, info)| info.data_offsets);
    check_layout(&infos, data.len())?;
    let data_start = LENGTH_BYTES + header.len();
    let entries = infos.into_iter().map(
        |(
            name,
            TensorInfo {
                dtype,
                shape,
                data_offsets: (start, end),
            },
        )| {
            Entry {
                name,
                dtype,
                shape,
                range: data_start + start..data_start + end,
            }
        },
    );
    Ok(entries.collect())
}

/// Checks that the tensors, in order of offset, tile the data section and have the size of their shape.
fn check_layout(infos: &[(String, TensorInfo)], available: usize) -> Result<(), SafetensorsError> {
    let (mut previous, mut expected) = ("the header", 0);
    for (name, info) in infos {
        let (start, end) = info.data_offsets;
        let tensor = || name.clone();
        if end < start {
            return Err(SafetensorsError::ReversedRange {
                tensor: tensor(),
                start,
                end,
            });
        }
        if end > available {
            return Err(SafetensorsError::OutOfRange {
                tensor: tensor(),
                start,
                end,
                available,
            });
        }
        if start != expected {
            let previous = previous.to_owned();
            return Err(SafetensorsError::NotAdjacent {
                tensor: tensor(),
                start,
                previous,
                expected,
            });
        }
        let overflow = || SafetensorsError::Overflow {
            tensor: tensor(),
            shape: info.shape.clone(),
        };
        let elements = info
            .shape
            .iter()
            .try_fold(1usize, |n, &dim| n.checked_mul(dim))
            .ok_or_else(overflow)?;
        let bits = elements.checked_mul(info.dtype.bitsize()).ok_or_else(overflow)?;
        if !bits.is_multiple_of(8) || bits / 8 != end - start {
            return Err(SafetensorsError::ShapeMismatch {
                tensor: tensor(),
                shape: info.shape.clone(),
                dtype: info.dtype.to_string(),
                expected: bits,
                bytes: end - start,
                start,
                end,
            });
        }
        (previous, expected) = (name, end);
    }
    match available - expected {
        0 => Ok(()),
        extra => Err(SafetensorsError::TrailingBytes { extra }),
    }
}

/// The entries of a header, in the order of the file and with each name once.
struct Header(Vec<(String, TensorInfo)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with an entry for each tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut infos = Vec::new();
        let mut seen = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if !seen.insert(name.clone()) {
                return Err(A::Error::custom(format_args!("two entries named {name}")));
            }
            let named = |cause| A::Error::custom(format_args!("entry {name}: {cause}"));
            if name == "__metadata__" {
                map.next_value::<Option<HashMap<String, String>>>()
                    .map_err(named)?;
            } else {
                let info = map.next_value::<TensorInfo>().map_err(named)?;
                infos.push((name, info));
            }
        }
        Ok(Header(infos))
    }
}
