//! How stored matrices are handed to a device.

use crate::e4m3::e4m3_nearest;
use paceline_types::DType;
use std::borrow::Cow;

/// Columns of a matrix of 8-bit floats that share a scale.
pub const SCALE_BLOCK: usize = 128;

/// Which rows of a stored matrix to take, in which order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// All of them as stored.
    Stored,
    /// These, in this order.
    Picked(Vec<u32>),
}

/// Where the elements of a stored matrix are.
#[derive(Clone, Copy, Debug)]
pub enum WeightData<'a> {
    /// Here, row after row. Empty for a [`Recorder`](crate::Recorder), which looks at shapes only.
    Stored(&'a [u8]),
    /// Here, row after row, as 8-bit floats that are multiplied by scales.
    Scaled(&'a [u8], BlockScales<'a>),
    /// Nowhere: they are made up, by [`random_element`] of this seed.
    Random(u64),
}

/// Scales of a stored matrix, a row of them for some of its rows.
#[derive(Clone, Copy, Debug)]
pub struct BlockScales<'a> {
    /// The scales, row after row.
    pub data: &'a [u8],
    /// How they are stored: [`DType::F32`], [`DType::BF16`] or [`DType::F16`].
    pub dtype: DType,
    /// Rows of the matrix that share scales.
    pub rows: usize,
    /// Scales of such rows: one for each [`SCALE_BLOCK`] columns, or one for all.
    pub columns: usize,
}

impl BlockScales<'_> {
    /// The scale of a row and a block of columns.
    fn get(&self, row: usize, block: usize) -> f32 {
        let index = row / self.rows * self.columns + block.min(self.columns - 1);
        let bytes = &self.data[index * self.dtype.block_bytes()..];
        match self.dtype {
            DType::BF16 => half::bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
            DType::F16 => half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
            _ => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
        }
    }
}

/// An element of a matrix that nobody trained: evenly distributed with a variance of one over the columns, so that products
/// keep the size of what goes in. A pure function, the same on every device.
pub fn random_element(seed: u64, columns: usize, (row, column): (usize, usize)) -> f32 {
    let mut bits = seed ^ ((row * columns + column) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^= bits >> 31;
    let even = (bits >> 40) as f32 / (1 << 24) as f32 - 0.5;
    even * random_width(columns)
}

/// The width of the interval that random elements are from.
pub fn random_width(columns: usize) -> f32 {
    (12.0 / columns as f32).sqrt()
}

/// The scale of random 8-bit floats: a power of two that leaves them below 256.
pub fn random_scale(columns: usize) -> f32 {
    let power = (random_width(columns) / 2.0).to_bits() & 0x7f80_0000;
    f32::from_bits(power) / 128.0
}

/// A stored matrix, or some of its rows, that becomes consecutive outputs of a device weight.
#[derive(Clone, Debug)]
pub struct WeightPart<'a> {
    /// Name for messages.
    pub name: &'a str,
    /// How the elements are stored.
    pub dtype: DType,
    /// Rows in storage.
    pub stored_rows: usize,
    /// Inputs: elements of a row.
    pub columns: usize,
    /// The rows.
    pub data: WeightData<'a>,
    /// Rows taken.
    pub order: RowOrder,
}

impl WeightPart<'_> {
    /// The stored bytes, made up if they are nowhere.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        let seed = match self.data {
            WeightData::Stored(bytes) | WeightData::Scaled(bytes, _) => return Cow::Borrowed(bytes),
            WeightData::Random(seed) => seed,
        };
        let places = (0..self.stored_rows).flat_map(|row| (0..self.columns).map(move |column| (row, column)));
        let values = places.map(|place| random_element(seed, self.columns, place));
        Cow::Owned(match self.dtype {
            DType::BF16 => values
                .flat_map(|value| half::bf16::from_f32(value).to_le_bytes())
                .collect(),
            DType::F16 => values
                .flat_map(|value| half::f16::from_f32(value).to_le_bytes())
                .collect(),
            DType::F8E4M3 => {
                let scale = random_scale(self.columns);
                values.map(|value| e4m3_nearest(value / scale)).collect()
            }
            _ => values.flat_map(f32::to_le_bytes).collect(),
        })
    }

    /// What 8-bit floats of a stored row are multiplied by, in a block of [`SCALE_BLOCK`] columns.
    pub fn scale(&self, stored_row: usize, block: usize) -> f32 {
        match self.data {
            WeightData::Stored(_) => 1.0,
            WeightData::Scaled(_, scales) => scales.get(stored_row, block),
            WeightData::Random(_) => random_scale(self.columns),
        }
    }

    /// Outputs this part contributes.
    pub fn rows(&self) -> usize {
        match &self.order {
            RowOrder::Stored => self.stored_rows,
            RowOrder::Picked(rows) => rows.len(),
        }
    }
}
