//! Random matrices of every type, as files store them.

use crate::numbers::Random;
use half::{bf16, f16};
use paceline_device::SCALE_BLOCK;
use paceline_types::DType;

/// A random matrix.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Of its elements.
    pub dtype: DType,
    /// Its rows.
    pub outputs: usize,
    /// Its columns.
    pub inputs: usize,
}

impl Matrix {
    /// Of a type and shape.
    pub const fn new(dtype: DType, outputs: usize, inputs: usize) -> Self {
        Self {
            dtype,
            outputs,
            inputs,
        }
    }

    /// The bytes of a random matrix whose products with numbers around 1 are around 1.
    pub fn stored(self, random: &mut Random) -> Vec<u8> {
        let Matrix {
            dtype,
            outputs,
            inputs,
        } = self;
        let scale = (3.0 / inputs as f32).sqrt();
        let mut numbers = random.clone().numbers(outputs * inputs, scale).into_iter();
        match dtype {
            DType::F32 => numbers.flat_map(f32::to_le_bytes).collect(),
            DType::BF16 => numbers.flat_map(|x| bf16::from_f32(x).to_le_bytes()).collect(),
            DType::F16 => numbers.flat_map(|x| f16::from_f32(x).to_le_bytes()).collect(),
            DType::F8E4M3 => {
                // All codes but those that are no numbers, small ones too; scales that differ by up to four.
                let mut data: Vec<u8> = (0..outputs * inputs)
                    .map(|_| match random.bits() as u8 {
                        code if code & 0x7f == 0x7f => 0,
                        code => code,
                    })
                    .collect();
                let scales = outputs.div_ceil(SCALE_BLOCK) * inputs.div_ceil(SCALE_BLOCK);
                let scales = random
                    .numbers(scales, 0.6)
                    .into_iter()
                    .map(|x| (1.0 + x) * scale / 128.0);
                data.extend(scales.flat_map(f32::to_le_bytes));
                data
            }
            quantised => {
                let blocks = outputs * inputs / quantised.block_len();
                let mut data = Vec::with_capacity(blocks * quantised.block_bytes());
                for _ in 0..blocks {
                    let block: Vec<u8> = (0..quantised.block_bytes())
                        .map(|_| random.bits() as u8)
                        .collect();
                    let start = data.len();
                    data.extend(block);
                    for (offset, per_scale) in scales(quantised) {
                        let scale = f16::from_f32(numbers.next().unwrap_or(scale) / per_scale);
                        data[start + offset..][..2].copy_from_slice(&scale.to_le_bytes());
                    }
                }
                data
            }
        }
    }
}

/// Where the scales of a block are, and about how large the numbers are that each is multiplied by.
fn scales(dtype: DType) -> &'static [(usize, f32)] {
    match dtype {
        DType::Q4_0 => &[(0, 8.0)],
        DType::Q4_1 => &[(0, 15.0), (2, 1.0)],
        DType::Q5_0 => &[(0, 16.0)],
        DType::Q5_1 => &[(0, 31.0), (2, 1.0)],
        DType::Q8_0 | DType::Iq4Nl => &[(0, 127.0)],
        DType::Q4K => &[(0, 63.0 * 15.0), (2, 63.0)],
        DType::Q5K => &[(0, 63.0 * 31.0), (2, 63.0)],
        DType::Q6K => &[(208, 128.0 * 32.0)],
        DType::Q2K => &[(80, 15.0 * 3.0), (82, 15.0)],
        DType::Q3K => &[(108, 32.0 * 4.0)],
        DType::Iq4Xs => &[(0, 32.0 * 127.0)],
        DType::F32 | DType::F16 | DType::BF16 | DType::F8E4M3 => &[],
    }
}
