//! Zeroes the keys and values of tokens that a drafter does not see.

use super::{Step, split};
use crate::kv::CpuKvCache;
use crate::pool::Pool;
use paceline_device::abi::Plan;

/// Views of [`clear_kv`].
pub(crate) struct Clear<'a> {
    pub(crate) plan: Plan<'a>,
    pub(crate) cache: &'a CpuKvCache,
    pub(crate) step: Step<'a>,
    /// Token rows that carry data.
    pub(crate) tokens: usize,
}

/// Clears the positions of all tokens of plan rows that want no neural drafts. Drafts that did not hold are among them:
/// the next tokens at their positions write or clear them again.
pub(crate) fn clear_kv(pool: &Pool, args: &Clear<'_>) {
    let shape = args.cache.shape();
    split(pool, args.tokens, shape.heads * shape.head_dim / 4, |tokens| {
        for token in tokens {
            let request = args.step.tokens[token].request as usize;
            if args.plan.rows[request].neural == 0 {
                clear_token(args, request, token);
            }
        }
    });
}

fn clear_token(args: &Clear<'_>, request: usize, token: usize) {
    let shape = args.cache.shape();
    let blocks = args.step.blocks(request);
    let position = args.step.tokens[token].position as usize;
    for head in 0..shape.heads {
        let place = args.cache.run(blocks, head, (position, position + 1));
        // SAFETY: a position of a request belongs to one token, so to one piece.
        unsafe { args.cache.clear(place) };
    }
}

#[cfg(test)]
mod tests {
    use crate::{Cpu, CpuOptions, Instructions};
    use paceline_device::abi::{BlockUpdate, PlanMessage, PlanRow, RequestRow, Slot, TokenRow};
    use paceline_device::{Backend, ClearKv, KvShape, Pending, StepLimits, StepTables};
    use paceline_types::DType;

    const SHAPE: KvShape = KvShape {
        blocks: 15,
        block_size: 4,
        heads: 3,
        head_dim: 5,
    };

    /// Slot, wanted neural drafts, first position, tokens.
    const ROWS: [[i32; 4]; 5] = [
        [2, 0, 3, 6],
        [0, 1, 0, 5],
        [3, 0, 0, 0],
        [1, 0, 11, 1],
        [4, 3, 7, 2],
    ];

    /// Blocks of a slot, scattered; each belongs to one.
    fn block(slot: i32, index: i32) -> i32 {
        (slot * 3 + index) * 7 % 15
    }

    #[test]
    fn rows_without_neural_drafts_are_cleared_and_nothing_else() {
        for (threads, kv) in [(1, DType::F32), (3, DType::F32), (3, DType::BF16)] {
            let cpu = Cpu::new(CpuOptions {
                threads,
                instructions: Instructions::detect(),
            })
            .with_kv(kv);
            let cache = cpu.kv_cache(SHAPE).unwrap();
            // SAFETY: nothing is on the stream yet.
            unsafe { cache.fill(1.5) };
            let tables = tables(&cpu);
            // An admission with two words of lists and a block update stand before the rows.
            let mut message = PlanMessage::new(0);
            message.admit(0, Slot::default(), &[7, 7]);
            message.update_block(BlockUpdate::default());
            for [slot, neural, ..] in ROWS {
                let row = PlanRow {
                    slot: slot as u32,
                    neural,
                    ngram: 1,
                    ..PlanRow::default()
                };
                message.push(row, [], []);
            }
            let words = message.encode(1);
            let plan = cpu.buffer_from(words).unwrap();
            cpu.clear_kv(ClearKv {
                plan: &plan,
                step: &tables,
                cache: &cache,
            });
            cpu.read(&plan, 1).wait().unwrap();
            let mut cleared = [false; SHAPE.blocks * SHAPE.block_size];
            for [slot, neural, start, count] in ROWS {
                for position in start..start + count {
                    cleared[(block(slot, position / 4) * 4 + position % 4) as usize] = neural == 0;
                }
            }
            assert_eq!(cleared.iter().filter(|cleared| **cleared).count(), 7);
            for (index, cleared) in cleared.iter().enumerate() {
                let expected = if *cleared { 0.0 } else { 1.5 };
                for head in 0..SHAPE.heads {
                    // SAFETY: the stream has ended.
                    let row = unsafe { cache.row(index / SHAPE.block_size, index % SHAPE.block_size, head) };
                    assert_eq!(row, [expected; 2 * SHAPE.head_dim], "{index}, head {head}");
                }
            }
        }
    }

    fn tables(cpu: &Cpu) -> StepTables<Cpu> {
        let tables = StepTables::new(
            cpu,
            StepLimits {
                tokens: 20,
                requests: 5,
                samples: 1,
                blocks_per_request: 3,
                block_size: SHAPE.block_size,
            },
        )
        .unwrap();
        let blocks: Vec<i32> = (0..5)
            .flat_map(|slot| (0..3).map(move |index| block(slot, index)))
            .collect();
        let mut tokens = Vec::new();
        for (request, [_, _, start, count]) in ROWS.into_iter().enumerate() {
            tokens.extend((start..start + count).map(|position| TokenRow {
                id: 0,
                position,
                request: request as i32,
            }));
        }
        cpu.write(&tables.tokens.live, &[tokens.len() as i32]);
        cpu.write(&tables.requests.live, &[ROWS.len() as i32]);
        cpu.write(&tables.token_rows, &tokens);
        let requests = ROWS.map(|[slot, ..]| RequestRow {
            slot,
            ..RequestRow::default()
        });
        cpu.write(&tables.request_rows, &requests);
        cpu.write(&tables.block_table, &blocks);
        tables
    }
}
