//! Registers of all lanes at once, and what can be wrong with an instruction.

use super::Turn;
use crate::kernel::Inst;
use crate::warp::{LANES, Row};

/// What kind of error it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    Address,
    Misaligned,
    Trap,
    /// Rules of barriers and copies that were broken.
    Rule,
    /// Nothing can go on, or it never ends.
    Stuck,
}

/// An error, in words.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) trouble: Trouble,
    pub(crate) text: String,
}

impl Problem {
    pub(crate) fn new(trouble: Trouble, text: impl Into<String>) -> Self {
        Self {
            trouble,
            text: text.into(),
        }
    }
}

/// Writes the lanes that a mask names.
#[inline(always)]
pub(crate) fn keep<T: Copy>(to: &mut Row<T>, new: &Row<T>, mask: u32) {
    if mask == u32::MAX {
        *to = *new;
        return;
    }
    for lane in 0..LANES {
        if mask >> lane & 1 != 0 {
            to[lane] = new[lane];
        }
    }
}

impl Turn<'_> {
    #[inline(always)]
    pub(crate) fn words(&self, row: u32) -> &Row<u32> {
        &self.warp.words[row as usize]
    }

    #[inline(always)]
    pub(crate) fn doubles(&self, row: u32) -> &Row<u64> {
        &self.warp.doubles[row as usize]
    }

    #[inline(always)]
    pub(crate) fn keep_words(&mut self, row: u32, new: &Row<u32>, mask: u32) {
        keep(&mut self.warp.words[row as usize], new, mask);
    }

    #[inline(always)]
    pub(crate) fn keep_doubles(&mut self, row: u32, new: &Row<u64>, mask: u32) {
        keep(&mut self.warp.doubles[row as usize], new, mask);
    }

    #[inline(always)]
    pub(crate) fn keep_predicate(&mut self, row: u32, new: u32, mask: u32) {
        let predicate = &mut self.warp.predicates[row as usize];
        *predicate = *predicate & !mask | new & mask;
    }

    #[inline(always)]
    pub(crate) fn word_of_one(&mut self, inst: &Inst, mask: u32, f: impl Fn(u32) -> u32) {
        let (a, mut new) = (*self.words(inst.from[0]), [0; LANES]);
        for lane in 0..LANES {
            new[lane] = f(a[lane]);
        }
        self.keep_words(inst.to[0], &new, mask);
    }

    #[inline(always)]
    pub(crate) fn word_of_two(&mut self, inst: &Inst, mask: u32, f: impl Fn(u32, u32) -> u32) {
        let (a, b, mut new) = (*self.words(inst.from[0]), *self.words(inst.from[1]), [0; LANES]);
        for lane in 0..LANES {
            new[lane] = f(a[lane], b[lane]);
        }
        self.keep_words(inst.to[0], &new, mask);
    }

    #[inline(always)]
    pub(crate) fn word_of_three(&mut self, inst: &Inst, mask: u32, f: impl Fn(u32, u32, u32) -> u32) {
        let (a, b) = (*self.words(inst.from[0]), *self.words(inst.from[1]));
        let (c, mut new) = (*self.words(inst.from[2]), [0; LANES]);
        for lane in 0..LANES {
            new[lane] = f(a[lane], b[lane], c[lane]);
        }
        self.keep_words(inst.to[0], &new, mask);
    }

    #[inline(always)]
    pub(crate) fn double_of_one(&mut self, inst: &Inst, mask: u32, f: impl Fn(u64) -> u64) {
        let (a, mut new) = (*self.doubles(inst.from[0]), [0; LANES]);
        for lane in 0..LANES {
            new[lane] = f(a[lane]);
        }
        self.keep_doubles(inst.to[0], &new, mask);
    }

    #[inline(always)]
    pub(crate) fn double_of_two(&mut self, inst: &Inst, mask: u32, f: impl Fn(u64, u64) -> u64) {
        let (a, b, mut new) = (
            *self.doubles(inst.from[0]),
            *self.doubles(inst.from[1]),
            [0; LANES],
        );
        for lane in 0..LANES {
            new[lane] = f(a[lane], b[lane]);
        }
        self.keep_doubles(inst.to[0], &new, mask);
    }

    #[inline(always)]
    pub(crate) fn double_of_three(&mut self, inst: &Inst, mask: u32, f: impl Fn(u64, u64, u64) -> u64) {
        let (a, b) = (*self.doubles(inst.from[0]), *self.doubles(inst.from[1]));
        let (c, mut new) = (*self.doubles(inst.from[2]), [0; LANES]);
        for lane in 0..LANES {
            new[lane] = f(a[lane], b[lane], c[lane]);
        }
        self.keep_doubles(inst.to[0], &new, mask);
    }
}
