//! Floating numbers. Multiplications and additions round as the instruction says; approximations are within what is documented.

use super::Turn;
use crate::kernel::{Float, Function, Inst};

/// What every operation makes of what is no number.
const NAN: u32 = 0x7fff_ffff;

#[inline(always)]
fn flushed(x: f32, flush: bool) -> f32 {
    if flush && x.abs() < f32::MIN_POSITIVE {
        0.0_f32.copysign(x)
    } else {
        x
    }
}

/// A result's bits: what is no number is always the same one.
#[inline(always)]
fn bits(x: f32) -> u32 {
    if x.is_nan() { NAN } else { x.to_bits() }
}

/// The sum of two numbers and what rounding has taken from it.
#[inline(always)]
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let part = sum - a;
    (sum, (a - (sum - part)) + (b - part))
}

/// The number that comes before another of the same sign, towards zero, or behind it.
#[inline(always)]
fn beside(x: f32, away: bool) -> f32 {
    let bits = x.to_bits();
    f32::from_bits(if away {
        bits.wrapping_add(1)
    } else {
        bits.wrapping_sub(1)
    })
}

/// `sum + rest`, rounded down.
#[inline(always)]
fn rounded_down(sum: f64, rest: f64) -> f32 {
    let near = sum as f32;
    let above = f64::from(near) > sum || (f64::from(near) == sum && rest < 0.0);
    if !above || near == f32::NEG_INFINITY {
        return near;
    }
    if near == 0.0 {
        return -f32::from_bits(1);
    }
    beside(near, near < 0.0)
}

/// `sum + rest`, rounded towards zero.
#[inline(always)]
fn rounded_to_zero(sum: f64, rest: f64) -> f32 {
    let near = sum as f32;
    let wide = f64::from(near);
    let far = wide.abs() > sum.abs() || (wide == sum && rest != 0.0 && (rest < 0.0) == (sum > 0.0));
    if far && near != 0.0 {
        beside(near, false)
    } else {
        near
    }
}

/// `a * b + c`, rounded down.
#[inline(always)]
fn fma_down(a: f32, b: f32, c: f32) -> f32 {
    let (sum, rest) = two_sum(f64::from(a) * f64::from(b), f64::from(c));
    if sum.is_finite() {
        rounded_down(sum, rest)
    } else {
        sum as f32
    }
}

#[inline(always)]
fn add_to_zero(a: f32, b: f32) -> f32 {
    let (sum, rest) = two_sum(f64::from(a), f64::from(b));
    if sum.is_finite() {
        rounded_to_zero(sum, rest)
    } else {
        sum as f32
    }
}

/// The smaller number; -0 is below 0, and what is no number is left out.
#[inline(always)]
fn smaller(a: f32, b: f32) -> f32 {
    if a.is_nan() {
        b
    } else if b.is_nan() {
        a
    } else if a == b {
        f32::from_bits(a.to_bits() | b.to_bits())
    } else if a < b {
        a
    } else {
        b
    }
}

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a.is_nan() {
        b
    } else if b.is_nan() {
        a
    } else if a == b {
        f32::from_bits(a.to_bits() & b.to_bits())
    } else if a > b {
        a
    } else {
        b
    }
}

/// Two to a power, within 2^-30.
#[inline(always)]
pub(super) fn exp2(x: f32) -> f32 {
    // A Taylor series of e^y where |y| is at most half of ln 2.
    const FACTORS: [f64; 10] = [
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5_040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ];
    let clamped = f64::from(x.clamp(-200.0, 200.0));
    let whole = clamped.round_ties_even();
    let y = (clamped - whole) * std::f64::consts::LN_2;
    let mut sum = 0.0;
    for factor in FACTORS {
        sum = sum * y + factor;
    }
    let power = f64::from_bits(((1023 + whole as i32) as u64) << 52);
    (sum * power) as f32
}

/// A number of sixteen bits, as bf16.
#[inline(always)]
pub(super) fn bf16(x: u32) -> f32 {
    f32::from_bits(x << 16)
}

/// Rounded to bf16.
#[inline(always)]
pub(super) fn to_bf16(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if x.is_nan() { 0x7fff } else { rounded }
}

/// `a * b + c` of numbers of bf16, rounded once.
#[inline(always)]
fn fma_bf16(a: u32, b: u32, c: u32) -> u32 {
    let product = f64::from(bf16(a & 0xffff)) * f64::from(bf16(b & 0xffff));
    let (sum, rest) = two_sum(product, f64::from(bf16(c & 0xffff)));
    // Rounded to odd first, so that rounding again is as rounding once.
    let odd = if rest != 0.0 && rest.is_finite() {
        let bits = sum.to_bits();
        let inward = (rest < 0.0) == (sum > 0.0);
        f64::from_bits(if bits & 1 == 1 {
            bits
        } else if inward {
            bits - 1
        } else {
            bits + 1
        })
    } else {
        sum
    };
    let near = odd as f32;
    let wide = f64::from(near);
    let bits = near.to_bits();
    let single = if wide == odd || !near.is_finite() || bits & 1 == 1 {
        near
    } else {
        beside(near, wide.abs() < odd.abs())
    };
    to_bf16(single)
}

