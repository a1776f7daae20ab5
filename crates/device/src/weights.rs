//! How stored matrices are handed to a device.

use paceline_types::DType;

/// Which rows of a stored matrix to take, in which order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// All of them as stored.
    Stored,
    /// These, in this order.
    Picked(Vec<u32>),
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
    /// The rows, one after another. Empty for a [`Recorder`](crate::Recorder), which looks at shapes only.
    pub data: &'a [u8],
    /// Rows taken.
    pub order: RowOrder,
}

impl WeightPart<'_> {
    /// Outputs this part contributes.
    pub fn rows(&self) -> usize {
        match &self.order {
            RowOrder::Stored => self.stored_rows,
            RowOrder::Picked(rows) => rows.len(),
        }
    }
}
