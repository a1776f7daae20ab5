//! Products of matrices. Each group of sixteen products, or eight of TF32, is added to the sum in order with 53 bits and rounded
//! once: the same for instructions of a warp and of a warpgroup, so that the bits of both are equal, as they are on the device.
//!
//! Instructions of a warpgroup are computed when they are issued; what they have read must still be there when they are waited for.

use super::floats::bf16;
use super::{Problem, Step, Trouble, Turn};
use crate::cluster::{Operands, Products};
use crate::kernel::{Factor, Inst, Op, Wide};
use crate::memory::Wrong;
use crate::warp::{LANES, Row};
use half::f16;

/// Rows of a product of a warp, and how deep it is.
const ROWS: usize = 16;
const DEPTH: usize = 16;

/// A number of a factor's type.
#[inline(always)]
fn number(factor: Factor, bits: u32) -> f64 {
    f64::from(match factor {
        Factor::Bf16 => bf16(bits & 0xffff),
        Factor::F16 => f16::from_bits(bits as u16).to_f32(),
        Factor::Tf32 => f32::from_bits(bits & !0x1fff),
    })
}

/// `sums += left * right`, of so many columns and so deep.
#[inline(always)]
fn multiply(left: &[[f64; DEPTH]; ROWS], right: &[f64], sums: &mut [f64], columns: usize, depth: usize) {
    for (row, sums) in left.iter().zip(sums.chunks_exact_mut(columns)) {
        for (factor, right) in row[..depth].iter().zip(right.chunks_exact(columns)) {
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum = factor.mul_add(*right, *sum);
            }
        }
    }
}

/// Sixteen bits that a product reads, of a factor in shared memory whose rows of 128 bytes lie in the swizzle of 128 bytes.
#[derive(Clone, Copy)]
struct Tile {
    start: u32,
    /// From one group of columns to the next, where rows are of the depth; from eight rows to the next eight.
    leading: u32,
    stride: u32,
}

impl Tile {
    fn new(descriptor: u64) -> Result<Self, Problem> {
        let (swizzle, base) = (descriptor >> 62, descriptor >> 49 & 7);
        if swizzle != 1 || base != 0 {
            let text = format!("descriptor {descriptor:#x}: the emulator has the swizzle of 128 bytes alone");
            return Err(Problem::new(Trouble::Rule, text));
        }
        let part = |shift: u32| (descriptor >> shift & 0x3fff) as u32 * 16;
        Ok(Self {
            start: part(0),
            leading: part(16),
            stride: part(32),
        })
    }

    fn swizzled(at: u32) -> u32 {
        at ^ (at >> 7 & 7) << 4
    }

    /// Where eight neighbours in depth begin, for a factor kept by rows.
    fn along(self, row: usize, depth: usize) -> u32 {
        let (row, depth) = (row as u32, depth as u32);
        Self::swizzled(self.start + row / 8 * self.stride + row % 8 * 128 + depth * 2)
    }

    /// Where eight neighbouring columns begin, for a factor kept by rows of the depth.
    fn across(self, column: usize, depth: usize) -> u32 {
        let (column, depth) = (column as u32, depth as u32);
        let group = column / 64 * self.leading + depth / 8 * self.stride;
        Self::swizzled(self.start + group + depth % 8 * 128 + column % 64 * 2)
    }
}

