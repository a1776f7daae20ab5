//! How panels of quantised weights are laid out and read.
//!
//! | type | per block of a panel |
//! |---|---|
//! | Q8_0, Q5_0, Q4_0, IQ4_NL | 32 inputs: 16 f16 scales, codes |
//! | Q4_1, Q5_1 | 32 inputs: 16 f16 scales, 16 f16 minima, codes |
//! | Q4_K, Q5_K | 256 inputs: 16 f16 scales, 16 f16 scales of minima, then 8 times 16 scales, 16 minima, codes |
//! | Q2_K | the same with 16 scales of 16 inputs, 16 of the next, minima likewise, codes |
//! | IQ4_XS | 256 inputs: 16 f16 scales, then 8 times 16 scales, codes |
//! | Q3_K, Q6_K | the same with 16 scales of 16 inputs, 16 of the next, codes |
//!
//! Codes of 32 inputs are vectors of 64 bytes, four bytes per output, and each byte is one input of it: four vectors of
//! nibbles, whose low ones are inputs `8v` to `8v + 3` and whose high ones are the four behind them; for five and six bits
//! one and two vectors more with the upper bits, inputs `4q` to `4q + 3` at bits `q` and `2(q mod 4)`; two vectors like the
//! latter for two bits; or eight vectors of bytes. They are unsigned: what the type subtracts from them, [`Codes::ZERO`],
//! is taken from the sums instead.

use super::blocks::NON_LINEAR;
use super::{PANEL, Segment};
use crate::dots::{Dots, GROUP, LARGEST, Portable, QUAD};
use paceline_types::DType;
use std::marker::PhantomData;

/// Bytes of a vector of codes.
const VECTOR: usize = QUAD * PANEL;

/// Bytes of sixteen f16 numbers.
const HALVES: usize = 2 * PANEL;

/// How codes of [`GROUP`] inputs are kept.
pub(crate) trait Codes: Send + Sync + 'static {
    /// Bytes of a group.
    const BYTES: usize;
    /// What every code is too large by.
    const ZERO: i32;
    /// Codes are below this.
    const END: i32;

    /// The codes of inputs `8·pair` to `8·pair + 7`, four by four.
    ///
    /// # Safety
    /// `BYTES` readable bytes at `codes`.
    unsafe fn pair<D: Dots>(d: D, codes: *const u8, pair: usize) -> [D::Bytes; 2];

    /// The code of one input and output, as it is kept.
    fn get(codes: &[u8], output: usize, input: usize) -> u8;

    /// Keeps the codes of an output. The bytes were zero before.
    fn put(codes: &mut [u8], output: usize, group: &[u8; GROUP]);
}

/// Where the byte of an input and output is, vectors of four inputs each.
fn byte(output: usize, input: usize) -> usize {
    input / QUAD * VECTOR + QUAD * output + input % QUAD
}

/// Where the nibble of an input and output is, and how far up.
fn nibble(output: usize, input: usize) -> (usize, usize) {
    let quad = input / QUAD;
    (byte(output, quad / 2 * QUAD + input % QUAD), quad % 2 * 4)
}

/// Where the bits of an input and output are, and how far up, where a byte has those of `per_byte` inputs.
fn bits(output: usize, input: usize, per_byte: usize) -> (usize, usize) {
    let quad = input / QUAD;
    let at = byte(output, quad / per_byte * QUAD + input % QUAD);
    (at, quad % per_byte * (8 / per_byte))
}

/// The same behind nibbles.
fn upper(output: usize, input: usize, per_byte: usize) -> (usize, usize) {
    let (at, shift) = bits(output, input, per_byte);
    (4 * VECTOR + at, shift)
}

/// A byte per code.
pub(crate) struct Bytes<const ZERO: i32>;
/// Four bits per code.
pub(crate) struct Nibbles<const ZERO: i32>;
/// Five bits per code.
pub(crate) struct Fives<const ZERO: i32>;
/// Six bits per code.
pub(crate) struct Sixes<const ZERO: i32>;
/// Two bits per code.
pub(crate) struct Twos;
/// Four bits that choose one of sixteen numbers.
pub(crate) struct NonLinear;

