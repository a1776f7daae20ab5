//! States added up over a text.

use crate::storage::In;
use paceline_device::abi::{Plan, PlanRow, RequestRow};

/// Views of [`pool_states`].
pub(crate) struct Pooled<'a> {
    pub(crate) plan: Plan<'a>,
    pub(crate) requests: &'a [RequestRow],
    pub(crate) states: In<'a>,
    pub(crate) sums: &'a mut [f32],
    pub(crate) done: &'a mut [f32],
}

/// Takes in the states of the rows that say so; see [`paceline_device::PoolStates`]. A token costs one addition per
/// element, which is nothing next to running it, so one thread does all.
pub(crate) fn pool_states(pooled: &mut Pooled<'_>) {
    let width = pooled.states.columns;
    let mut done = pooled.done.chunks_exact_mut(width);
    for (row, request) in pooled.plan.rows.iter().zip(pooled.requests) {
        let place = if row.embeds() { done.next() } else { None };
        let tokens = request.tokens();
        let Some(last) = tokens.clone().last() else {
            continue;
        };
        if row.is(PlanRow::POOL_SUM) {
            let sum = &mut pooled.sums[row.slot as usize * width..][..width];
            if row.start == 0 {
                sum.fill(0.0);
            }
            for token in tokens {
                for (sum, state) in sum.iter_mut().zip(pooled.states.row(token)) {
                    *sum += state;
                }
            }
            if row.is(PlanRow::POOL_MEAN)
                && let Some(place) = place
            {
                let length = (row.start + request.token_count) as f32;
                for (mean, sum) in place.iter_mut().zip(sum) {
                    *mean = *sum / length;
                }
            }
        } else if row.is(PlanRow::POOL_LAST)
            && let Some(place) = place
        {
            place.copy_from_slice(pooled.states.row(last));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_device::abi::PlanMessage;

    /// A plan of rows: slot, start, flags.
    fn plan_of(rows: &[(u32, i32, i32)]) -> Vec<i32> {
        let mut message = PlanMessage::new(0);
        for (slot, start, flags) in rows {
            let row = PlanRow {
                slot: *slot,
                start: *start,
                flags: *flags,
                ..PlanRow::default()
            };
            message.push(row, [], []);
        }
        message.encode(1).to_vec()
    }

    #[test]
    fn sums_go_on_where_they_were_and_vectors_are_packed() {
        let sum = PlanRow::POOL_SUM;
        let (mean, last) = (sum | PlanRow::POOL_MEAN, PlanRow::POOL_LAST);
        let mut sums = vec![7.0; 3 * 2];
        let mut done = vec![9.0; 3 * 2];
        let mut run = |rows: &[(u32, i32, i32)], counts: &[i32], states: &[f32]| {
            let mut requests = Vec::new();
            let mut first_token = 0;
            for token_count in counts {
                requests.push(RequestRow {
                    first_token,
                    token_count: *token_count,
                    ..RequestRow::default()
                });
                first_token += token_count;
            }
            pool_states(&mut Pooled {
                plan: Plan::parse(&plan_of(rows)).unwrap(),
                requests: &requests,
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
