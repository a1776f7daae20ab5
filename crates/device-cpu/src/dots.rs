//! Sums of products of small integers, for the sixteen outputs of a panel side by side.
//!
//! Weights are unsigned bytes, four consecutive inputs of an output in one 32-bit lane. Inputs are signed 16-bit numbers in
//! groups of [`GROUP`]. Whole groups are summed in 32-bit integers, which neither overflow nor round, so every family of
//! instructions gives the same sums whatever it adds first. They become f32 once per group, to nearest even.

mod portable;

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod vnni;

use crate::simd::Instructions;
pub(crate) use portable::Portable;

/// Inputs that share a scale.
pub(crate) const GROUP: usize = 32;

/// Inputs of one 32-bit lane.
pub(crate) const QUAD: usize = 4;

/// Rows of inputs whose codes lie side by side, group by group, as tiles take them.
pub(crate) const TILE_ROWS: usize = 16;

/// Largest input, so that its upper byte is one in two's complement with room for a carry from the lower one.
pub(crate) const LARGEST: i16 = 127 << 8;

/// Operations on a panel's sixteen outputs. Values of this type exist only where the instructions they stand for do.
pub(crate) trait Dots: Copy + Send + Sync + 'static {
    /// Rows of inputs that fit into the registers beside the weights.
    const ROWS: usize;
    /// What [`dot`](Self::dot) takes from every weight.
    const OFFSET: i32 = 0;
    /// Four unsigned bytes per output.
    type Bytes: Copy;
    /// Unfinished integer sums.
    type Sums: Copy;
    /// An f32 per output.
    type F: Copy;
    /// Instructions for many rows at once, where there are any.
    type Tiles: Tiles<Self>;

    fn tiles(self) -> Option<Self::Tiles>;

    /// The largest magnitude of a group's inputs; NaN if one of them is.
    #[inline(always)]
    fn largest(self, inputs: &[f32; GROUP]) -> f32 {
        // As integers, so that NaN counts as the largest.
        let mut largest = 0;
        for input in inputs {
            largest = largest.max(input.to_bits() & 0x7fff_ffff);
        }
        f32::from_bits(largest)
    }
    /// A group's inputs times a factor, to the nearest integers, and the sums of both halves.
    #[inline(always)]
    fn round(self, inputs: &[f32; GROUP], factor: f32) -> ([i16; GROUP], [i32; 2]) {
        // Loops rather than closures: one that is not inlined is compiled without the vector instructions.
        let (mut codes, mut sums) = ([0; GROUP], [0; 2]);
        for (code, input) in codes.iter_mut().zip(inputs) {
            *code = nearest(input * factor);
        }
        for (sum, codes) in sums.iter_mut().zip(codes.as_chunks::<{ GROUP / 2 }>().0) {
            for code in codes {
                *sum += i32::from(*code);
            }
        }
        (codes, sums)
    }
    /// A group of inputs as [`dot`](Self::dot) wants it.
    fn encode(self, inputs: &[i16; GROUP]) -> [u8; 2 * GROUP];

    /// # Safety
    /// 64 readable bytes at `from`.
    unsafe fn load(self, from: *const u8) -> Self::Bytes;
    /// Shifts 32-bit lanes to the right, or to the left if `by` is negative, and keeps the bits of `mask` in each byte.
    fn shift_and(self, bytes: Self::Bytes, by: i32, mask: u8) -> Self::Bytes;
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// The number of the table that each byte, less than 16, stands for.
    fn look_up(self, bytes: Self::Bytes, table: &[u8; 16]) -> Self::Bytes;
    fn zero(self) -> Self::Sums;
    /// Adds the products of inputs `8·pair` to `8·pair + 7` of an encoded group with their weights, four by four.
    ///
    /// # Safety
    /// `2·GROUP` readable bytes at `group`, `pair < GROUP / (2·QUAD)`.
    unsafe fn dot(
        self,
        sums: Self::Sums,
        weights: [Self::Bytes; 2],
        group: *const u8,
        pair: usize,
    ) -> Self::Sums;
    /// The sums, plus `add`, as f32.
    fn total(self, sums: Self::Sums, add: i32) -> Self::F;

    fn splat(self, value: f32) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a·b + c` with one rounding.
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Sixteen IEEE half-precision numbers.
    ///
    /// # Safety
    /// They are readable at `from`; no alignment needed.
    unsafe fn load_f16(self, from: *const u8) -> Self::F;
    /// Sixteen signed bytes.
    ///
    /// # Safety
    /// They are readable at `from`.
    unsafe fn load_i8(self, from: *const u8) -> Self::F;
    /// # Safety
    /// Sixteen writable elements at `to`.
    unsafe fn store(self, value: Self::F, to: *mut f32);
    /// Asks for a cache line that will be needed soon. Any address will do.
    fn prefetch(self, at: *const u8);
}

/// Operations on tiles: a group's inputs in some rows with its weights for a panel's outputs. They work on registers that must
/// be set up before and let go after. Sums of two groups may be under way, an even and an odd one.
///
/// With `FLOATS`, weights and both bytes of inputs become floats, and so do sums; without, they are bytes, and sums integers.
/// Floats are for weights whose sums need no more than 24 bits.
pub(crate) trait Tiles<D: Dots>: Copy {
    /// Sets the registers up for up to [`TILE_ROWS`] rows, and for a group or a part of it.
    fn configure<const FLOATS: bool>(self, rows: usize, inputs: usize);
    /// A group of inputs as floats: upper bytes, and lower ones, in the order in which [`keep`](Self::keep) leaves their weights.
    fn encode(self, inputs: &[i16; GROUP]) -> [[u16; GROUP]; 2];
    /// Keeps the numbers that codes stand for. Those of inputs 0 and 2 of four come first, then 1 and 3, if they are floats.
    ///
    /// # Safety
    /// 64 writable bytes at `to`, the start of a cache line; 128 for floats.
    unsafe fn keep<const FLOATS: bool>(self, codes: D::Bytes, numbers: &Numbers, to: *mut u8);
    /// Starts sums of products of as many rows and inputs as was configured.
    ///
    /// # Safety
    /// Upper and lower bytes of as many rows at `inputs`, or floats, 64 bytes apart, in the order of weights; and the numbers they
    /// are to be multiplied with at `weights`.
    unsafe fn start<const FLOATS: bool>(self, odd: bool, inputs: [*const u8; 2], weights: *const u8);
    /// Writes the sums that were started.
    ///
    /// # Safety
    /// Room for [`TILE_SUMS`] at `sums`, the start of a cache line.
    unsafe fn finish<const FLOATS: bool>(self, odd: bool, sums: *mut i32);
    /// The sums of a row as f32.
    ///
    /// # Safety
    /// [`TILE_SUMS`] at `sums`, the start of a cache line, and `row < TILE_ROWS`.
    unsafe fn total<const FLOATS: bool>(self, sums: *const i32, row: usize) -> D::F;
    /// Numbers of a panel's outputs.
    ///
    /// # Safety
    /// Sixteen at `from`, the start of a cache line.
    unsafe fn load(self, from: *const f32) -> D::F;
    /// Lets the registers go.
    fn release(self);
}

/// What codes stand for.
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "other machines have no tiles")
)]
pub(crate) struct Numbers {
    /// What every code is too large by.
    pub(crate) zero: u8,
    /// Whether all codes are below 32.
    pub(crate) few: bool,
    /// The number of each code as bf16.
    pub(crate) floats: [u16; 64],
}

impl Numbers {
    /// Codes below `codes`, which are too large by `zero`.
    pub(crate) const fn new(codes: i32, zero: i32) -> Self {
        let mut floats = [0; 64];
        let mut code = 0;
        while code < 64 {
            floats[code as usize] = bf16((code - zero) as f32);
            code += 1;
        }
        Self {
            zero: zero as u8,
            few: codes <= 32,
            floats,
        }
    }
}

/// A number that is exact in bf16.
const fn bf16(value: f32) -> u16 {
    (value.to_bits() >> 16) as u16
}

/// Numbers that [`Tiles::finish`] needs room for: a panel's outputs for each row and byte of inputs.
pub(crate) const TILE_SUMS: usize = 2 * TILE_ROWS * crate::weight::PANEL;

/// No such instructions.
#[derive(Clone, Copy)]
pub(crate) enum NoTiles {}

impl<D: Dots> Tiles<D> for NoTiles {
    fn configure<const FLOATS: bool>(self, _rows: usize, _inputs: usize) {
        match self {}
    }
    fn encode(self, _inputs: &[i16; GROUP]) -> [[u16; GROUP]; 2] {
        match self {}
    }
    unsafe fn keep<const FLOATS: bool>(self, _codes: D::Bytes, _numbers: &Numbers, _to: *mut u8) {
        match self {}
    }
    unsafe fn start<const FLOATS: bool>(self, _odd: bool, _inputs: [*const u8; 2], _weights: *const u8) {
        match self {}
    }
    unsafe fn finish<const FLOATS: bool>(self, _odd: bool, _sums: *mut i32) {
        match self {}
    }
    unsafe fn total<const FLOATS: bool>(self, _sums: *const i32, _row: usize) -> D::F {
        match self {}
    }
    unsafe fn load(self, _from: *const f32) -> D::F {
        match self {}
    }
    fn release(self) {
        match self {}
    }
}

/// A computation to be run with the best instructions of the machine; as [`simd::Kernel`](crate::simd::Kernel), with
/// everything below `run` inlined.
pub(crate) trait DotKernel {
    fn run<D: Dots>(self, dots: D);
}

/// Runs a kernel.
pub(crate) fn run<K: DotKernel>(instructions: Instructions, kernel: K) {
    match instructions {
        Instructions::Portable => kernel.run(Portable),
        // SAFETY: the values prove that the instructions are there.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2(simd) => unsafe {
            match avx2::AvxVnni::from(simd) {
                Some(vnni) => avx2::run_vnni(kernel, vnni),
                None => avx2::run(kernel, simd),
            }
        },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the value proves that the instructions are there.
        Instructions::Neon(neon) => unsafe {
            match neon::I8mm::from(neon) {
                Some(i8mm) => neon::run_i8mm(kernel, i8mm),
                None => neon::run(kernel, neon),
            }
        },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512(simd) => unsafe {
            match vnni::Vnni::from(simd) {
                Some(vnni) => vnni::run(kernel, vnni),
                None => avx2::run(kernel, simd.avx2()),
            }
        },
    }
}

/// To the nearest integer, ties to even: adding this number leaves no bits for fractions.
#[inline(always)]
fn nearest(value: f32) -> i16 {
    const INTEGERS: f32 = 12_582_912.0;
    (value + INTEGERS).to_bits().wrapping_sub(INTEGERS.to_bits()) as i16
}

/// All upper bytes of inputs, then all lower ones. As those count from -128 on, half of one is carried.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn encode_planes(inputs: &[i16; GROUP]) -> [u8; 2 * GROUP] {
    let mut planes = [0; 2 * GROUP];
    let (upper, lower) = planes.split_at_mut(GROUP);
    for ((input, upper), lower) in inputs.iter().zip(upper).zip(lower) {
        *upper = (input.wrapping_add(128) >> 8) as u8;
        *lower = *input as u8;
    }
    planes
}

/// Two bytes per input, in the order in which bytes 0 and 2, then 1 and 3 of a lane can be widened.
#[inline(always)]
fn encode_words(inputs: &[i16; GROUP]) -> [u8; 2 * GROUP] {
    let mut words = [0; 2 * GROUP];
    for (quad, to) in inputs
        .as_chunks::<QUAD>()
        .0
        .iter()
        .zip(words.as_chunks_mut::<{ 2 * QUAD }>().0)
    {
        for (place, from) in [0, 2, 1, 3].into_iter().enumerate() {
            to[2 * place..][..2].copy_from_slice(&quad[from].to_le_bytes());
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weight::PANEL;
    use std::any::type_name;

    struct Name<'a>(&'a mut &'static str);

    impl DotKernel for Name<'_> {
        fn run<D: Dots>(self, _dots: D) {
            *self.0 = type_name::<D>();
        }
    }

    /// All of them give the same sums, so nothing else would show that a better one is left out.
    #[test]
    fn every_machine_runs_the_best_it_has() {
        for instructions in Instructions::all() {
            let mut name = "";
            run(instructions, Name(&mut name));
            let expected = match instructions {
                Instructions::Portable => "::Portable",
                #[cfg(target_arch = "x86_64")]
                Instructions::Avx512(simd) if simd.vnni() => "::Vnni",
                #[cfg(target_arch = "x86_64")]
                Instructions::Avx2(simd) if simd.vnni() => "::AvxVnni",
                #[cfg(target_arch = "x86_64")]
                Instructions::Avx2(_) | Instructions::Avx512(_) => "::Avx2",
                #[cfg(target_arch = "aarch64")]
                Instructions::Neon(neon) if neon.i8mm() => "::I8mm",
                #[cfg(target_arch = "aarch64")]
                Instructions::Neon(_) => "::Neon",
            };
            assert!(name.ends_with(expected), "{instructions:?} runs {name}");
        }
        #[cfg(target_arch = "x86_64")]
        {
            let has = |vnni: fn(Instructions) -> bool| Instructions::all().into_iter().any(vnni);
            assert_eq!(
                has(|family| matches!(family, Instructions::Avx512(simd) if simd.vnni())),
                is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512vl")
            );
            assert_eq!(
                has(|family| matches!(family, Instructions::Avx2(simd) if simd.vnni())),
                is_x86_feature_detected!("avxvnni")
            );
        }
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        {
            let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap();
            let wanted = ["avx512_vnni", "amx_tile", "amx_int8", "amx_bf16"];
            let told = wanted
                .iter()
                .all(|flag| flags.split_whitespace().any(|told| told == *flag));
            assert_eq!(Instructions::detect().has_tiles(), told);
        }
    }

    /// Sixteen weights of each input of a group, and the sums of their products with it.
    struct Sums<'a> {
        weights: &'a [u8; GROUP * PANEL],
        inputs: &'a [i16; GROUP],
        out: &'a mut [f32; PANEL],
    }

    impl DotKernel for Sums<'_> {
        #[inline(always)]
        fn run<D: Dots>(self, d: D) {
            let (inputs, mut sums) = (d.encode(self.inputs), d.zero());
            let add = D::OFFSET * self.inputs.iter().map(|input| i32::from(*input)).sum::<i32>();
            // SAFETY: there is a vector of weights for each quad, and sixteen outputs.
            unsafe {
                for pair in 0..GROUP / (2 * QUAD) {
                    let from = self.weights.as_ptr().add(2 * pair * QUAD * PANEL);
                    let weights = [d.load(from), d.load(from.add(QUAD * PANEL))];
                    sums = d.dot(sums, weights, inputs.as_ptr(), pair);
                }
                d.store(d.total(sums, add), self.out.as_mut_ptr());
            }
        }
    }

    /// The largest numbers, too: nothing saturates and nothing overflows.
    #[test]
    fn sums_of_products_are_exact() {
        let mut random = 1_u64;
        let mut byte = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 56) as u8
        };
        for round in 0..64 {
            let mut weights = [255; GROUP * PANEL];
            let mut inputs = [if round == 0 { LARGEST } else { -LARGEST }; GROUP];
            if round > 1 {
                weights.fill_with(&mut byte);
                inputs.fill_with(|| i16::from_le_bytes([byte(), byte()]).clamp(-LARGEST, LARGEST));
            }
            let expected: [f32; PANEL] = std::array::from_fn(|output| {
                let weight = |input: usize| weights[(input / QUAD * PANEL + output) * QUAD + input % QUAD];
                let products = (0..GROUP).map(|input| i64::from(weight(input)) * i64::from(inputs[input]));
                products.sum::<i64>() as f32
            });
            let check = |family: &str, with: &dyn Fn(Sums<'_>)| {
                let mut out = [0.0; PANEL];
                with(Sums {
                    weights: &weights,
                    inputs: &inputs,
                    out: &mut out,
                });
                assert!(
                    out.map(f32::to_bits) == expected.map(f32::to_bits),
                    "{family}, round {round}"
                );
            };
            for instructions in Instructions::all() {
                check(instructions.name(), &|sums| run(instructions, sums));
            }
            #[cfg(target_arch = "x86_64")]
            if let Some(twin) = avx2::Twin::detect() {
                // SAFETY: the value proves that the instructions are there.
                check("AVX-VNNI's twin", &|sums| unsafe { avx2::run_twin(sums, twin) });
            }
        }
    }
}
