//! Conversions between types of numbers.

use super::Turn;
use super::floats::{bf16, to_bf16};
use crate::kernel::{Conversion, Factor, Inst, Rounding, Type};
use crate::warp::LANES;
use half::f16;

/// A number on its way from a type to another: whole ones keep all of their bits.
#[derive(Clone, Copy)]
enum Number {
    Whole(i128),
    Float(f64),
}

fn bounds(kind: Type) -> Option<(i128, i128, u32)> {
    Some(match kind {
        Type::U8 => (0, 0xff, 8),
        Type::S8 => (-0x80, 0x7f, 8),
        Type::U16 => (0, 0xffff, 16),
        Type::S16 => (-0x8000, 0x7fff, 16),
        Type::U32 => (0, 0xffff_ffff, 32),
        Type::S32 => (-0x8000_0000, 0x7fff_ffff, 32),
        Type::U64 => (0, i128::from(u64::MAX), 64),
        Type::S64 => (i128::from(i64::MIN), i128::from(i64::MAX), 64),
        _ => return None,
    })
}

fn is_double(kind: Type) -> bool {
    matches!(kind, Type::U64 | Type::S64 | Type::F64)
}

fn read(kind: Type, bits: u64) -> Number {
    match kind {
        Type::F16 => Number::Float(f16::from_bits(bits as u16).to_f64()),
        Type::Bf16 => Number::Float(f64::from(bf16(bits as u32 & 0xffff))),
        Type::F32 => Number::Float(f64::from(f32::from_bits(bits as u32))),
        Type::F64 => Number::Float(f64::from_bits(bits)),
        Type::U8 => Number::Whole(i128::from(bits as u8)),
        Type::S8 => Number::Whole(i128::from(bits as i8)),
        Type::U16 => Number::Whole(i128::from(bits as u16)),
        Type::S16 => Number::Whole(i128::from(bits as i16)),
        Type::U32 => Number::Whole(i128::from(bits as u32)),
        Type::S32 => Number::Whole(i128::from(bits as i32)),
        Type::U64 => Number::Whole(i128::from(bits)),
        Type::S64 => Number::Whole(i128::from(bits as i64)),
    }
}

fn to_whole(x: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::Nearest => x.round_ties_even(),
        Rounding::Zero => x.trunc(),
        Rounding::Down => x.floor(),
        Rounding::Up => x.ceil(),
    }
}

/// What a number is in another type.
fn converted(by: Conversion, bits: u64) -> u64 {
    let number = read(by.from, bits);
    if let Some((low, high, _)) = bounds(by.to) {
        let whole = match number {
            Number::Float(x) if x.is_nan() => 0,
            // From a floating number it always saturates.
            Number::Float(x) => (to_whole(x, by.rounding) as i128).clamp(low, high),
            Number::Whole(x) if by.saturates => x.clamp(low, high),
            Number::Whole(x) => x,
        };
        // Registers of words have nothing above their bits; signed bytes are spread, as loads do it.
        let spread = matches!(by.to, Type::S8) || is_double(by.to);
        let mask = match by.to {
            Type::U8 => 0xff,
            _ if spread => u128::MAX,
            Type::U16 | Type::S16 => 0xffff,
            _ => 0xffff_ffff,
        };
        return (whole as u128 & mask) as u64;
    }
    if let (Number::Whole(x), Type::F32) = (number, by.to) {
        return u64::from((x as f32).to_bits());
    }
    let mut x = match number {
        Number::Whole(x) => x as f64,
        Number::Float(x) => x,
    };
    if by.whole {
        x = to_whole(x, by.rounding);
    }
    if by.saturates {
        x = if x.is_nan() { 0.0 } else { x.clamp(0.0, 1.0) };
    }
    match by.to {
        Type::F16 if x.is_nan() => 0x7fff,
        Type::F16 => u64::from(f16::from_f32(x as f32).to_bits()),
        Type::Bf16 => u64::from(to_bf16(x as f32)),
        Type::F32 if x.is_nan() => 0x7fff_ffff,
        Type::F32 => u64::from((x as f32).to_bits()),
        _ => x.to_bits(),
    }
}

/// Rounded to f16.
#[inline(always)]
fn to_f16(x: f32) -> u32 {
    if x.is_nan() {
        0x7fff
    } else {
        u32::from(f16::from_f32(x).to_bits())
    }
}

impl Turn<'_> {
    #[cfg_attr(
        target_arch = "x86_64",
        target_feature(enable = "avx2,fma,f16c,popcnt,lzcnt,bmi1,bmi2")
    )]
    pub(super) fn convert(&mut self, by: Conversion, inst: &Inst, mask: u32) {
        let plain = !by.saturates && !by.whole;
        let (to, from) = (inst.to[0], inst.from[0]);
        let mut words = [0_u32; LANES];
        let mut doubles = [0_u64; LANES];
        match (by.from, by.to) {
            (Type::U32, Type::U64 | Type::S64) if plain => {
                let from = self.words(from);
                (0..LANES).for_each(|lane| doubles[lane] = u64::from(from[lane]));
                self.keep_doubles(to, &doubles, mask);
            }
            (Type::S32, Type::U64 | Type::S64) if plain => {
                let from = self.words(from);
                (0..LANES).for_each(|lane| doubles[lane] = i64::from(from[lane] as i32) as u64);
                self.keep_doubles(to, &doubles, mask);
            }
            (Type::U64 | Type::S64, Type::U32 | Type::S32) if plain => {
                let from = self.doubles(from);
                (0..LANES).for_each(|lane| words[lane] = from[lane] as u32);
                self.keep_words(to, &words, mask);
            }
            (Type::S32, Type::F32) if plain => self.word_of_one(inst, mask, |x| (x as i32 as f32).to_bits()),
            (Type::U32 | Type::U16, Type::F32) if plain => {
                self.word_of_one(inst, mask, |x| (x as f32).to_bits());
            }
            (Type::Bf16, Type::F32) if plain => self.word_of_one(inst, mask, |x| x << 16),
            (Type::F32, Type::Bf16) if plain => self.word_of_one(inst, mask, |x| to_bf16(f32::from_bits(x))),
            (Type::F32, Type::F32) if by.saturates => self.word_of_one(inst, mask, |x| {
                let x = f32::from_bits(x);
                // Not `clamp`: what is no number becomes zero.
                if x > 0.0 { x.min(1.0).to_bits() } else { 0 }
            }),
            _ => {
                for lane in 0..LANES {
                    let bits = if is_double(by.from) {
                        self.doubles(from)[lane]
                    } else {
                        u64::from(self.words(from)[lane])
                    };
                    doubles[lane] = converted(by, bits);
                    words[lane] = doubles[lane] as u32;
                }
                if is_double(by.to) {
                    self.keep_doubles(to, &doubles, mask);
                } else {
                    self.keep_words(to, &words, mask);
                }
            }
        }
    }

    /// Two numbers to the halves of a word; the first is the upper one.
    #[cfg_attr(
        target_arch = "x86_64",
        target_feature(enable = "avx2,fma,f16c,popcnt,lzcnt,bmi1,bmi2")
    )]
    pub(super) fn round_pair(&mut self, factor: Factor, inst: &Inst, mask: u32) {
        let number = f32::from_bits;
        if factor == Factor::Bf16 {
            self.word_of_two(inst, mask, |a, b| to_bf16(number(a)) << 16 | to_bf16(number(b)));
        } else {
            self.word_of_two(inst, mask, |a, b| to_f16(number(a)) << 16 | to_f16(number(b)));
        }
    }
}
