//! Rows of an embedding table.

use super::split;
use crate::pool::Pool;
use crate::storage::Out;
use crate::weight::formats::weights_of;
use crate::weight::layout::{ForLayout, Layout, with_layout};
use crate::weight::{CpuWeight, PANEL, Segment};
use paceline_device::abi::TokenRow;

/// `out[t] = table[id of t] · scale`. Panics when an id is outside the table.
pub(crate) fn embed(pool: &Pool, tokens: &[TokenRow], table: &CpuWeight, scale: f32, out: Out<'_>) {
    assert_eq!(out.columns, table.inputs(), "columns of the embedding");
    let tokens = &tokens[..out.rows];
    let outputs = table.outputs();
    let outside = |token: &TokenRow| usize::try_from(token.id).map_or(true, |id| id >= outputs);
    if let Some(row) = tokens.iter().position(outside) {
        let id = tokens[row].id;
        panic!("token {id} in row {row} is outside the embedding table of {outputs} rows");
    }
    // A lane touches every cache line of its panel.
    let row_ns = table.inputs() * 4;
    split(pool, tokens.len(), row_ns, |rows| {
        for row in rows {
            let id = tokens[row].id as usize;
            let at = table.segments().partition_point(|segment| segment.first <= id) - 1;
            let segment = &table.segments()[at];
            let output = id - segment.first;
            // SAFETY: ranges of rows do not overlap.
            let out = unsafe { out.row(row) };
            if segment.dtype.is_quantised() {
                weights_of(segment, output, out);
                for out in out.iter_mut() {
                    *out *= scale;
                }
                continue;
            }
            let task = Lookup {
                segment,
                output,
                scale,
                out,
            };
            with_layout(segment.dtype, task);
        }
    });
}

struct Lookup<'a> {
    segment: &'a Segment,
    output: usize,
    scale: f32,
    out: &'a mut [f32],
}

impl ForLayout for Lookup<'_> {
    type Output = ();

    fn run<L: Layout>(self) {
        let panel = self.segment.place::<L>(self.output / PANEL);
        for (k, out) in self.out.iter_mut().enumerate() {
            // SAFETY: the row has as many elements as the panel has inputs.
            *out = unsafe { L::weight(panel, k, self.output % PANEL) } * self.scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Instructions;
    use crate::weight::tests::{plain_weights, pools, stored};
    use paceline_types::DType;

    fn tokens(ids: &[i32]) -> Vec<TokenRow> {
        let row = |id: &i32| TokenRow {
            id: *id,
            ..TokenRow::default()
        };
        ids.iter().map(row).collect()
    }

    #[test]
    fn rows_of_every_type_are_the_stored_weights_times_the_scale() {
        for dtype in DType::ALL {
            let inputs = 2 * dtype.block_len().max(17);
            let data = stored(dtype, 50, inputs, 7);
            let table = data.pack(None);
            let expected = plain_weights(&data);
            let ids = [0, 49, 15, 16, 17, 33, 0, 48];
            for pool in pools() {
                let mut out = vec![0.0; ids.len() * inputs];
                embed(&pool, &tokens(&ids), &table, 1.7, Out::over(&mut out, inputs));
                for (row, id) in out.chunks(inputs).zip(ids) {
                    let stored = &expected[id as usize * inputs..][..inputs];
                    let equal = row
                        .iter()
                        .zip(stored)
                        .all(|(a, b)| a.to_bits() == (b * 1.7).to_bits());
                    assert!(equal, "{dtype}, row {id}, {:?}", pool.instructions());
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "token 50 in row 1 is outside the embedding table of 50 rows")]
    fn ids_outside_the_table_are_named() {
        let data = stored(DType::F32, 50, 3, 1);
        let pool = Pool::new(1, Instructions::Portable);
        let mut out = [0.0; 6];
        embed(
            &pool,
            &tokens(&[1, 50]),
            &data.pack(None),
            1.0,
            Out::over(&mut out, 3),
        );
    }
}
