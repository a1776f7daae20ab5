//! States added up over a text.

use super::accept::plan_rows;
use crate::storage::In;
use paceline_device::plan;

/// Views of [`pool_states`].
pub(crate) struct Pooled<'a> {
    pub(crate) plan: &'a [i32],
    pub(crate) first_token: &'a [i32],
    pub(crate) token_count: &'a [i32],
    pub(crate) states: In<'a>,
    pub(crate) sums: &'a mut [f32],
    pub(crate) done: &'a mut [f32],
}

/// Takes in the states of the rows that say so; see [`paceline_device::PoolStates`]. A token costs one addition per
/// element, which is nothing next to running it, so one thread does all.
pub(crate) fn pool_states(pooled: &mut Pooled<'_>) {
    let width = pooled.states.columns;
    let rows = pooled.plan[plan::ROWS] as usize;
    let mut done = pooled.done.chunks_exact_mut(width);
    for (request, row) in plan_rows(pooled.plan)
        .chunks_exact(plan::ROW)
        .take(rows)
        .enumerate()
    {
        let flags = row[plan::ROW_FLAGS];
        let gives = flags & (plan::POOL_MEAN | plan::POOL_LAST) != 0;
        let place = if gives { done.next() } else { None };
        let (first, count) = (pooled.first_token[request], pooled.token_count[request]);
        let tokens = first as usize..(first + count) as usize;
        let Some(last) = tokens.clone().last() else {
            continue;
        };
        if flags & plan::POOL_SUM != 0 {
            let sum = &mut pooled.sums[row[plan::ROW_SLOT] as usize * width..][..width];
            let start = row[plan::ROW_START];
            if start == 0 {
                sum.fill(0.0);
            }
            for token in tokens {
                for (sum, state) in sum.iter_mut().zip(pooled.states.row(token)) {
                    *sum += state;
                }
            }
            if flags & plan::POOL_MEAN != 0
                && let Some(place) = place
            {
                let length = (start + count) as f32;
                for (mean, sum) in place.iter_mut().zip(sum) {
                    *mean = *sum / length;
                }
            }
        } else if flags & plan::POOL_LAST != 0
            && let Some(place) = place
        {
            place.copy_from_slice(pooled.states.row(last));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plan of rows: slot, start, flags.
    fn plan_of(rows: &[(i32, i32, i32)]) -> Vec<i32> {
        let mut words = vec![0; plan::HEADER];
        words[plan::ROWS] = rows.len() as i32;
        for (slot, start, flags) in rows {
            let mut row = [0; plan::ROW];
            row[plan::ROW_SLOT] = *slot;
            row[plan::ROW_START] = *start;
            row[plan::ROW_FLAGS] = *flags;
            words.extend(row);
        }
        words
    }

    #[test]
    fn sums_go_on_where_they_were_and_vectors_are_packed() {
        let (sum, mean, last) = (plan::POOL_SUM, plan::POOL_SUM | plan::POOL_MEAN, plan::POOL_LAST);
        let mut sums = vec![7.0; 3 * 2];
        let mut done = vec![9.0; 3 * 2];
        let mut run = |rows: &[(i32, i32, i32)], counts: &[i32], states: &[f32]| {
            let first_token: Vec<i32> = counts
                .iter()
                .scan(0, |sum, count| Some(std::mem::replace(sum, *sum + count)))
                .collect();
            pool_states(&mut Pooled {
                plan: &plan_of(rows),
                first_token: &first_token,
                token_count: counts,
                states: In::over(states, 2),
                sums: &mut sums,
                done: &mut done,
            });
            (sums.clone(), done.clone())
        };
        // A decode, the beginning of a text in slot 2, and the whole of one in slot 0.
        let (sums, done) = run(
            &[(1, 0, 0), (2, 0, sum), (0, 4, last)],
            &[1, 2, 2],
            &[1.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
        );
        assert_eq!(sums, [7.0, 7.0, 7.0, 7.0, 6.0, 8.0]);
        assert_eq!(done[..2], [8.0, 9.0]);
        // The end of the one, behind a row whose owner has gone: that keeps its place.
        let (_, done) = run(&[(0, 0, mean), (2, 2, mean)], &[0, 2], &[10.0, 20.0, 30.0, 40.0]);
        assert_eq!(done[..4], [8.0, 9.0, 11.5, 17.0]);
    }
}
