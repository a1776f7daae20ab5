//! A cursor over a file that checks every step against the file's length.

use super::GgufError;

/// Reads little-endian values from the front of a file. Each method names what it reads through `what`, which is
/// only called when something is wrong.
pub(crate) struct Reader<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Self { data, at: 0 }
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    pub(crate) fn left(&self) -> usize {
        self.data.len() - self.at
    }

    pub(crate) fn take(&mut self, needed: u64, what: impl FnOnce() -> String) -> Result<&'a [u8], GgufError> {
        let left = self.left();
        if needed > left as u64 {
            return Err(GgufError::Truncated {
                what: what(),
                at: self.at,
                needed,
                left,
            });
        }
        let taken = &self.data[self.at..self.at + needed as usize];
        self.at += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: impl FnOnce() -> String) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }

    pub(crate) fn u32(&mut self, what: impl FnOnce() -> String) -> Result<u32, GgufError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, what: impl FnOnce() -> String) -> Result<u64, GgufError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A string's bytes: a `u64` length and that many bytes.
    pub(crate) fn string(&mut self, what: impl Fn() -> String) -> Result<&'a [u8], GgufError> {
        let length = self.u64(&what)?;
        self.take(length, what)
    }

    /// A string that must be UTF-8, for names and keys.
    pub(crate) fn text(&mut self, what: impl Fn() -> String) -> Result<&'a str, GgufError> {
        let at = self.at;
        let bytes = self.string(&what)?;
        std::str::from_utf8(bytes).map_err(|_| GgufError::NotUtf8 { what: what(), at })
    }

    /// Checks that `count` items of at least `least` bytes each can be in what is left of the file.
    pub(crate) fn check_count(
        &self,
        count: u64,
        least: u64,
        what: impl FnOnce() -> String,
    ) -> Result<usize, GgufError> {
        let left = self.left();
        let most = left as u64 / least;
        if count > most {
            return Err(GgufError::AbsurdCount {
                what: what(),
                count,
                left,
                most,
            });
        }
        Ok(count as usize)
    }
}
