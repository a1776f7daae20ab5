//! Packed weights in a file, so that a later start maps them instead of packing them, and processes share them. Panels
//! are read once before they are used and compared with their checksums: a model with a wrong bit would only talk worse.
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | `PACELPAK` |
//! | 8..16 | [`LAYOUT`] |
//! | 16..24 | bytes of the file |
//! | 24..32 | where the index starts |
//! | 32..64 | the key: a digest of what the weights were made of |
//! | from 64 | panels, from multiples of 64 on |
//! | the index, to the end | per weight: a digest of what it was asked for by, where its panels start, their bytes, their CRC-32 |
//!
//! Numbers are little-endian. The file is written under another name and renamed when it is whole.

use crate::weight::CpuWeight;
use paceline_device::{DeviceError, HostMap, RowOrder, WeightPart};
use paceline_types::DType;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Number of the layouts of panels and of the file. A change of any of them is another number: files of the old one are packed anew.
const LAYOUT: u64 = 3;

const MAGIC: &[u8; 8] = b"PACELPAK";
const HEADER: usize = 64;
const ENTRY: usize = 56;

/// What packed weights were made of: files, types and whatever else their caller counts.
pub type PackedKey = [u8; 32];

/// A file of packed weights, mapped.
#[derive(Debug)]
pub struct PackedWeights {
    path: PathBuf,
    map: Arc<HostMap>,
    index: HashMap<[u8; 32], Range<usize>>,
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

impl PackedWeights {
    /// Maps a file. One that is cut off, damaged, of another layout or made of something else is an error.
    pub fn open(path: &Path, key: &PackedKey) -> io::Result<Self> {
        let map = HostMap::open(path)?;
        if map.len() < HEADER || map[..8] != *MAGIC {
            return Err(refused("it is no file of packed weights"));
        }
        if number(&map, 8) != Some(LAYOUT) {
            return Err(refused("another version of Paceline has written it"));
        }
        if map[32..64] != *key {
            return Err(refused("it was made of other files, or in another type"));
        }
        if number(&map, 16) != Some(map.len() as u64) {
            return Err(refused("it is cut off"));
        }
        let index = Self::read_index(&map).ok_or_else(|| refused("it is damaged"))?;
        Ok(Self {
            path: path.to_owned(),
            map: Arc::new(map),
            index,
        })
    }

    /// Where panels are; `None` if that cannot be, or if they are not what was written.
    fn read_index(map: &[u8]) -> Option<HashMap<[u8; 32], Range<usize>>> {
        let start = usize::try_from(number(map, 24)?).ok()?;
        let index = map.get(start..).filter(|_| start >= HEADER)?;
        if !index.len().is_multiple_of(ENTRY) {
            return None;
        }
        let mut entries = HashMap::new();
        for entry in index.chunks_exact(ENTRY) {
            let at = usize::try_from(number(entry, 32)?).ok()?;
            let end = at.checked_add(usize::try_from(number(entry, 40)?).ok()?)?;
            if at < HEADER || end > start || !at.is_multiple_of(64) {
                return None;
            }
            if number(entry, 48)? != u64::from(crc32fast::hash(&map[at..end])) {
                return None;
            }
            entries.insert(entry[..32].try_into().ok()?, at..end);
        }
        Some(entries)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of all panels.
    pub fn bytes(&self) -> u64 {
        self.index.values().map(|range| range.len() as u64).sum()
    }

    /// The panels of a weight, if the file has them.
    pub(crate) fn find(
        &self,
        parts: &[WeightPart<'_>],
        store_as: Option<DType>,
    ) -> Option<(Arc<HostMap>, Range<usize>)> {
        let range = self.index.get(&digest(parts, store_as))?;
        Some((Arc::clone(&self.map), range.clone()))
    }
}

/// What a weight is asked for by.
fn digest(parts: &[WeightPart<'_>], store_as: Option<DType>) -> [u8; 32] {
    let mut digest = Sha256::new();
    digest.update(store_as.map_or("", DType::name));
    for part in parts {
        // Lengths first, so that no two lists of parts are written alike.
        digest.update((part.name.len() as u64).to_le_bytes());
        digest.update(part.name);
        digest.update([part.dtype.name().len() as u8]);
        digest.update(part.dtype.name());
        digest.update((part.stored_rows as u64).to_le_bytes());
        digest.update((part.columns as u64).to_le_bytes());
        match &part.order {
            RowOrder::Stored => digest.update(u64::MAX.to_le_bytes()),
            RowOrder::Picked(rows) => {
                digest.update((rows.len() as u64).to_le_bytes());
                digest.update(bytemuck::cast_slice::<u32, u8>(rows));
            }
        }
    }
    digest.finalize().into()
}

/// A file of packed weights that is being written.
#[derive(Debug)]
pub struct PackedWriter {
    path: PathBuf,
    written: Mutex<Written>,
}

#[derive(Debug)]
struct Written {
    file: BufWriter<File>,
    at: u64,
    index: Vec<u8>,
}

impl PackedWriter {
    /// Begins a file. What is at `path` stays until [`finish`](Self::finish).
    pub fn create(path: &Path, key: &PackedKey) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut file = BufWriter::new(File::create(unfinished(path))?);
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(MAGIC);
        header[8..16].copy_from_slice(&LAYOUT.to_le_bytes());
        header[32..].copy_from_slice(key);
        file.write_all(&header)?;
        let written = Mutex::new(Written {
            file,
            at: HEADER as u64,
            index: Vec::new(),
        });
        let path = path.to_owned();
        Ok(Self { path, written })
    }

    /// Writes the panels of a weight.
    pub(crate) fn add(
        &self,
        (parts, store_as): (&[WeightPart<'_>], Option<DType>),
        weight: &CpuWeight,
    ) -> Result<(), DeviceError> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let Written { file, at, index } = &mut *written;
        index.extend(digest(parts, store_as));
        index.extend(at.to_le_bytes());
        index.extend((weight.bytes() as u64).to_le_bytes());
        let mut checksum = crc32fast::Hasher::new();
        for panels in weight.panel_bytes() {
            checksum.update(panels);
            file.write_all(panels).map_err(|error| DeviceError::BadWeight {
                what: parts.first().map_or("", |part| part.name).to_owned(),
                why: format!("cannot be written to {}: {error}", self.path.display()),
            })?;
        }
        index.extend(u64::from(checksum.finalize()).to_le_bytes());
        *at += weight.bytes() as u64;
        Ok(())
    }

    /// Ends the file and gives it its name. Returns its bytes.
    pub fn finish(&self) -> io::Result<u64> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let Written { file, at, index } = &mut *written;
        file.write_all(index)?;
        let bytes = *at + index.len() as u64;
        file.seek(SeekFrom::Start(16))?;
        file.write_all(&bytes.to_le_bytes())?;
        file.write_all(&at.to_le_bytes())?;
        file.flush()?;
        file.get_ref().sync_all()?;
        fs::rename(unfinished(&self.path), &self.path)?;
        Ok(bytes)
    }
}

impl Drop for PackedWriter {
    fn drop(&mut self) {
        // What has not got its name is of no use; what has is gone from here.
        let _ = fs::remove_file(unfinished(&self.path));
    }
}

/// The name of a file until it is whole; of this process, so that two of them do not write to one.
fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    name.into()
}

#[cfg(test)]
mod tests;
