//! Which operations are timed, at which sizes.

use super::sequence::SequenceOp;
use paceline_device_cpu::bench::{OpTiming, measure_linear, measure_linear_uncached};
use paceline_types::DType;
use std::fmt;

/// Rows from which on a product is bound by arithmetic and its matrix may as well stay in the caches.
const PREFILL_ROWS: usize = 64;

/// One thing to time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Case {
    Linear(LinearCase),
    Sequence(SequenceOp),
}

/// A matrix product.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinearCase {
    dtype: DType,
    outputs: usize,
    inputs: usize,
    rows: usize,
}

impl LinearCase {
    /// Times it: at few token rows with weights from memory, as in a model.
    pub(super) fn measure(self, threads: usize) -> OpTiming {
        let Self {
            dtype,
            outputs,
            inputs,
            rows,
        } = self;
        if rows < PREFILL_ROWS {
            measure_linear_uncached(threads, dtype, outputs, inputs, rows)
        } else {
            measure_linear(threads, dtype, outputs, inputs, rows)
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Linear(case) => write!(
                f,
                "linear {} {} x [{}, {}]",
                case.dtype, case.rows, case.outputs, case.inputs
            ),
            Self::Sequence(operation) => write!(f, "{} {}", operation.name(), operation.size()),
        }
    }
}

/// The list. Sizes whose matrix rows do not fill a type's blocks are left out.
pub(super) fn all(quick: bool) -> Vec<Case> {
    use DType::{BF16, F16, F32, Q4_0, Q4_1, Q4K, Q6K, Q8_0};
    let (types, sizes, rows): (&[DType], &[(usize, usize)], &[usize]) = if quick {
        (&[F32, BF16, Q8_0, Q4K], &[(1536, 576), (2048, 2048)], &[1, 8, 64])
    } else {
        (
            &[F32, BF16, F16, Q8_0, Q4_0, Q4_1, Q4K, Q6K],
            &[
                (576, 576),
                (1536, 576),
                (576, 1536),
                (49_152, 576),
                (2048, 2048),
                (8192, 2048),
            ],
            &[1, 8, 64, 256],
        )
    };
    let mut cases = Vec::new();
    for dtype in types {
        for &(outputs, inputs) in sizes {
            if !inputs.is_multiple_of(dtype.block_len()) {
                continue;
            }
            // The largest matrix is an output matrix, which sees a token row per request and no more.
            let rows = rows
                .iter()
                .filter(|rows| outputs < 10_000 || **rows < PREFILL_ROWS);
            cases.extend(rows.map(|rows| {
                Case::Linear(LinearCase {
                    dtype: *dtype,
                    outputs,
                    inputs,
                    rows: *rows,
                })
            }));
        }
    }
    cases.extend(SequenceOp::all(quick).into_iter().map(Case::Sequence));
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_fill_the_blocks_of_their_type() {
        for case in all(false) {
            if let Case::Linear(LinearCase { dtype, inputs, .. }) = case {
                assert!(inputs.is_multiple_of(dtype.block_len()), "{case}");
            }
        }
        assert!(all(true).len() < all(false).len() / 3);
    }
}