impl Turn<'_> {
    /// Eight neighbours of sixteen bits.
    #[inline(always)]
    fn eight(&self, at: u32) -> Result<[u16; 8], Problem> {
        let found = self.common.load(self.warp.rank, at, 16);
        let value = found.map_err(|wrong: Wrong| self.wrong(wrong, "a matrix", 0, u64::from(at), 16))?;
        let bytes = value.to_le_bytes();
        Ok(std::array::from_fn(|index| {
            u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]])
        }))
    }

    #[cfg_attr(
        target_arch = "x86_64",
        target_feature(enable = "avx2,fma,f16c,popcnt,lzcnt,bmi1,bmi2")
    )]
    pub(super) fn matrix(&mut self, inst: &Inst) -> Result<(), Problem> {
        match inst.op {
            Op::LoadMatrix { count, transposed } => self.load_matrix(inst, usize::from(count), transposed),
            Op::Multiply(factor) => {
                self.product(factor, inst);
                Ok(())
            }
            _ => unreachable!("it is of matrices"),
        }
    }

    #[cfg_attr(
        target_arch = "x86_64",
        target_feature(enable = "avx2,fma,f16c,popcnt,lzcnt,bmi1,bmi2")
    )]
    fn load_matrix(&mut self, inst: &Inst, count: usize, transposed: bool) -> Result<(), Problem> {
        let addresses = *self.words(inst.from[0]);
        let start = inst.list.0 as usize;
        for index in 0..count {
            let mut rows = [[0_u16; 8]; 8];
            for (row, values) in rows.iter_mut().enumerate() {
                *values = self.eight(addresses[8 * index + row])?;
            }
            let mut new = [0; LANES];
            for (lane, word) in new.iter_mut().enumerate() {
                let (row, column) = (lane / 4, lane % 4 * 2);
                let pair = if transposed {
                    [rows[column][row], rows[column + 1][row]]
                } else {
                    [rows[row][column], rows[row][column + 1]]
                };
                *word = u32::from(pair[1]) << 16 | u32::from(pair[0]);
            }
            let row = self.setting.kernel.lists[start + index];
            self.keep_words(row, &new, u32::MAX);
        }
        Ok(())
    }

    /// The left factor as lanes hold it.
    #[inline(always)]
    fn held(&self, factor: Factor, rows: &[u32]) -> [[f64; DEPTH]; ROWS] {
        let mut left = [[0.0; DEPTH]; ROWS];
        for (index, row) in rows.iter().enumerate() {
            let values = self.words(*row);
            for (lane, value) in values.iter().enumerate() {
                let row = &mut left[lane / 4 + index % 2 * 8];
                if factor == Factor::Tf32 {
                    row[lane % 4 + index / 2 * 4] = number(factor, *value);
                } else {
                    let at = lane % 4 * 2 + index / 2 * 8;
                    row[at] = number(factor, *value);
                    row[at + 1] = number(factor, *value >> 16);
                }
            }
        }
        left
    }

    #[cfg_attr(
        target_arch = "x86_64",
        target_feature(enable = "avx2,fma,f16c,popcnt,lzcnt,bmi1,bmi2")
    )]
    fn product(&mut self, factor: Factor, inst: &Inst) {
        let start = inst.list.0 as usize;
        let kernel = self.setting.kernel;
        let lists = &kernel.lists[start..start + 14];
        let left = self.held(factor, &lists[4..8]);
        let depth = if factor == Factor::Tf32 { 8 } else { DEPTH };
        let mut right = [0.0; DEPTH * 8];
        for (index, row) in lists[8..10].iter().enumerate() {
            for (lane, value) in self.words(*row).iter().enumerate() {
                let column = lane / 4;
                if factor == Factor::Tf32 {
                    right[(lane % 4 + 4 * index) * 8 + column] = number(factor, *value);
                } else {
                    let at = lane % 4 * 2 + 8 * index;
                    right[at * 8 + column] = number(factor, *value);
                    right[(at + 1) * 8 + column] = number(factor, *value >> 16);
                }
            }
        }
        let mut sums = [0.0; ROWS * 8];
        for (index, row) in lists[10..14].iter().enumerate() {
            for (lane, value) in self.words(*row).iter().enumerate() {
                sums[place(index, lane, 8)] = f64::from(f32::from_bits(*value));
            }
        }
        multiply(&left, &right, &mut sums, 8, depth);
        for (index, row) in lists[..4].iter().enumerate() {
            let mut new: Row<u32> = [0; LANES];
            for (lane, value) in new.iter_mut().enumerate() {
                *value = (sums[place(index, lane, 8)] as f32).to_bits();
            }
            self.keep_words(*row, &new, u32::MAX);
        }
    }

    #[cfg_attr(
        target_arch = "x86_64",
        target_feature(enable = "avx2,fma,f16c,popcnt,lzcnt,bmi1,bmi2")
    )]
    pub(super) fn wide(&mut self, inst: &Inst) -> Result<Step, Problem> {
        match inst.op {
            Op::MultiplyWide(wide) => self.multiply_wide(wide, inst).map(|()| Step::Next),
            Op::MultiplyCommit => {
                let warp = self.warp.index;
                let products = self.products();
                let number = products.closed[warp % 4];
                let own = products
                    .operands
                    .iter_mut()
                    .filter(|operands| operands.warp == warp);
                own.filter(|operands| operands.group == u32::MAX)
                    .for_each(|operands| operands.group = number);
                products.closed[warp % 4] += 1;
                self.common.happened += 1;
                Ok(Step::Next)
            }
            _ => self.products_wait(inst.number as u32),
        }
    }

    /// Those of this warp's warpgroup.
    fn products(&mut self) -> &mut Products {
        &mut self.common.products[self.warp.rank][self.warp.index / 4]
    }

    #[cfg_attr(
        target_arch = "x86_64",
        target_feature(enable = "avx2,fma,f16c,popcnt,lzcnt,bmi1,bmi2")
    )]
    fn multiply_wide(&mut self, wide: Wide, inst: &Inst) -> Result<(), Problem> {
        let columns = usize::from(wide.columns);
        let start = inst.list.0 as usize;
        let kernel = self.setting.kernel;
        let lists = &kernel.lists[start..start + usize::from(inst.list.2)];
        let sums_rows = &lists[..columns / 2];
        let mut pieces = Vec::with_capacity(2 * (columns + ROWS));
        let left = if wide.held {
            self.held(wide.factor, &lists[columns..])
        } else {
            let tile = Tile::new(self.doubles(inst.from[1])[0])?;
            let first = self.warp.index % 4 * ROWS;
            let mut left = [[0.0; DEPTH]; ROWS];
            for (row, values) in left.iter_mut().enumerate() {
                for half in 0..2 {
                    let at = tile.along(first + row, 8 * half);
                    pieces.push(at);
                    let eight = self.eight(at)?;
                    (0..8).for_each(|index| {
                        values[8 * half + index] = number(wide.factor, u32::from(eight[index]));
                    });
                }
            }
            left
        };
        let tile = Tile::new(self.doubles(inst.from[0])[0])?;
        let mut right = vec![0.0; DEPTH * columns];
        self.right(wide, tile, &mut right, &mut pieces)?;
        let keeps = self.warp.predicates[inst.from[2] as usize] & 1 != 0;
        let mut sums = vec![0.0; ROWS * columns];
        if keeps {
            for (index, row) in sums_rows.iter().enumerate() {
                for (lane, value) in self.words(*row).iter().enumerate() {
                    sums[place(index, lane, columns)] = f64::from(f32::from_bits(*value));
                }
            }
        }
        multiply(&left, &right, &mut sums, columns, DEPTH);
        for (index, row) in sums_rows.iter().enumerate() {
            let mut new: Row<u32> = [0; LANES];
            for (lane, value) in new.iter_mut().enumerate() {
                *value = (sums[place(index, lane, columns)] as f32).to_bits();
            }
            self.keep_words(*row, &new, u32::MAX);
        }
        let hash = self.hash(&pieces)?;
        let warp = self.warp.index;
        self.products().operands.push(Operands {
            warp,
            pieces,
            hash,
            group: u32::MAX,
            line: inst.line,
        });
        Ok(())
    }

    /// The right factor, by depth and then by column.
    #[inline(always)]
    fn right(&self, wide: Wide, tile: Tile, right: &mut [f64], pieces: &mut Vec<u32>) -> Result<(), Problem> {
        let columns = usize::from(wide.columns);
        if wide.by_rows {
            for depth in 0..DEPTH {
                for first in (0..columns).step_by(8) {
                    let at = tile.across(first, depth);
                    pieces.push(at);
                    let eight = self.eight(at)?;
                    let to = &mut right[depth * columns + first..][..8];
                    (0..8).for_each(|index| to[index] = number(wide.factor, u32::from(eight[index])));
                }
            }
            return Ok(());
        }
        for column in 0..columns {
            for first in [0, 8] {
                let at = tile.along(column, first);
                pieces.push(at);
                let eight = self.eight(at)?;
                for (index, value) in eight.iter().enumerate() {
                    right[(first + index) * columns + column] = number(wide.factor, u32::from(*value));
                }
            }
        }
        Ok(())
    }

    /// A hash of what is at these places.
    #[cfg_attr(
        target_arch = "x86_64",
        target_feature(enable = "avx2,fma,f16c,popcnt,lzcnt,bmi1,bmi2")
    )]
    fn hash(&self, pieces: &[u32]) -> Result<u64, Problem> {
        let mut hash = 0_u64;
        for at in pieces {
            let found = self.common.load(self.warp.rank, *at, 16);
            let value = found.map_err(|wrong| self.wrong(wrong, "a matrix", 0, u64::from(*at), 16))?;
            for part in [value as u64, (value >> 64) as u64] {
                hash = (hash.rotate_left(5) ^ part).wrapping_mul(0x517c_c1b7_2722_0a95);
            }
        }
        Ok(hash)
    }

    #[cfg_attr(
        target_arch = "x86_64",
        target_feature(enable = "avx2,fma,f16c,popcnt,lzcnt,bmi1,bmi2")
    )]
    fn products_wait(&mut self, left: u32) -> Result<Step, Problem> {
        let warp = self.warp.index;
        let products = self.products();
        let until = products.closed[warp % 4].saturating_sub(left);
        if products.closed.iter().any(|closed| *closed < until) {
            return Ok(Step::Stall);
        }
        let operands = std::mem::take(&mut products.operands);
        let (waited, rest): (Vec<_>, Vec<_>) =
            operands.into_iter().partition(|operands| operands.group < until);
        products.operands = rest;
        for operands in waited {
            if self.hash(&operands.pieces)? != operands.hash {
                let Operands { warp, line, .. } = operands;
                let text = format!(
                    "warp {warp}: what the product of line {line} reads was written again before it was waited for"
                );
                return Err(Problem::new(Trouble::Rule, text));
            }
        }
        Ok(Step::Next)
    }
}

/// Where the sum is that a lane holds in a register, in rows of so many columns.
#[inline(always)]
fn place(index: usize, lane: usize, columns: usize) -> usize {
    let row = lane / 4 + index % 4 / 2 * 8;
    row * columns + index / 4 * 8 + lane % 4 * 2 + index % 2
}
