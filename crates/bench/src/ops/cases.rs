//! Which operations are timed, at which sizes.

use super::linear::{LinearCase, PREFILL_ROWS};
use super::sequence::SequenceOp;
use paceline_types::DType;
use std::fmt;

/// One thing to time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Case {
    Linear(LinearCase),
    Sequence(SequenceOp),
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Linear(case) => write!(f, "{} {}", case.name(), case.size()),
            Self::Sequence(operation) => write!(f, "{} {}", operation.name(), operation.size()),
        }
    }
}

/// The list. Sizes whose matrix rows do not fill a type's blocks are left out.
pub(super) fn all(quick: bool) -> Vec<Case> {
    use DType::{BF16, F16, F32, Q4_0, Q4_1, Q4K, Q6K, Q8_0};
    let (types, sizes, rows): (&[DType], &[(usize, usize)], &[usize]) = if quick {
        (
            &[F32, BF16, Q8_0, Q4K],
            &[(1536, 576), (2048, 2048)],
            &[1, 4, 8, 64],
        )
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
            &[1, 2, 4, 8, 16, 64, 512],
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