impl Turn<'_> {
    #[inline(always)]
    fn floats(&mut self, flush: bool, inst: &Inst, mask: u32, f: impl Fn(f32, f32) -> f32) {
        self.word_of_two(inst, mask, |a, b| {
            let (a, b) = (
                flushed(f32::from_bits(a), flush),
                flushed(f32::from_bits(b), flush),
            );
            bits(flushed(f(a, b), flush))
        });
    }

    #[cfg_attr(
        target_arch = "x86_64",
        target_feature(enable = "avx2,fma,f16c,popcnt,lzcnt,bmi1,bmi2")
    )]
    pub(super) fn float(&mut self, op: Float, flush: bool, inst: &Inst, mask: u32) {
        match op {
            Float::Add => self.floats(flush, inst, mask, |a, b| a + b),
            Float::AddToZero => self.floats(flush, inst, mask, add_to_zero),
            Float::Sub => self.floats(flush, inst, mask, |a, b| a - b),
            Float::Mul => self.floats(flush, inst, mask, |a, b| a * b),
            Float::Div => self.floats(flush, inst, mask, |a, b| a / b),
            Float::Min => self.floats(flush, inst, mask, smaller),
            Float::Max => self.floats(flush, inst, mask, larger),
        }
    }

    #[cfg_attr(
        target_arch = "x86_64",
        target_feature(enable = "avx2,fma,f16c,popcnt,lzcnt,bmi1,bmi2")
    )]
    pub(super) fn fma(&mut self, down: bool, flush: bool, inst: &Inst, mask: u32) {
        let number = |x: u32| flushed(f32::from_bits(x), flush);
        if down {
            self.word_of_three(inst, mask, |a, b, c| {
                bits(flushed(fma_down(number(a), number(b), number(c)), flush))
            });
        } else if flush {
            self.word_of_three(inst, mask, |a, b, c| {
                bits(flushed(number(a).mul_add(number(b), number(c)), flush))
            });
        } else {
            self.word_of_three(inst, mask, |a, b, c| {
                bits(f32::from_bits(a).mul_add(f32::from_bits(b), f32::from_bits(c)))
            });
        }
    }

    #[cfg_attr(
        target_arch = "x86_64",
        target_feature(enable = "avx2,fma,f16c,popcnt,lzcnt,bmi1,bmi2")
    )]
    pub(super) fn fma_pair(&mut self, inst: &Inst, mask: u32) {
        self.word_of_three(inst, mask, |a, b, c| {
            fma_bf16(a >> 16, b >> 16, c >> 16) << 16 | fma_bf16(a, b, c)
        });
    }

    #[cfg_attr(
        target_arch = "x86_64",
        target_feature(enable = "avx2,fma,f16c,popcnt,lzcnt,bmi1,bmi2")
    )]
    pub(super) fn float_double(&mut self, op: Float, inst: &Inst, mask: u32) {
        self.double_of_two(inst, mask, |a, b| {
            let (a, b) = (f64::from_bits(a), f64::from_bits(b));
            let result = match op {
                Float::Add | Float::AddToZero => a + b,
                Float::Sub => a - b,
                Float::Mul => a * b,
                Float::Div => a / b,
                Float::Min => a.min(b),
                Float::Max => a.max(b),
            };
            result.to_bits()
        });
    }

    #[cfg_attr(
        target_arch = "x86_64",
        target_feature(enable = "avx2,fma,f16c,popcnt,lzcnt,bmi1,bmi2")
    )]
    pub(super) fn function(&mut self, function: Function, flush: bool, inst: &Inst, mask: u32) {
        let number = |x: u32| flushed(f32::from_bits(x), flush);
        let result = |x: f32| bits(flushed(x, flush));
        match function {
            Function::Negative => self.word_of_one(inst, mask, |x| x ^ 0x8000_0000),
            Function::Absolute => self.word_of_one(inst, mask, |x| x & 0x7fff_ffff),
            Function::Reciprocal => self.word_of_one(inst, mask, |x| result(1.0 / number(x))),
            Function::Root => self.word_of_one(inst, mask, |x| result(number(x).sqrt())),
            Function::ReciprocalRoot => {
                self.word_of_one(inst, mask, |x| result((1.0 / f64::from(number(x)).sqrt()) as f32));
            }
            Function::Exp2 => self.word_of_one(inst, mask, |x| {
                let x = number(x);
                if x.is_nan() { NAN } else { result(exp2(x)) }
            }),
            Function::Log2 => self.word_of_one(inst, mask, |x| result(f64::from(number(x)).log2() as f32)),
        }
    }
}