impl NonLinear {
    /// The numbers of IQ4_NL and IQ4_XS, made unsigned.
    const TABLE: [u8; 16] = {
        let mut table = [0; 16];
        let mut index = 0;
        while index < 16 {
            table[index] = (NON_LINEAR[index] as i16 + Self::ZERO as i16) as u8;
            index += 1;
        }
        table
    };
}

impl<const ZERO: i32> Codes for Bytes<ZERO> {
    const BYTES: usize = GROUP * PANEL;
    const ZERO: i32 = ZERO;
    const END: i32 = 256;

    #[inline(always)]
    unsafe fn pair<D: Dots>(d: D, codes: *const u8, pair: usize) -> [D::Bytes; 2] {
        // SAFETY: both vectors are inside the group.
        unsafe {
            let at = codes.add(2 * pair * VECTOR);
            [d.load(at), d.load(at.add(VECTOR))]
        }
    }

    fn get(codes: &[u8], output: usize, input: usize) -> u8 {
        codes[byte(output, input)]
    }

    fn put(codes: &mut [u8], output: usize, group: &[u8; GROUP]) {
        for (input, code) in group.iter().enumerate() {
            codes[byte(output, input)] = *code;
        }
    }
}

impl<const ZERO: i32> Codes for Nibbles<ZERO> {
    const BYTES: usize = GROUP / 2 * PANEL;
    const ZERO: i32 = ZERO;
    const END: i32 = 16;

    #[inline(always)]
    unsafe fn pair<D: Dots>(d: D, codes: *const u8, pair: usize) -> [D::Bytes; 2] {
        // SAFETY: the vector is inside the group.
        let nibbles = unsafe { d.load(codes.add(pair * VECTOR)) };
        [d.shift_and(nibbles, 0, 15), d.shift_and(nibbles, 4, 15)]
    }

    fn get(codes: &[u8], output: usize, input: usize) -> u8 {
        let (at, shift) = nibble(output, input);
        codes[at] >> shift & 15
    }

    fn put(codes: &mut [u8], output: usize, group: &[u8; GROUP]) {
        for (input, code) in group.iter().enumerate() {
            let (at, shift) = nibble(output, input);
            codes[at] |= (code & 15) << shift;
        }
    }
}

impl<const ZERO: i32> Codes for Fives<ZERO> {
    const BYTES: usize = Nibbles::<ZERO>::BYTES + VECTOR;
    const ZERO: i32 = ZERO;
    const END: i32 = 32;

    #[inline(always)]
    unsafe fn pair<D: Dots>(d: D, codes: *const u8, pair: usize) -> [D::Bytes; 2] {
        // SAFETY: the vectors are inside the group.
        unsafe {
            let [low, high] = Nibbles::<ZERO>::pair(d, codes, pair);
            let fifth = d.load(codes.add(4 * VECTOR));
            let shift = 2 * pair as i32 - 4;
            [
                d.or(low, d.shift_and(fifth, shift, 16)),
                d.or(high, d.shift_and(fifth, shift + 1, 16)),
            ]
        }
    }

    fn get(codes: &[u8], output: usize, input: usize) -> u8 {
        let (at, shift) = upper(output, input, 8);
        Nibbles::<ZERO>::get(codes, output, input) | (codes[at] >> shift & 1) << 4
    }

    fn put(codes: &mut [u8], output: usize, group: &[u8; GROUP]) {
        Nibbles::<ZERO>::put(codes, output, group);
        for (input, code) in group.iter().enumerate() {
            let (at, shift) = upper(output, input, 8);
            codes[at] |= (code >> 4 & 1) << shift;
        }
    }
}

impl<const ZERO: i32> Codes for Sixes<ZERO> {
    const BYTES: usize = Nibbles::<ZERO>::BYTES + 2 * VECTOR;
    const ZERO: i32 = ZERO;
    const END: i32 = 64;

