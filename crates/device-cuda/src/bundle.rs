//! Named files as one: the kernels' machine code, as packs have it before they are compressed.

use std::io::Read;

/// Files by their names.
pub type Files = Vec<(String, Vec<u8>)>;

/// All of them as one file.
pub fn join(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, contents) in files {
        for part in [name.as_bytes(), contents] {
            bytes.extend((part.len() as u32).to_le_bytes());
            bytes.extend(part);
        }
    }
    bytes
}

/// What [`join`] was given; `None` if these are not bytes that it made.
pub fn split(bytes: &[u8]) -> Option<Files> {
    let mut rest = bytes;
    let mut part = || {
        let (length, tail) = rest.split_first_chunk()?;
        let (part, tail) = tail.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        rest = tail;
        Some((part.to_vec(), tail.is_empty()))
    };
    let mut files = Vec::new();
    loop {
        let name = String::from_utf8(part()?.0).ok()?;
        let (contents, last) = part()?;
        files.push((name, contents));
        if last {
            return Some(files);
        }
    }
}

/// What a file is made of that [`join`] has made and zstd has compressed; `None` if it is no such file.
pub fn split_compressed(bundle: &[u8]) -> Option<Files> {
    let mut bytes = Vec::new();
    let mut decoder = ruzstd::decoding::StreamingDecoder::new(bundle).ok()?;
    decoder.read_to_end(&mut bytes).ok()?;
    split(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundles_hold_what_was_written() {
        let files = vec![("a".to_owned(), vec![1, 2, 3]), ("bc".to_owned(), Vec::new())];
        let whole = join(&files);
        assert_eq!(split(&whole), Some(files));
        assert_eq!(split(&whole[..whole.len() - 1]), None);
        assert_eq!(split(b"something else"), None);
        assert_eq!(split(b""), None);
    }

    #[test]
    fn a_pack_that_is_cut_off_or_something_else_is_refused() {
        let pack = crate::pack::Architecture::ALL[0].pack();
        assert!(split_compressed(pack).is_some());
        assert_eq!(split_compressed(&pack[..pack.len() - 1]), None);
        assert_eq!(split_compressed(b"something else"), None);
    }
}
