//! Read-only memory-mapped files: how weights reach the host without being copied.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

use memmap2::Mmap;

/// A whole file mapped read-only into memory.
///
/// The file must not be truncated or rewritten in place while the map is alive: touching a page that no longer
/// has a file behind it ends the process (`SIGBUS`), and bytes that were checked once could change afterwards.
/// Replacing the file by renaming another one over it is fine, since the map keeps the old contents.
#[derive(Debug)]
pub struct HostMap {
    map: Mmap,
}

impl HostMap {
    /// Maps the file at `path`. An empty file gives an empty map; what is not a regular file is an error.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = open_regular(path)?;
        // SAFETY: the map is private and read-only, so this process cannot change it; that nobody else truncates
        // or rewrites the file meanwhile is the condition documented on the type.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self { map })
    }
}

/// Opens the file at `path` for reading, if it is a regular one. To open a pipe would wait until another process writes to
/// it, and a device may never end, so this is found out first.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let metadata = std::fs::metadata(path)?;
    if metadata.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    File::open(path)
}

impl Deref for HostMap {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_has_the_bytes_of_the_file() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let map = HostMap::open(&path).unwrap();
        assert_eq!(&*map, std::fs::read(&path).unwrap());
    }

    #[test]
    fn folders_and_missing_files_are_errors() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert_eq!(
            HostMap::open(folder).unwrap_err().kind(),
            io::ErrorKind::IsADirectory
        );
        let missing = HostMap::open(&folder.join("no such file")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
