//! Stored matrices by name, and what they are for.

use paceline_device::RowOrder;

/// What a matrix does, which says how far it may be rounded where weights are quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// One of a layer's products.
    Product,
    /// Its rows are tokens: embeddings and the head.
    Vocabulary,
    /// A few outputs that decide where a token goes.
    Router,
}

/// A matrix, or rows of one, to be stacked with others into a device weight.
pub struct Part {
    pub(crate) name: String,
    pub(crate) stored: Vec<usize>,
    pub(crate) order: RowOrder,
    pub(crate) role: Role,
}

impl Part {
    /// A whole matrix `[rows, columns]`.
    pub fn whole(name: impl Into<String>, rows: usize, columns: usize) -> Self {
        Self {
            name: name.into(),
            stored: vec![rows, columns],
            order: RowOrder::Stored,
            role: Role::Product,
        }
    }

    /// Some rows of a matrix `[rows, columns]`, in this order.
    pub fn picked(name: impl Into<String>, rows: usize, columns: usize, order: Vec<u32>) -> Self {
        Self {
            name: name.into(),
            stored: vec![rows, columns],
            order: RowOrder::Picked(order),
            role: Role::Product,
        }
    }

    /// Matrix `index` of a stack `[count, rows, columns]`.
    pub fn slice(name: impl Into<String>, shape: [usize; 3], index: usize) -> Self {
        let [count, rows, columns] = shape;
        let order = (index * rows..(index + 1) * rows).map(|row| row as u32).collect();
        Self {
            name: name.into(),
            stored: vec![count, rows, columns],
            order: RowOrder::Picked(order),
            role: Role::Product,
        }
    }

    /// The same as a matrix whose rows are tokens: it keeps eight bits where others are quantised to fewer.
    pub fn of_vocabulary(self) -> Self {
        Self {
            role: Role::Vocabulary,
            ..self
        }
    }

    /// The same as a router, which is not quantised.
    pub fn of_router(self) -> Self {
        Self {
            role: Role::Router,
            ..self
        }
    }
}
