//! The table of requests. Names are the engine's own numbers, so a multiplication spreads them well enough, and
//! requests are boxed, so that a table that grows moves pointers.

use crate::request::{Request, RequestId};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

pub(crate) type ById<T> = HashMap<RequestId, T, BuildHasherDefault<Spread>>;

pub(super) type Table = ById<Box<Request>>;

#[derive(Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        // The table reads the high and the low bits; the rotation brings the well-mixed ones to both ends.
        self.0 = (self.0 ^ value)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
