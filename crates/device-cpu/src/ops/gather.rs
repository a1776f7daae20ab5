//! Rows picked from a tensor, plain copies, and columns spread over wider rows.

use super::{Step, split};
use crate::pool::Pool;
use crate::storage::{In, Out};

/// `out[s] = x[index(s)]`.
pub(crate) fn gather(pool: &Pool, x: In<'_>, index: impl Fn(usize) -> i32 + Sync, out: Out<'_>) {
    split(pool, out.rows, x.columns / 8, |rows| {
        for row in rows {
            let from = usize::try_from(index(row)).unwrap_or(usize::MAX);
            assert!(
                from < x.rows,
                "gather: row {row} asks for row {} of {}",
                index(row),
                x.rows
            );
            // SAFETY: every row belongs to one piece.
            unsafe { out.row(row) }.copy_from_slice(x.row(from));
        }
    });
}

/// `out[t] = states[source[t]]`, or the state kept with block `-1 - source[t]`.
pub(crate) fn gather_states(pool: &Pool, states: In<'_>, kept: &[f32], source: &[i32], out: Out<'_>) {
    split(pool, out.rows, out.columns / 8, |rows| {
        for row in rows {
            let from = match usize::try_from(source[row]) {
                Ok(from) => states.row(from),
                Err(_) => &kept[(-1 - source[row]) as usize * out.columns..][..out.columns],
            };
            // SAFETY: every row belongs to one piece.
            unsafe { out.row(row) }.copy_from_slice(from);
        }
    });
}

/// Keeps the states of tokens that are the last of their blocks.
pub(crate) fn keep_block_ends(states: In<'_>, step: &Step<'_>, block_size: usize, kept: &mut [f32]) {
    for row in 0..states.rows {
        let position = step.tokens[row].position as usize;
        if (position + 1).is_multiple_of(block_size) {
            let block = step.blocks(step.tokens[row].request as usize)[position / block_size] as usize;
            kept[block * states.columns..][..states.columns].copy_from_slice(states.row(row));
        }
    }
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

/// `out[s] = -∞`, but `out[s][columns[i]] = x[s][i]`. Panics when a column is outside `out`.
pub(crate) fn spread(pool: &Pool, x: In<'_>, columns: &[i32], out: Out<'_>) {
    let columns = &columns[..x.columns];
    if let Some((index, column)) = columns
        .iter()
        .enumerate()
        .find(|(_, column)| usize::try_from(**column).map_or(true, |column| column >= out.columns))
    {
        panic!(
            "spread: column {index} goes to {column}, outside a row of {}",
            out.columns
        );
    }
    split(pool, out.rows, x.columns + out.columns / 8, |rows| {
        for row in rows {
            // SAFETY: every row belongs to one piece.
            let out = unsafe { out.row(row) };
            out.fill(f32::NEG_INFINITY);
            for (x, column) in x.row(row).iter().zip(columns) {
                out[*column as usize] = *x;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Instructions;

    #[test]
    fn columns_go_where_they_are_sent_and_the_rest_is_impossible() {
        let columns: Vec<i32> = (0..41).map(|i| (i * 2_531 + 17) % 9_001).collect();
        let x: Vec<f32> = (0..41 * 7).map(|i| i as f32 - 100.0).collect();
        for threads in [1, 2, 3] {
            let pool = Pool::new(threads, Instructions::detect());
            let mut out = vec![3.0; 9_001 * 7];
            // More columns may be named than there are.
            let named = [&columns[..], &[-1]].concat();
            spread(&pool, In::over(&x, 41), &named, Out::over(&mut out, 9_001));
            for (row, out) in out.chunks(9_001).enumerate() {
                for (column, value) in out.iter().enumerate() {
                    let from = columns.iter().position(|c| *c as usize == column);
                    let expected = from.map_or(f32::NEG_INFINITY, |from| x[row * 41 + from]);
                    assert_eq!(value.to_bits(), expected.to_bits(), "{row} {column}");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "spread: column 1 goes to 5, outside a row of 5")]
    fn columns_outside_the_row_are_named() {
        let pool = Pool::new(1, Instructions::detect());
        let mut out = [0.0; 5];
        spread(&pool, In::over(&[1.0, 2.0], 2), &[0, 5], Out::over(&mut out, 5));
    }
}
