//! GGUF files, versions 2 and 3.
//!
//! The parser is written here because no well-kept crate reads GGUF from a mapped file without either trusting the
//! lengths in it or copying every string. This one walks the header once with a bounds-checked reader, keeps
//! for each metadata value only where it lies, and decodes values when they are asked for: a vocabulary of 150,000
//! strings costs one pass over their lengths at open. What it allocates is proportional to the bytes it has
//! actually seen: a count in the file never sizes a buffer before the bytes for that many items are known to exist.

mod metadata;
mod part;
mod reader;
mod tensors;
mod types;
mod value;

use std::ops::Range;

use paceline_types::DType;

use crate::bytes::Bytes;
use crate::error::WeightsError;

pub use metadata::{FromValue, GgufMetadata};
pub use part::Part;
pub(crate) use part::check_part;
pub use types::{dtype_of, file_type_name, ggml_type_name, ggml_type_of};
pub use value::{Array, Value, ValueType};

use reader::Reader;

/// The first four bytes of every GGUF file.
pub const MAGIC: [u8; 4] = *b"GGUF";
/// Alignment of tensor data where the file does not state one.
pub const DEFAULT_ALIGNMENT: u64 = 32;
/// Arrays may lie in arrays to this depth; files in use have depth 1.
pub const MAX_ARRAY_DEPTH: usize = 4;
/// Most dimensions a tensor may have.
pub const MAX_DIMS: u32 = 4;

/// Entries reserved for at once; beyond it tables grow with the bytes read, whatever the count in the file says.
const MAX_RESERVE: usize = 1 << 12;

/// What is wrong with a GGUF file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The file does not start with the magic.
    #[error("not a GGUF file: it starts with {found:02x?} and not with \"GGUF\"")]
    BadMagic {
        /// The first bytes, at most four.
        found: Vec<u8>,
    },
    /// A version this parser does not know.
    #[error("GGUF version {0} is not supported, only 2 and 3")]
    BadVersion(u32),
    /// A file in the other byte order.
    #[error("big-endian GGUF files are not supported")]
    BigEndian,
    /// The file ends inside something.
    #[error("truncated: {what} at byte {at} takes {needed} bytes, but {left} are left")]
    Truncated {
        /// What was being read, naming the key or tensor.
        what: String,
        /// Where it starts.
        at: usize,
        /// The bytes it takes.
        needed: u64,
        /// The bytes left in the file.
        left: usize,
    },
    /// A count that cannot be right for the bytes left.
    #[error("{what} is {count}, but the {left} bytes left in the file hold at most {most}")]
    AbsurdCount {
        /// What is counted, naming the key if there is one.
        what: String,
        /// The count in the file.
        count: u64,
        /// The bytes left.
        left: usize,
        /// How many of the smallest such items fit.
        most: u64,
    },
    /// A name or key that is not UTF-8.
    #[error("{what} at byte {at} is not valid UTF-8")]
    NotUtf8 {
        /// What was being read.
        what: String,
        /// Where it starts.
        at: usize,
    },
    /// A metadata type number that stands for nothing.
    #[error("metadata key {key}: unknown value type {found}")]
    BadValueType {
        /// The key.
        key: String,
        /// The number in the file.
        found: u32,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("metadata key {key}: a bool is stored as {found}, neither 0 nor 1")]
    BadBool {
        /// The key.
        key: String,
        /// The byte in the file.
        found: u8,
    },
    /// Arrays nested too deep.
    #[error("metadata key {key}: arrays are nested deeper than {MAX_ARRAY_DEPTH}")]
    ArrayTooDeep {
        /// The key.
        key: String,
    },
    /// The same key twice.
    #[error("metadata key {key} appears twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// An alignment that is not a power of two.
    #[error("general.alignment is {0}, which is not a power of two")]
    BadAlignment(u64),
    /// The same tensor twice.
    #[error("tensor {tensor} appears twice")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
    },
    /// More dimensions than the format has.
    #[error("tensor {tensor} has {found} dimensions, more than {MAX_DIMS}")]
    TooManyDims {
        /// The tensor.
        tensor: String,
        /// The number in the file.
        found: u32,
    },
    /// Dimensions whose product overflows.
    #[error("tensor {tensor}: the size of dimensions {dims:?} overflows")]
    DimsOverflow {
        /// The tensor.
        tensor: String,
        /// The dimensions as stored, innermost first.
        dims: Vec<u64>,
    },
    /// Rows that do not fill whole quantisation blocks.
    #[error("tensor {tensor}: matrix rows of {row_length} elements do not fill {dtype} blocks of {}", dtype.block_len())]
    PartialBlock {
        /// The tensor.
        tensor: String,
        /// Elements of a matrix row.
        row_length: u64,
        /// Its element type.
        dtype: DType,
    },
    /// An element type the engine does not compute with.
    #[error("tensor {tensor} has the unsupported type {}", types::describe(*ggml_type))]
    UnsupportedType {
        /// The tensor.
        tensor: String,
        /// The type's number in the file.
        ggml_type: u32,
    },
    /// A tensor whose data does not start at a multiple of the alignment.
    #[error("tensor {tensor}: its offset {offset} is not a multiple of the alignment {alignment}")]
    Misaligned {
        /// The tensor.
        tensor: String,
        /// Its offset in the data section.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// A tensor whose data reaches beyond the file.
    #[error(
        "tensor {tensor}: its {bytes} bytes at offset {offset} reach beyond the {available} bytes of data in the file (truncated?)"
    )]
    OutOfRange {
        /// The tensor.
        tensor: String,
        /// Its offset in the data section.
        offset: u64,
        /// Its size.
        bytes: usize,
        /// Bytes of data in the file.
        available: u64,
    },
    /// Two tensors that share bytes.
    #[error("tensor {second} at offset {offset} overlaps tensor {first}, which ends at {end}")]
    Overlap {
        /// The tensor that starts first.
        first: String,
        /// Where it ends in the data section.
        end: usize,
        /// The other tensor.
        second: String,
        /// Where that starts.
        offset: usize,
    },
    /// One part of a model split over several files, whose name does not tell those of the others.
    #[error(
        "this is one of {parts} parts of a model; its name must be as the others', such as name-00001-of-{parts:05}.gguf"
    )]
    Split {
        /// How many parts there are.
        parts: u64,
    },
    /// A file whose name says that it is another part than it says itself.
    #[error("by its name this is part {number} of {count}, but by its metadata {found}")]
    WrongPart {
        /// The part's number by its name, from 1 on.
        number: u32,
        /// The number of parts by its name.
        count: u32,
        /// What the file says.
        found: String,
    },
    /// Parts that do not have the tensors of the whole.
    #[error("the {parts} parts of the model have {found} tensors together, but they should have {expected}")]
    MissingTensors {
        /// How many parts there are.
        parts: u32,
        /// The tensors there are.
        found: u64,
        /// The tensors that the first part tells of.
        expected: u64,
    },
}

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// Its shape, outermost dimension first (the reverse of the order in the file).
    pub shape: Vec<usize>,
    /// Where its data lies in the file.
    pub range: Range<usize>,
}