    #[inline(always)]
    unsafe fn pair<D: Dots>(d: D, codes: *const u8, pair: usize) -> [D::Bytes; 2] {
        // SAFETY: the vectors are inside the group.
        unsafe {
            let [low, high] = Nibbles::<ZERO>::pair(d, codes, pair);
            let above = d.load(codes.add((4 + pair / 2) * VECTOR));
            let shift = (pair % 2 * 4) as i32 - 4;
            [
                d.or(low, d.shift_and(above, shift, 0x30)),
                d.or(high, d.shift_and(above, shift + 2, 0x30)),
            ]
        }
    }

    fn get(codes: &[u8], output: usize, input: usize) -> u8 {
        let (at, shift) = upper(output, input, 4);
        Nibbles::<ZERO>::get(codes, output, input) | (codes[at] >> shift & 3) << 4
    }

    fn put(codes: &mut [u8], output: usize, group: &[u8; GROUP]) {
        Nibbles::<ZERO>::put(codes, output, group);
        for (input, code) in group.iter().enumerate() {
            let (at, shift) = upper(output, input, 4);
            codes[at] |= (code >> 4 & 3) << shift;
        }
    }
}

impl Codes for Twos {
    const BYTES: usize = 2 * VECTOR;
    const ZERO: i32 = 0;
    const END: i32 = 4;

    #[inline(always)]
    unsafe fn pair<D: Dots>(d: D, codes: *const u8, pair: usize) -> [D::Bytes; 2] {
        // SAFETY: the vector is inside the group.
        let codes = unsafe { d.load(codes.add(pair / 2 * VECTOR)) };
        let shift = (pair % 2 * 4) as i32;
        [d.shift_and(codes, shift, 3), d.shift_and(codes, shift + 2, 3)]
    }

    fn get(codes: &[u8], output: usize, input: usize) -> u8 {
        let (at, shift) = bits(output, input, 4);
        codes[at] >> shift & 3
    }

    fn put(codes: &mut [u8], output: usize, group: &[u8; GROUP]) {
        for (input, code) in group.iter().enumerate() {
            let (at, shift) = bits(output, input, 4);
            codes[at] |= (code & 3) << shift;
        }
    }
}

impl Codes for NonLinear {
    const BYTES: usize = Nibbles::<0>::BYTES;
    const ZERO: i32 = 128;
    const END: i32 = 256;

    #[inline(always)]
    unsafe fn pair<D: Dots>(d: D, codes: *const u8, pair: usize) -> [D::Bytes; 2] {
        // SAFETY: as the caller promises.
        let [low, high] = unsafe { Nibbles::<0>::pair(d, codes, pair) };
        [d.look_up(low, &Self::TABLE), d.look_up(high, &Self::TABLE)]
    }

    fn get(codes: &[u8], output: usize, input: usize) -> u8 {
        Self::TABLE[usize::from(Nibbles::<0>::get(codes, output, input))]
    }

    fn put(codes: &mut [u8], output: usize, group: &[u8; GROUP]) {
        // Every code is a number of the table; what only fills a panel up is not, and has a scale of zero.
        let index = |code: u8| Self::TABLE.iter().position(|number| *number >= code).unwrap_or(0);
        Nibbles::<0>::put(codes, output, &group.map(|code| index(code) as u8));
    }
}

