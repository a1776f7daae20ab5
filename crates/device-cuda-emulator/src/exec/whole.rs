//! Whole numbers, predicates and bits.

use super::Turn;
use crate::kernel::{Bits, Compare, Inst, Op, Type, Whole};
use crate::warp::{LANES, Row};

/// Sixteen bits as a signed number.
fn signed_half(x: u32) -> u32 {
    i32::from(x as u16 as i16) as u32
}

fn bits32(op: Bits, x: u32) -> u32 {
    match op {
        Bits::Not => !x,
        Bits::Negative => x.wrapping_neg(),
        Bits::Absolute => (x as i32).unsigned_abs(),
        Bits::Ones => x.count_ones(),
        Bits::Reversed => x.reverse_bits(),
        Bits::Highest | Bits::ShiftToHighest if x == 0 => u32::MAX,
        Bits::Highest => x.ilog2(),
        Bits::LeadingZeros | Bits::ShiftToHighest => x.leading_zeros(),
    }
}

fn bits64(op: Bits, x: u64) -> u64 {
    match op {
        Bits::Not => !x,
        Bits::Negative => x.wrapping_neg(),
        Bits::Absolute => (x as i64).unsigned_abs(),
        Bits::Ones => u64::from(x.count_ones()),
        Bits::Reversed => x.reverse_bits(),
        Bits::Highest | Bits::ShiftToHighest if x == 0 => u64::from(u32::MAX),
        Bits::Highest => u64::from(x.ilog2()),
        Bits::LeadingZeros | Bits::ShiftToHighest => u64::from(x.leading_zeros()),
    }
}

/// Bytes of two words, chosen by four numbers of four bits; the upper of those spreads the sign.
fn permute(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    (0..4).fold(0, |word, index| {
        let choice = selector >> (4 * index);
        let byte = (bytes >> (8 * (choice & 7))) as u8;
        let byte = if choice & 8 == 0 {
            byte
        } else {
            ((byte as i8) >> 7) as u8
        };
        word | u32::from(byte) << (8 * index)
    })
}

fn lop3(a: u32, b: u32, c: u32, table: u32) -> u32 {
    (0..8).fold(0, |word, index| {
        let pick = |x: u32, bit: u32| if index & bit == 0 { !x } else { x };
        let term = pick(a, 4) & pick(b, 2) & pick(c, 1);
        if table >> index & 1 == 0 {
            word
        } else {
            word | term
        }
    })
}

fn extract(x: u32, at: u32, length: u32, signed: bool) -> u32 {
    let (at, length) = (at & 255, length & 255);
    let wide = if signed {
        i64::from(x as i32) as u64
    } else {
        u64::from(x)
    };
    if length == 0 {
        return 0;
    }
    let shifted = if signed {
        ((wide as i64) >> at.min(63)) as u64
    } else {
        wide.checked_shr(at).unwrap_or(0)
    };
    if length >= 32 {
        return shifted as u32;
    }
    let kept = shifted as u32 & ((1 << length) - 1);
    if signed && kept >> (length - 1) & 1 != 0 {
        kept | !0 << length
    } else {
        kept
    }
}

fn insert(field: u64, into: u64, at: u32, length: u32, bits: u32) -> u64 {
    let (at, length) = (at & 255, length & 255);
    if at >= bits || length == 0 {
        return into;
    }
    let ones = if length >= 64 { u64::MAX } else { (1 << length) - 1 };
    let mask = ones << at;
    into & !mask | field << at & mask
}