/// A parsed GGUF file.
#[derive(Debug)]
pub struct GgufFile {
    /// The metadata.
    pub metadata: GgufMetadata,
    /// The tensors, in the order of the file.
    pub tensors: Vec<Entry>,
}

/// Parses the header of the file with contents `bytes`, called `file` in messages.
pub fn parse(bytes: &Bytes, file: &str) -> Result<GgufFile, WeightsError> {
    parse_file(bytes, file).map_err(|cause| refusal(file, cause))
}

/// The error of a file.
pub(crate) fn refusal(file: &str, cause: GgufError) -> WeightsError {
    WeightsError::Gguf {
        file: file.to_owned(),
        cause: cause.into(),
    }
}

fn parse_file(bytes: &Bytes, file: &str) -> Result<GgufFile, GgufError> {
    let mut reader = Reader::new(bytes);
    let magic = reader.take(4, || "the magic".to_owned()).ok();
    if magic != Some(&MAGIC[..]) {
        return Err(GgufError::BadMagic {
            found: bytes[..bytes.len().min(4)].to_vec(),
        });
    }
    let version = reader.u32(|| "the version".to_owned())?;
    match version {
        2 | 3 => {}
        _ if matches!(version.swap_bytes(), 2 | 3) => return Err(GgufError::BigEndian),
        _ => return Err(GgufError::BadVersion(version)),
    }
    let n_tensors = reader.u64(|| "the number of tensors".to_owned())?;
    let n_keys = reader.u64(|| "the number of metadata keys".to_owned())?;
    let entries = metadata::read_entries(&mut reader, n_keys)?;
    let metadata = GgufMetadata::new(bytes.clone(), file.to_owned(), version, entries)?;
    let alignment = match metadata.value("general.alignment").and_then(Value::as_u64) {
        Some(stated) if !stated.is_power_of_two() => return Err(GgufError::BadAlignment(stated)),
        stated => stated.unwrap_or(DEFAULT_ALIGNMENT),
    };
    let infos = tensors::read_infos(&mut reader, n_tensors)?;
    let tensors = tensors::place(infos, reader.position(), alignment, bytes.len())?;
    Ok(GgufFile { metadata, tensors })
}
