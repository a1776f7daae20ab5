//! Named files as one compressed file: kernels' machine code in packs, and their sources.

use std::io;

/// Compression; bundles are made rarely.
const LEVEL: i32 = 19;

/// Names and contents, as one compressed bundle.
pub fn write(files: &[(String, Vec<u8>)]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for (name, contents) in files {
        for part in [name.as_bytes(), contents] {
            bytes.extend((part.len() as u32).to_le_bytes());
            bytes.extend(part);
        }
    }
    zstd::encode_all(bytes.as_slice(), LEVEL)
}

/// What [`write()`] was given; `None` if these are not bytes that it made.
pub fn read(bundle: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    let bytes = zstd::decode_all(bundle).ok()?;
    let mut rest = bytes.as_slice();
    let mut part = || {
        let (length, tail) = rest.split_first_chunk()?;
        let (part, tail) = tail.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        rest = tail;
        Some(part.to_vec())
    };
    let mut files = Vec::new();
    while let Some(name) = part() {
        files.push((String::from_utf8(name).ok()?, part()?));
    }
    Some(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundles_hold_what_was_written() {
        let files = vec![("a".to_owned(), vec![1, 2, 3]), ("bc".to_owned(), Vec::new())];
        let bundle = write(&files).unwrap();
        assert_eq!(read(&bundle), Some(files));
        assert_eq!(read(&bundle[..bundle.len() - 1]), None);
        assert_eq!(read(b"something else"), None);
    }
}
