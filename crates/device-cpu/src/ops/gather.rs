//! Rows picked from a tensor, and plain copies.

use super::split;
use crate::pool::Pool;
use crate::storage::{In, Out};

/// `out[s] = x[index[s]]`.
pub(crate) fn gather(pool: &Pool, x: In<'_>, index: &[i32], out: Out<'_>) {
    split(pool, out.rows, x.columns / 8, |rows| {
        for row in rows {
            let from = usize::try_from(index[row]).unwrap_or(usize::MAX);
            assert!(
                from < x.rows,
                "gather: row {row} asks for row {} of {}",
                index[row],
                x.rows
            );
            // SAFETY: every row belongs to one piece.
            unsafe { out.row(row) }.copy_from_slice(x.row(from));
        }
    });
}

/// `out = x`.
pub(crate) fn copy(pool: &Pool, x: In<'_>, out: Out<'_>) {
    split(pool, out.rows, x.columns / 8, |rows| {
        for row in rows {
            // SAFETY: every row belongs to one piece.
            unsafe { out.row(row) }.copy_from_slice(x.row(row));
        }
    });
}