/// A stored type: codes, and what they are multiplied with.
pub(crate) trait Format: Send + Sync + 'static {
    type Codes: Codes;
    /// Groups of a block.
    const GROUPS: usize;
    /// f16 numbers per output at the head of a block.
    const HALVES: usize;
    /// Bytes per output at the head of a group.
    const GROUP_HEAD: usize;
    /// Parts of a group that have scales of their own.
    const PARTS: usize = 1;
    /// Whether a minimum is added to every weight.
    const MINIMUM: bool;

    /// Whether a sum of products with inputs, for a part of a group, needs no more than 24 bits.
    const SMALL: bool = {
        let (lowest, highest) = (Self::Codes::ZERO, Self::Codes::END - 1 - Self::Codes::ZERO);
        let largest = if lowest > highest { lowest } else { highest };
        largest as i64 * LARGEST as i64 * (GROUP / Self::PARTS) as i64 <= 1 << 24
    };

    const GROUP_BYTES: usize = Self::GROUP_HEAD * PANEL + Self::Codes::BYTES;
    const BLOCK_BYTES: usize = Self::HALVES * HALVES + Self::GROUPS * Self::GROUP_BYTES;

    /// The scales of part `part` of a group.
    ///
    /// # Safety
    /// A whole block at `block`, a whole group of it at `group`.
    unsafe fn scale<D: Dots>(d: D, block: *const u8, group: *const u8, part: usize) -> D::F;

    /// What is added to the weights of a part.
    ///
    /// # Safety
    /// As [`scale`](Self::scale).
    unsafe fn minimum<D: Dots>(d: D, _block: *const u8, _group: *const u8, _part: usize) -> D::F {
        d.splat(0.0)
    }

    /// Start of the block and of the group of inputs `32·index` and on.
    ///
    /// # Safety
    /// They are inside the panel.
    #[inline(always)]
    unsafe fn group(panel: *const u8, index: usize) -> (*const u8, *const u8) {
        // SAFETY: as the caller promises.
        unsafe {
            let block = panel.add(index / Self::GROUPS * Self::BLOCK_BYTES);
            let group = block.add(Self::HALVES * HALVES + index % Self::GROUPS * Self::GROUP_BYTES);
            (block, group)
        }
    }
}

/// `d·q`, a scale per 32 inputs.
pub(crate) struct Scaled<C>(PhantomData<C>);

impl<C: Codes> Format for Scaled<C> {
    type Codes = C;
    const GROUPS: usize = 1;
    const HALVES: usize = 1;
    const GROUP_HEAD: usize = 0;
    const MINIMUM: bool = false;

    #[inline(always)]
    unsafe fn scale<D: Dots>(d: D, block: *const u8, _group: *const u8, _part: usize) -> D::F {
        // SAFETY: as the caller promises.
        unsafe { d.load_f16(block) }
    }
}

/// `d·q + m`, both per 32 inputs.
pub(crate) struct Affine<C>(PhantomData<C>);

impl<C: Codes> Format for Affine<C> {
    type Codes = C;
    const GROUPS: usize = 1;
    const HALVES: usize = 2;
    const GROUP_HEAD: usize = 0;
    const MINIMUM: bool = true;

    #[inline(always)]
    unsafe fn scale<D: Dots>(d: D, block: *const u8, _group: *const u8, _part: usize) -> D::F {
        // SAFETY: as the caller promises.
        unsafe { d.load_f16(block) }
    }

    #[inline(always)]
    unsafe fn minimum<D: Dots>(d: D, block: *const u8, _group: *const u8, _part: usize) -> D::F {
        // SAFETY: as the caller promises.
        unsafe { d.load_f16(block.add(HALVES)) }
    }
}

/// `(d·scale)·q − dmin·min`, scale and minimum per 32 inputs of 256, or per 16 in two parts.
pub(crate) struct SuperAffine<C, const PARTS: usize>(PhantomData<C>);

impl<C: Codes, const PARTS: usize> Format for SuperAffine<C, PARTS> {
    type Codes = C;
    const GROUPS: usize = 8;
    const HALVES: usize = 2;
    const GROUP_HEAD: usize = 2 * PARTS;
    const PARTS: usize = PARTS;
    const MINIMUM: bool = true;

    #[inline(always)]
    unsafe fn scale<D: Dots>(d: D, block: *const u8, group: *const u8, part: usize) -> D::F {
        // SAFETY: as the caller promises.
        unsafe { d.mul(d.load_f16(block), d.load_i8(group.add(part * PANEL))) }
    }

    #[inline(always)]
    unsafe fn minimum<D: Dots>(d: D, block: *const u8, group: *const u8, part: usize) -> D::F {
        // SAFETY: as the caller promises.
        let product = unsafe {
            let minimum = d.load_i8(group.add((PARTS + part) * PANEL));
            d.mul(d.load_f16(block.add(HALVES)), minimum)
        };
        d.mul(product, d.splat(-1.0))
    }
}

