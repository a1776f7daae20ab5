//! Bytes of a model file, wherever they live.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use paceline_device::HostMap;

/// Read-only bytes: a mapped file, data embedded in the binary, or an owned buffer. Cloning is cheap and shares
/// the bytes. No alignment is promised.
#[derive(Clone)]
pub struct Bytes(Repr);

#[derive(Clone)]
enum Repr {
    Mapped(Arc<HostMap>),
    Static(&'static [u8]),
    Owned(Arc<Vec<u8>>),
}

impl Bytes {
    /// Bytes embedded in the binary, such as the result of `include_bytes!`.
    pub const fn from_static(data: &'static [u8]) -> Self {
        Self(Repr::Static(data))
    }

    /// Maps the file at `path`; see [`HostMap`] for what must hold while it is in use.
    pub fn map(path: &Path) -> io::Result<Self> {
        Ok(Self(Repr::Mapped(Arc::new(HostMap::open(path)?))))
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Mapped(map) => map,
            Repr::Static(data) => data,
            Repr::Owned(data) => data,
        }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(data: Vec<u8>) -> Self {
        Self(Repr::Owned(Arc::new(data)))
    }
}

impl From<&'static [u8]> for Bytes {
    fn from(data: &'static [u8]) -> Self {
        Self::from_static(data)
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.0 {
            Repr::Mapped(_) => "mapped",
            Repr::Static(_) => "static",
            Repr::Owned(_) => "owned",
        };
        write!(f, "Bytes({kind}, {} bytes)", self.len())
    }
}
