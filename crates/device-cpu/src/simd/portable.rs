//! Plain Rust.

use super::{LANES, Lanes, PANEL, Simd};
use paceline_device::e4m3_value;

/// Plain Rust, any machine. What x86-64 has no instructions for in every processor, and therefore a function call per lane,
/// is not inlined there: it would make these kernels the largest.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

#[cfg(test)]
thread_local! {
    /// What this thread has asked for, so that tests can look.
    pub(crate) static ASKED: std::cell::RefCell<Vec<usize>> = std::cell::RefCell::default();
}

#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

#[inline(always)]
unsafe fn gather<T: Copy, const N: usize>(from: *const T, convert: impl Fn(T) -> f32) -> [f32; N] {
    // SAFETY: the caller vouches for as many elements.
    std::array::from_fn(|i| convert(unsafe { from.add(i).read_unaligned() }))
}

impl Simd for Portable {
    type P = [f32; PANEL];
    const PANEL_REGISTERS: usize = 8;

    fn panel_splat(self, value: f32) -> Self::P {
        [value; PANEL]
    }
    unsafe fn panel_load(self, from: *const f32) -> Self::P {
        // SAFETY: forwarded.
        unsafe { gather(from, |x| x) }
    }
    unsafe fn panel_store(self, value: Self::P, to: *mut f32) {
        // SAFETY: forwarded.
        unsafe { to.cast::<Self::P>().write_unaligned(value) }
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    unsafe fn panel_load_f16(self, from: *const u16) -> Self::P {
        // SAFETY: forwarded.
        unsafe { gather(from, |bits| half::f16::from_bits(bits).to_f32()) }
    }
    unsafe fn panel_load_bf16_pairs(self, from: *const u16) -> [Self::P; 2] {
        let from = from.cast::<[u16; 2]>();
        // SAFETY: forwarded.
        [0, 1].map(|place| unsafe { gather(from, |pair| f32::from_bits(u32::from(pair[place]) << 16)) })
    }
    unsafe fn panel_load_e4m3_pairs(self, from: *const u8) -> [Self::P; 2] {
        let from = from.cast::<[u8; 2]>();
        // SAFETY: forwarded.
        [0, 1].map(|place| unsafe { gather(from, |pair| e4m3_value(pair[place]) / 256.0) })
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    fn panel_mul_add(self, a: Self::P, b: Self::P, c: Self::P) -> Self::P {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
}

impl Lanes for Portable {
    type F = [f32; LANES];

    fn splat(self, value: f32) -> Self::F {
        [value; LANES]
    }
    fn load(self, from: &[f32; LANES]) -> Self::F {
        *from
    }
    fn store(self, value: Self::F, to: &mut [f32; LANES]) {
        *to = value;
    }
    unsafe fn load_ptr(self, from: *const f32) -> Self::F {
        // SAFETY: forwarded.
        unsafe { gather(from, |x| x) }
    }
    unsafe fn store_ptr(self, value: Self::F, to: *mut f32) {
        // SAFETY: forwarded.
        unsafe { to.cast::<Self::F>().write_unaligned(value) }
    }
    fn prefetch(self, at: *const u8) {
        #[cfg(test)]
        ASKED.with_borrow_mut(|asked| asked.push(at as usize));
        // There is no such thing in plain Rust.
        let _ = at;
    }
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a + b)
    }
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a - b)
    }
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a * b)
    }
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a / b)
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    fn round(self, a: Self::F) -> Self::F {
        a.map(f32::round_ties_even)
    }
    fn power_of_two(self, n: Self::F) -> Self::F {
        n.map(|n| f32::from_bits(((n as i32 + 127) << 23) as u32))
    }
    fn select_less(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F {
        std::array::from_fn(|i| if a[i] < b[i] { yes[i] } else { no[i] })
    }
    fn sum(self, l: Self::F) -> f32 {
        ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]))
    }
    fn sums(self, a: [Self::F; LANES]) -> Self::F {
        a.map(|a| self.sum(a))
    }
    fn largest(self, a: Self::F) -> f32 {
        a.into_iter().fold(
            f32::NEG_INFINITY,
            |best, lane| if lane > best { lane } else { best },
        )
    }
    fn to_f16(self, a: Self::F) -> [u16; LANES] {
        a.map(|x| half::f16::from_f32(x).to_bits())
    }
}