/// `(d·scale)·q`, a scale per 32 inputs of 256, or per 16 in two parts.
pub(crate) struct SuperScaled<C, const PARTS: usize>(PhantomData<C>);

impl<C: Codes, const PARTS: usize> Format for SuperScaled<C, PARTS> {
    type Codes = C;
    const GROUPS: usize = 8;
    const HALVES: usize = 1;
    const GROUP_HEAD: usize = PARTS;
    const PARTS: usize = PARTS;
    const MINIMUM: bool = false;

    #[inline(always)]
    unsafe fn scale<D: Dots>(d: D, block: *const u8, group: *const u8, part: usize) -> D::F {
        // SAFETY: as the caller promises.
        unsafe { d.mul(d.load_f16(block), d.load_i8(group.add(part * PANEL))) }
    }
}

/// Writes the weights of an output, by the operations that kernels use.
pub(crate) fn weights_of(segment: &Segment, output: usize, out: &mut [f32]) {
    struct Weights<'a>(&'a Segment, usize, &'a mut [f32]);
    impl ForFormat for Weights<'_> {
        type Output = ();

        fn run<T: Format>(self) {
            let Self(segment, output, out) = self;
            let (panel, lane) = (segment.panel(output / PANEL), output % PANEL);
            for (index, out) in out.chunks_exact_mut(GROUP).enumerate() {
                // SAFETY: the output has as many weights as the panel has inputs.
                let (block, group, codes) = unsafe {
                    let (block, group) = T::group(panel, index);
                    let codes = group.add(T::GROUP_HEAD * PANEL);
                    (block, group, std::slice::from_raw_parts(codes, T::Codes::BYTES))
                };
                for (input, out) in out.iter_mut().enumerate() {
                    let part = input / (GROUP / T::PARTS);
                    let code = i32::from(T::Codes::get(codes, lane, input)) - T::Codes::ZERO;
                    // SAFETY: a block and a group of it.
                    *out = unsafe {
                        let scale = T::scale(Portable, block, group, part)[lane];
                        if T::MINIMUM {
                            let minimum = T::minimum(Portable, block, group, part)[lane];
                            scale.mul_add(code as f32, minimum)
                        } else {
                            scale * code as f32
                        }
                    };
                }
            }
        }
    }
    with_format(segment.dtype, Weights(segment, output, out));
}

/// A computation that is compiled once per quantised type.
pub(crate) trait ForFormat {
    type Output;
    fn run<T: Format>(self) -> Self::Output;
}

/// Runs a computation with the format of a quantised type.
pub(crate) fn with_format<T: ForFormat>(dtype: DType, task: T) -> T::Output {
    match dtype {
        DType::Q4_0 => task.run::<Scaled<Nibbles<8>>>(),
        DType::Q5_0 => task.run::<Scaled<Fives<16>>>(),
        DType::Q8_0 => task.run::<Scaled<Bytes<128>>>(),
        DType::Q4_1 => task.run::<Affine<Nibbles<0>>>(),
        DType::Q5_1 => task.run::<Affine<Fives<0>>>(),
        DType::Iq4Nl => task.run::<Scaled<NonLinear>>(),
        DType::Q2K => task.run::<SuperAffine<Twos, 2>>(),
        DType::Q3K => task.run::<SuperScaled<Nibbles<4>, 2>>(),
        DType::Q4K => task.run::<SuperAffine<Nibbles<0>, 1>>(),
        DType::Q5K => task.run::<SuperAffine<Fives<0>, 1>>(),
        DType::Q6K => task.run::<SuperScaled<Sixes<32>, 2>>(),
        DType::Iq4Xs => task.run::<SuperScaled<NonLinear, 1>>(),
        DType::F32 | DType::F16 | DType::BF16 | DType::F8E4M3 => unreachable!("{dtype} is not quantised"),
    }
}