impl Turn<'_> {
    #[cfg_attr(
        target_arch = "x86_64",
        target_feature(enable = "avx2,fma,f16c,popcnt,lzcnt,bmi1,bmi2")
    )]
    pub(super) fn whole(&mut self, op: Whole, inst: &Inst, mask: u32) {
        match op {
            Whole::Add => self.word_of_two(inst, mask, u32::wrapping_add),
            Whole::Sub => self.word_of_two(inst, mask, u32::wrapping_sub),
            Whole::Mul => self.word_of_two(inst, mask, u32::wrapping_mul),
            Whole::MulHigh => {
                self.word_of_two(inst, mask, |a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32);
            }
            Whole::MulHighSigned => self.word_of_two(inst, mask, |a, b| {
                ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32
            }),
            Whole::Div => self.word_of_two(inst, mask, |a, b| a.checked_div(b).unwrap_or(u32::MAX)),
            Whole::Rem => self.word_of_two(inst, mask, |a, b| a.checked_rem(b).unwrap_or(a)),
            Whole::DivSigned => self.word_of_two(inst, mask, |a, b| {
                if b == 0 {
                    u32::MAX
                } else {
                    (a as i32).wrapping_div(b as i32) as u32
                }
            }),
            Whole::RemSigned => self.word_of_two(inst, mask, |a, b| {
                if b == 0 {
                    a
                } else {
                    (a as i32).wrapping_rem(b as i32) as u32
                }
            }),
            Whole::Min => self.word_of_two(inst, mask, u32::min),
            Whole::Max => self.word_of_two(inst, mask, u32::max),
            Whole::MinSigned => self.word_of_two(inst, mask, |a, b| (a as i32).min(b as i32) as u32),
            Whole::MaxSigned => self.word_of_two(inst, mask, |a, b| (a as i32).max(b as i32) as u32),
            Whole::And => self.word_of_two(inst, mask, |a, b| a & b),
            Whole::Or => self.word_of_two(inst, mask, |a, b| a | b),
            Whole::Xor => self.word_of_two(inst, mask, |a, b| a ^ b),
            Whole::Left => self.word_of_two(inst, mask, |a, b| if b > 31 { 0 } else { a << (b & 31) }),
            Whole::Right => self.word_of_two(inst, mask, |a, b| if b > 31 { 0 } else { a >> (b & 31) }),
            Whole::RightSigned => self.word_of_two(inst, mask, |a, b| ((a as i32) >> b.min(31)) as u32),
        }
    }

    /// The same of sixteen bits. A register's upper ones are zero.
    pub(super) fn half(&mut self, op: Whole, inst: &Inst, mask: u32) {
        let low = |x: u32| x & 0xffff;
        match op {
            Whole::Add => self.word_of_two(inst, mask, |a, b| low(a.wrapping_add(b))),
            Whole::Sub => self.word_of_two(inst, mask, |a, b| low(a.wrapping_sub(b))),
            Whole::Mul => self.word_of_two(inst, mask, |a, b| low(a.wrapping_mul(b))),
            Whole::MulHigh | Whole::MulHighSigned => {
                self.word_of_two(inst, mask, |_, _| unreachable!("never decoded"));
            }
            Whole::Div => self.word_of_two(inst, mask, |a, b| {
                low(low(a).checked_div(low(b)).unwrap_or(u32::MAX))
            }),
            Whole::Rem => self.word_of_two(inst, mask, |a, b| low(a).checked_rem(low(b)).unwrap_or(low(a))),
            Whole::DivSigned => self.word_of_two(inst, mask, |a, b| {
                low((signed_half(a) as i32)
                    .checked_div(signed_half(b) as i32)
                    .unwrap_or(-1) as u32)
            }),
            Whole::RemSigned => self.word_of_two(inst, mask, |a, b| {
                low((signed_half(a) as i32)
                    .checked_rem(signed_half(b) as i32)
                    .unwrap_or(0) as u32)
            }),
            Whole::Min => self.word_of_two(inst, mask, |a, b| low(a).min(low(b))),
            Whole::Max => self.word_of_two(inst, mask, |a, b| low(a).max(low(b))),
            Whole::MinSigned => {
                self.word_of_two(inst, mask, |a, b| {
                    low((signed_half(a) as i32).min(signed_half(b) as i32) as u32)
                });
            }
            Whole::MaxSigned => {
                self.word_of_two(inst, mask, |a, b| {
                    low((signed_half(a) as i32).max(signed_half(b) as i32) as u32)
                });
            }
            Whole::And => self.word_of_two(inst, mask, |a, b| low(a & b)),
            Whole::Or => self.word_of_two(inst, mask, |a, b| low(a | b)),
            Whole::Xor => self.word_of_two(inst, mask, |a, b| low(a ^ b)),
            Whole::Left => self.word_of_two(inst, mask, |a, b| if b > 15 { 0 } else { low(a << b) }),
            Whole::Right => self.word_of_two(inst, mask, |a, b| if b > 15 { 0 } else { low(a) >> b }),
            Whole::RightSigned => {
                self.word_of_two(inst, mask, |a, b| {
                    low(((signed_half(a) as i32) >> b.min(15)) as u32)
                });
            }
        }
    }

    #[cfg_attr(
        target_arch = "x86_64",
        target_feature(enable = "avx2,fma,f16c,popcnt,lzcnt,bmi1,bmi2")
    )]
    pub(super) fn whole_double(&mut self, op: Whole, inst: &Inst, mask: u32) {
        match op {
            Whole::Add => self.double_of_two(inst, mask, u64::wrapping_add),
            Whole::Sub => self.double_of_two(inst, mask, u64::wrapping_sub),
            Whole::Mul => self.double_of_two(inst, mask, u64::wrapping_mul),
            Whole::MulHigh => {
                self.double_of_two(inst, mask, |a, b| ((u128::from(a) * u128::from(b)) >> 64) as u64);
            }
            Whole::MulHighSigned => self.double_of_two(inst, mask, |a, b| {
                ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64
            }),
            Whole::Div => self.double_of_two(inst, mask, |a, b| a.checked_div(b).unwrap_or(u64::MAX)),
            Whole::Rem => self.double_of_two(inst, mask, |a, b| a.checked_rem(b).unwrap_or(a)),
            Whole::DivSigned => self.double_of_two(inst, mask, |a, b| {
                if b == 0 {
                    u64::MAX
                } else {
                    (a as i64).wrapping_div(b as i64) as u64
                }
            }),
            Whole::RemSigned => self.double_of_two(inst, mask, |a, b| {
                if b == 0 {
                    a
                } else {
                    (a as i64).wrapping_rem(b as i64) as u64
                }
            }),
            Whole::Min => self.double_of_two(inst, mask, u64::min),
            Whole::Max => self.double_of_two(inst, mask, u64::max),
            Whole::MinSigned => self.double_of_two(inst, mask, |a, b| (a as i64).min(b as i64) as u64),
            Whole::MaxSigned => self.double_of_two(inst, mask, |a, b| (a as i64).max(b as i64) as u64),
            Whole::And => self.double_of_two(inst, mask, |a, b| a & b),
            Whole::Or => self.double_of_two(inst, mask, |a, b| a | b),
            Whole::Xor => self.double_of_two(inst, mask, |a, b| a ^ b),
            Whole::Left => self.shift(inst, mask, |a, b| if b > 63 { 0 } else { a << b }),
            Whole::Right => self.shift(inst, mask, |a, b| if b > 63 { 0 } else { a >> b }),
            Whole::RightSigned => self.shift(inst, mask, |a, b| ((a as i64) >> b.min(63)) as u64),
        }
    }

    #[inline(always)]
    fn shift(&mut self, inst: &Inst, mask: u32, f: impl Fn(u64, u32) -> u64) {
        let (a, by, mut new) = (*self.doubles(inst.from[0]), *self.words(inst.from[1]), [0; LANES]);
        for lane in 0..LANES {
            new[lane] = f(a[lane], by[lane]);
        }
        self.keep_doubles(inst.to[0], &new, mask);
    }

    #[cfg_attr(
        target_arch = "x86_64",
        target_feature(enable = "avx2,fma,f16c,popcnt,lzcnt,bmi1,bmi2")
    )]
    pub(super) fn compare(&mut self, compare: Compare, kind: Type, inst: &Inst, mask: u32) {
        let [first, second] = [inst.from[0], inst.from[1]];
        let bits = match kind {
            Type::U64 | Type::S64 | Type::F64 => {
                let (a, b) = (self.doubles(first), self.doubles(second));
                match kind {
                    Type::U64 => compared(compare, a, b, |x| x),
                    Type::S64 => compared(compare, a, b, |x| x as i64),
                    _ => compared(compare, a, b, f64::from_bits),
                }
            }
            _ => {
                let (a, b) = (self.words(first), self.words(second));
                match kind {
                    Type::S32 => compared(compare, a, b, |x| x as i32),
                    Type::F32 => compared(compare, a, b, f32::from_bits),
                    Type::U16 => compared(compare, a, b, |x| x as u16),
                    Type::S16 => compared(compare, a, b, |x| x as u16 as i16),
                    _ => compared(compare, a, b, |x| x),
                }
            }
        };
        self.keep_predicate(inst.to[0], bits, mask);
    }

    /// What is rare.
    #[cfg_attr(
        target_arch = "x86_64",
        target_feature(enable = "avx2,fma,f16c,popcnt,lzcnt,bmi1,bmi2")
    )]
    pub(super) fn more(&mut self, inst: &Inst, mask: u32) {
        let [a, b, c, d] = inst.from;
        let mut words = [0; LANES];
        match inst.op {
            Op::MoveDouble | Op::FromGeneric | Op::ToGeneric(_) | Op::Clock | Op::PlaceOf => {
                self.address(inst, mask);
            }
            Op::MovePredicate => self.keep_predicate(inst.to[0], self.warp.predicates[a as usize], mask),
            Op::NotPredicate => self.keep_predicate(inst.to[0], !self.warp.predicates[a as usize], mask),
            Op::Logic(op) => {
                let (a, b) = (self.warp.predicates[a as usize], self.warp.predicates[b as usize]);
                let bits = match op {
                    Whole::And => a & b,
                    Whole::Or => a | b,
                    _ => a ^ b,
                };
                self.keep_predicate(inst.to[0], bits, mask);
            }
            Op::Bits(op, false) => self.word_of_one(inst, mask, |x| bits32(op, x)),
            Op::Bits(op, true) => self.word_of_one(inst, mask, |x| bits32(op, signed_half(x)) & 0xffff),
            Op::BitsDouble(op) => self.double_of_one(inst, mask, |x| bits64(op, x)),
            Op::CountDouble(op) => {
                let from = self.doubles(a);
                (0..LANES).for_each(|lane| words[lane] = bits64(op, from[lane]) as u32);
                self.keep_words(inst.to[0], &words, mask);
            }
            Op::Lop3 => self.word_of_three(inst, mask, |a, b, c| lop3(a, b, c, inst.number as u32)),
            Op::Permute => self.word_of_three(inst, mask, permute),
            Op::Extract { signed } => self.word_of_three(inst, mask, |a, b, c| extract(a, b, c, signed)),
            Op::Insert => {
                let [a, b, c, d] = [self.words(a), self.words(b), self.words(c), self.words(d)];
                (0..LANES).for_each(|lane| {
                    words[lane] = insert(u64::from(a[lane]), u64::from(b[lane]), c[lane], d[lane], 32) as u32;
                });
                self.keep_words(inst.to[0], &words, mask);
            }
            Op::InsertDouble => {
                let (a, b, c, d) = (self.doubles(a), self.doubles(b), self.words(c), self.words(d));
                let mut new = [0; LANES];
                (0..LANES).for_each(|lane| new[lane] = insert(a[lane], b[lane], c[lane], d[lane], 64));
                self.keep_doubles(inst.to[0], &new, mask);
            }
            Op::Funnel { left, wraps } => self.word_of_three(inst, mask, |low, high, by| {
                let both = u64::from(high) << 32 | u64::from(low);
                let by = if wraps { by & 31 } else { by.min(32) };
                if left {
                    ((both << by) >> 32) as u32
                } else {
                    (both >> by) as u32
                }
            }),
            Op::SelectWord => {
                let (a, b, bits) = (self.words(a), self.words(b), self.warp.predicates[c as usize]);
                (0..LANES)
                    .for_each(|lane| words[lane] = if bits >> lane & 1 != 0 { a[lane] } else { b[lane] });
                self.keep_words(inst.to[0], &words, mask);
            }
            Op::SelectDouble => {
                let (a, b, bits) = (self.doubles(a), self.doubles(b), self.warp.predicates[c as usize]);
                let mut new = [0; LANES];
                (0..LANES).for_each(|lane| new[lane] = if bits >> lane & 1 != 0 { a[lane] } else { b[lane] });
                self.keep_doubles(inst.to[0], &new, mask);
            }
            _ => self.joined(inst, mask),
        }
    }

    /// Products of other sizes than their factors, and what joins and splits registers.
    #[cfg_attr(
        target_arch = "x86_64",
        target_feature(enable = "avx2,fma,f16c,popcnt,lzcnt,bmi1,bmi2")
    )]
    fn joined(&mut self, inst: &Inst, mask: u32) {
        let [a, b, c, _] = inst.from;
        let product = |a: u32, b: u32, signed: bool| {
            if signed {
                (i64::from(a as i32) * i64::from(b as i32)) as u64
            } else {
                u64::from(a) * u64::from(b)
            }
        };
        let (mut words, mut more, mut new) = ([0; LANES], [0; LANES], [0; LANES]);
        match inst.op {
            Op::MulWide { signed, half: true } => self.word_of_two(inst, mask, |a, b| {
                let extended = |x: u32| if signed { signed_half(x) } else { x & 0xffff };
                extended(a).wrapping_mul(extended(b))
            }),
            Op::MulWide { signed, .. } => {
                let (a, b) = (self.words(a), self.words(b));
                (0..LANES).for_each(|lane| new[lane] = product(a[lane], b[lane], signed));
                self.keep_doubles(inst.to[0], &new, mask);
            }
            Op::MulAdd => self.word_of_three(inst, mask, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
            Op::MulAddDouble => self.double_of_three(inst, mask, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
            Op::MulAddWide { signed } => {
                let (a, b, c) = (self.words(a), self.words(b), self.doubles(c));
                (0..LANES)
                    .for_each(|lane| new[lane] = product(a[lane], b[lane], signed).wrapping_add(c[lane]));
                self.keep_doubles(inst.to[0], &new, mask);
            }
            Op::JoinWords => {
                let (a, b) = (self.words(a), self.words(b));
                (0..LANES).for_each(|lane| new[lane] = u64::from(b[lane]) << 32 | u64::from(a[lane]));
                self.keep_doubles(inst.to[0], &new, mask);
            }
            Op::SplitDouble => {
                let a = self.doubles(a);
                (0..LANES)
                    .for_each(|lane| (words[lane], more[lane]) = (a[lane] as u32, (a[lane] >> 32) as u32));
                self.keep_words(inst.to[0], &words, mask);
                self.keep_words(inst.to[1], &more, mask);
            }
            Op::JoinHalves => self.word_of_two(inst, mask, |a, b| b << 16 | a & 0xffff),
            Op::SplitWord => {
                let a = self.words(a);
                (0..LANES).for_each(|lane| (words[lane], more[lane]) = (a[lane] & 0xffff, a[lane] >> 16));
                self.keep_words(inst.to[0], &words, mask);
                self.keep_words(inst.to[1], &more, mask);
            }
            other => unreachable!("{other:?} is run elsewhere"),
        }
    }
}

/// A bit per lane.
#[inline(always)]
fn compared<T: Copy, N: PartialOrd>(
    compare: Compare,
    a: &Row<T>,
    b: &Row<T>,
    number: impl Fn(T) -> N,
) -> u32 {
    let mut bits = 0;
    for lane in 0..LANES {
        let (a, b) = (number(a[lane]), number(b[lane]));
        let (less, equal, greater) = (a < b, a == b, a > b);
        let holds = (compare.less & less)
            | (compare.equal & equal)
            | (compare.greater & greater)
            | (compare.unordered & !(less | equal | greater));
        bits |= u32::from(holds) << lane;
    }
    bits
}
