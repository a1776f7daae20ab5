//! How stored matrices are handed to a device.

use paceline_types::DType;
use std::borrow::Cow;

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
    /// Nowhere: they are made up, by [`random_element`] of this seed.
    Random(u64),
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
            WeightData::Stored(bytes) => return Cow::Borrowed(bytes),
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
            _ => values.flat_map(f32::to_le_bytes).collect(),
        })
    }

    /// Outputs this part contributes.
    pub fn rows(&self) -> usize {
        match &self.order {
            RowOrder::Stored => self.stored_rows,
            RowOrder::Picked(rows) => rows.len(),
        }
    }
}
