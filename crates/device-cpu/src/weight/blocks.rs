//! The stored quantised formats: blocks of consecutive weights of one row.

use half::f16;
use paceline_types::DType;

/// Most weights in a block.
pub(super) const LONGEST: usize = 256;

/// What the sixteen codes of IQ4_NL and IQ4_XS stand for.
pub(super) const NON_LINEAR: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// A stored block with its codes spread out, one byte each, offsets (8 of Q4_0, 16 of Q5_0, 32 of Q6_K, 4 of Q3_K)
/// already subtracted and codes of IQ4 replaced by what they stand for.
#[derive(Clone)]
pub(super) struct Block {
    /// f16 scale.
    pub(super) d: u16,
    /// f16 minimum, or scale of the minima; 0 where the format has none.
    pub(super) m: u16,
    /// Scales of the sub-blocks of the K formats and of IQ4_XS.
    pub(super) scales: [i8; 16],
    /// Minima of the sub-blocks of Q2_K, Q4_K and Q5_K.
    pub(super) mins: [i8; 16],
    pub(super) codes: [i8; LONGEST],
}

impl Block {
    pub(super) const ZERO: Self = Self {
        d: 0,
        m: 0,
        scales: [0; 16],
        mins: [0; 16],
        codes: [0; LONGEST],
    };

    /// Reads one block.
    pub(super) fn read(&mut self, dtype: DType, bytes: &[u8]) {
        assert_eq!(bytes.len(), dtype.block_bytes());
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        self.d = half(match dtype {
            DType::Q6K => 208,
            DType::Q2K => 80,
            DType::Q3K => 108,
            _ => 0,
        });
        self.m = match dtype {
            DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K => half(2),
            DType::Q2K => half(82),
            _ => 0,
        };
        match dtype {
            DType::Q8_0 => {
                for (code, byte) in self.codes.iter_mut().zip(&bytes[2..]) {
                    *code = *byte as i8;
                }
            }
            DType::Q4_0 => self.nibbles(&bytes[2..], 8),
            DType::Q4_1 => self.nibbles(&bytes[4..], 0),
            DType::Q5_0 => self.fifth_bits(&bytes[2..], 16),
            DType::Q5_1 => self.fifth_bits(&bytes[4..], 0),
            DType::Q4K => {
                self.six_bit_scales(&bytes[4..16]);
                self.nibbles_of_k(&bytes[16..]);
            }
            DType::Q5K => {
                self.six_bit_scales(&bytes[4..16]);
                self.nibbles_of_k(&bytes[48..]);
                for (index, code) in self.codes.iter_mut().enumerate() {
                    *code |= ((bytes[16 + index % 32] >> (index / 32) & 1) << 4) as i8;
                }
            }
            DType::Q6K => self.six_bits(bytes),
            DType::Q2K => {
                for (index, byte) in bytes[..16].iter().enumerate() {
                    self.scales[index] = (byte & 15) as i8;
                    self.mins[index] = (byte >> 4) as i8;
                }
                self.two_bits(&bytes[16..80]);
            }
            DType::Q3K => {
                self.three_bit_scales(&bytes[96..108]);
                self.two_bits(&bytes[32..96]);
                for (index, code) in self.codes.iter_mut().enumerate() {
                    *code += ((bytes[index % 32] >> (index / 32) & 1) << 2) as i8 - 4;
                }
            }
            DType::Iq4Nl => {
                self.nibbles(&bytes[2..], 0);
                self.non_linear(32);
            }
            DType::Iq4Xs => self.non_linear_of_k(bytes),
            DType::F32 | DType::F16 | DType::BF16 | DType::F8E4M3 => unreachable!("{dtype} has no blocks"),
        }
    }

    /// Whether all weights of the block are finite.
    pub(super) fn is_finite(&self) -> bool {
        const EXPONENT: u16 = 0x7c00;
        self.d & EXPONENT != EXPONENT && self.m & EXPONENT != EXPONENT
    }

    /// The weights, by the same operations as the kernels.
    pub(super) fn weights(&self, dtype: DType, out: &mut [f32]) {
        let (d, m) = (f16::from_bits(self.d).to_f32(), f16::from_bits(self.m).to_f32());
        let group = match dtype {
            DType::Q2K | DType::Q3K | DType::Q6K => 16,
            _ => 32,
        };
        for (index, (out, codes)) in out.chunks_mut(group).zip(self.codes.chunks(group)).enumerate() {
            let (scale, min) = match dtype {
                DType::Q2K | DType::Q4K | DType::Q5K => (
                    d * f32::from(self.scales[index]),
                    Some(-(m * f32::from(self.mins[index]))),
                ),
                DType::Q3K | DType::Q6K | DType::Iq4Xs => (d * f32::from(self.scales[index]), None),
                DType::Q4_1 | DType::Q5_1 => (d, Some(m)),
                _ => (d, None),
            };
            for (out, code) in out.iter_mut().zip(codes) {
                let code = f32::from(*code);
                *out = min.map_or(scale * code, |min| scale.mul_add(code, min));
            }
        }
    }

