//! The tensor table of a GGUF file, and where the tensors' data lies.

use std::collections::HashSet;

use paceline_types::DType;

use super::{Entry, GgufError, MAX_DIMS, MAX_RESERVE, dtype_of, reader::Reader};

/// Fewest bytes an entry of the table can take: name length, dimension count, type and offset.
const LEAST_INFO: u64 = 8 + 4 + 4 + 8;

/// One entry of the table, its size worked out but its place not yet checked.
pub(super) struct Info {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    bytes: usize,
    offset: u64,
}

pub(super) fn read_infos(reader: &mut Reader<'_>, count: u64) -> Result<Vec<Info>, GgufError> {
    let count = reader.check_count(count, LEAST_INFO, || "the number of tensors".to_owned())?;
    let mut infos = Vec::with_capacity(count.min(MAX_RESERVE));
    let mut names = HashSet::new();
    for index in 0..count {
        let name = reader.text(|| format!("the name of tensor {index}"))?;
        if !names.insert(name) {
            return Err(GgufError::DuplicateTensor {
                tensor: name.to_owned(),
            });
        }
        infos.push(read_info(reader, name)?);
    }
    Ok(infos)
}

fn read_info(reader: &mut Reader<'_>, name: &str) -> Result<Info, GgufError> {
    let what = || format!("the description of tensor {name}");
    let n_dims = reader.u32(what)?;
    if n_dims > MAX_DIMS {
        return Err(GgufError::TooManyDims {
            tensor: name.to_owned(),
            found: n_dims,
        });
    }
    let dims = (0..n_dims)
        .map(|_| reader.u64(what))
        .collect::<Result<Vec<_>, _>>()?;
    let ggml_type = reader.u32(what)?;
    let offset = reader.u64(what)?;
    let dtype = dtype_of(ggml_type).ok_or_else(|| GgufError::UnsupportedType {
        tensor: name.to_owned(),
        ggml_type,
    })?;
    let row_length = dims.first().copied().unwrap_or(1);
    if !row_length.is_multiple_of(dtype.block_len() as u64) {
        return Err(GgufError::PartialBlock {
            tensor: name.to_owned(),
            row_length,
            dtype,
        });
    }
    let overflow = || GgufError::DimsOverflow {
        tensor: name.to_owned(),
        dims: dims.clone(),
    };
    let shape = dims
        .iter()
        .rev()
        .map(|&dim| usize::try_from(dim))
        .collect::<Result<Vec<_>, _>>();
    let shape = shape.map_err(|_| overflow())?;
    let elements = shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
    let bytes = elements.and_then(|n| dtype.bytes_for(n)).ok_or_else(overflow)?;
    Ok(Info {
        name: name.to_owned(),
        dtype,
        shape,
        bytes,
        offset,
    })
}

/// Gives each tensor its byte range in the file, whose table ends at `table_end` and which has `file_len` bytes.
pub(super) fn place(
    infos: Vec<Info>,
    table_end: usize,
    alignment: u64,
    file_len: usize,
) -> Result<Vec<Entry>, GgufError> {
    // A file without tensors may end with the table; one with tensors has its data from the next multiple on.
    let data_start = (table_end as u64)
        .checked_next_multiple_of(alignment)
        .unwrap_or(u64::MAX);
    let available = (file_len as u64).saturating_sub(data_start);
    let mut entries = Vec::with_capacity(infos.len());
    for Info {
        name,
        dtype,
        shape,
        bytes,
        offset,
    } in infos
    {
        if !offset.is_multiple_of(alignment) {
            return Err(GgufError::Misaligned {
                tensor: name,
                offset,
                alignment,
            });
        }
        let end = offset.checked_add(bytes as u64);
        if data_start > file_len as u64 || end.is_none_or(|end| end > available) {
            return Err(GgufError::OutOfRange {
                tensor: name,
                offset,
                bytes,
                available,
            });
        }
        let start = (data_start + offset) as usize;
        entries.push(Entry {
            name,
            dtype,
            shape,
            range: start..start + bytes,
        });
    }
    check_overlap(&entries, data_start as usize)?;
    Ok(entries)
}

fn check_overlap(entries: &[Entry], data_start: usize) -> Result<(), GgufError> {
    let mut by_place: Vec<&Entry> = entries.iter().filter(|entry| !entry.range.is_empty()).collect();
    by_place.sort_by_key(|entry| entry.range.start);
    for pair in by_place.windows(2) {
        if let [first, second] = pair
            && second.range.start < first.range.end
        {
            return Err(GgufError::Overlap {
                first: first.name.clone(),
                end: first.range.end - data_start,
                second: second.name.clone(),
                offset: second.range.start - data_start,
            });
        }
    }
    Ok(())
}