    /// Low nibbles first, then the high ones.
    fn nibbles(&mut self, bytes: &[u8], offset: i8) {
        for (index, byte) in bytes.iter().enumerate() {
            self.codes[index] = (byte & 15) as i8 - offset;
            self.codes[index + 16] = (byte >> 4) as i8 - offset;
        }
    }

    /// Four bytes of fifth bits, then nibbles.
    fn fifth_bits(&mut self, bytes: &[u8], offset: i8) {
        let high = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        self.nibbles(&bytes[4..], 0);
        for (index, code) in self.codes[..32].iter_mut().enumerate() {
            *code = (*code | ((high >> index & 1) << 4) as i8) - offset;
        }
    }

    /// Eight scales and eight minima of six bits in twelve bytes.
    fn six_bit_scales(&mut self, bytes: &[u8]) {
        for index in 0..4 {
            self.scales[index] = (bytes[index] & 63) as i8;
            self.mins[index] = (bytes[index + 4] & 63) as i8;
            let last = bytes[index + 8];
            self.scales[index + 4] = (last & 15 | bytes[index] >> 6 << 4) as i8;
            self.mins[index + 4] = (last >> 4 | bytes[index + 4] >> 6 << 4) as i8;
        }
    }

    /// Pairs of sub-blocks share 32 bytes: low nibbles for the first, high ones for the second.
    fn nibbles_of_k(&mut self, bytes: &[u8]) {
        for (codes, bytes) in self.codes.chunks_mut(64).zip(bytes.chunks(32)) {
            for (index, byte) in bytes.iter().enumerate() {
                codes[index] = (byte & 15) as i8;
                codes[index + 32] = (byte >> 4) as i8;
            }
        }
    }

    /// Four bits of each code in the first 128 bytes, two bits in the next 64, then the scales.
    fn six_bits(&mut self, bytes: &[u8]) {
        for (half, codes) in self.codes.chunks_mut(128).enumerate() {
            let low = &bytes[half * 64..][..64];
            let high = &bytes[128 + half * 32..][..32];
            for index in 0..32 {
                let (a, b, top) = (low[index], low[index + 32], high[index]);
                codes[index] = (a & 15 | (top & 3) << 4) as i8 - 32;
                codes[index + 32] = (b & 15 | (top >> 2 & 3) << 4) as i8 - 32;
                codes[index + 64] = (a >> 4 | (top >> 4 & 3) << 4) as i8 - 32;
                codes[index + 96] = (b >> 4 | (top >> 6) << 4) as i8 - 32;
            }
        }
        for (scale, byte) in self.scales.iter_mut().zip(&bytes[192..208]) {
            *scale = *byte as i8;
        }
    }

    /// Four runs of 32 codes share 32 bytes, the first in the lowest bits.
    fn two_bits(&mut self, bytes: &[u8]) {
        for (codes, bytes) in self.codes.chunks_mut(128).zip(bytes.chunks(32)) {
            for (index, code) in codes.iter_mut().enumerate() {
                *code = (bytes[index % 32] >> (index / 32 * 2) & 3) as i8;
            }
        }
    }

    /// Sixteen scales of Q3_K: four bits of each in eight bytes, two bits in the next four.
    fn three_bit_scales(&mut self, bytes: &[u8]) {
        for (index, scale) in self.scales.iter_mut().enumerate() {
            let low = bytes[index % 8] >> (index / 8 * 4) & 15;
            let high = bytes[8 + index % 4] >> (index / 4 * 2) & 3;
            *scale = (low | high << 4) as i8 - 32;
        }
    }

    /// IQ4_XS: two bits of each of eight scales, four bits of each, then the codes of each as in IQ4_NL.
    fn non_linear_of_k(&mut self, bytes: &[u8]) {
        let high = u16::from_le_bytes([bytes[2], bytes[3]]);
        for index in 0..8 {
            let low = bytes[4 + index / 2] >> (index % 2 * 4) & 15;
            self.scales[index] = (low | ((high >> (2 * index) & 3) as u8) << 4) as i8 - 32;
        }
        for (codes, bytes) in self.codes.chunks_mut(32).zip(bytes[8..].chunks(16)) {
            for (index, byte) in bytes.iter().enumerate() {
                codes[index] = (byte & 15) as i8;
                codes[index + 16] = (byte >> 4) as i8;
            }
        }
        self.non_linear(LONGEST);
    }

    fn non_linear(&mut self, count: usize) {
        for code in &mut self.codes[..count] {
            *code = NON_LINEAR[*code as usize & 15];
        }
    }
}
