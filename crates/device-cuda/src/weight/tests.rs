//! What is decided on the host: which type a weight gets, which parts are refused, in what order rows are staged.

use super::load::StoredRows;
use super::*;
use paceline_device::BlockScales;

fn part(dtype: DType, stored_rows: usize, columns: usize, data: &[u8]) -> WeightPart<'_> {
    WeightPart {
        name: "w",
        dtype,
        stored_rows,
        columns,
        data: WeightData::Stored(data),
        order: RowOrder::Stored,
    }
}

#[test]
fn a_weight_has_the_type_that_holds_its_parts() {
    let kind = |dtypes: &[DType]| {
        let parts: Vec<_> = dtypes.iter().map(|dtype| part(*dtype, 0, 32, &[])).collect();
        kind_of(&parts)
    };
    assert_eq!(kind(&[DType::BF16, DType::BF16]), Kind::Bf16);
    assert_eq!(kind(&[DType::Q4K, DType::Q6K, DType::BF16]), Kind::Bf16);
    assert_eq!(kind(&[DType::F16]), Kind::F16);
    assert_eq!(kind(&[DType::F16, DType::BF16]), Kind::F32);
    assert_eq!(kind(&[DType::F16, DType::Q8_0]), Kind::F32);
    assert_eq!(kind(&[DType::BF16, DType::F32]), Kind::F32);
}

#[test]
fn parts_that_do_not_fit_are_named() {
    let why = |part: &WeightPart<'_>, inputs| check_part(part, inputs).unwrap_err().to_string();
    let bytes = [0_u8; 64];
    assert_eq!(
        why(&part(DType::F32, 2, 4, &bytes), 4),
        "weight w: 64 bytes do not hold 2 rows of 4 F32 elements"
    );
    assert_eq!(
        why(&part(DType::F32, 4, 4, &bytes), 8),
        "weight w: has 4 columns where the parts before it have 8"
    );
    assert_eq!(
        why(&part(DType::Q8_0, 4, 40, &bytes), 40),
        "weight w: 40 columns are not whole Q8_0 blocks of 32"
    );
    let picked = WeightPart {
        order: RowOrder::Picked(vec![3, 4]),
        ..part(DType::F32, 4, 4, &bytes)
    };
    assert_eq!(why(&picked, 4), "weight w: row 4 is asked for, but there are 4");
    assert!(check_part(&part(DType::F32, 4, 4, &bytes), 4).is_ok());
}

#[test]
fn rows_are_staged_in_the_order_asked_for_by_any_number_of_threads() {
    let (stored_rows, row_bytes) = (3000, 1026);
    let data: Vec<u8> = (0..stored_rows * row_bytes)
        .map(|i| (i * 31 + i / row_bytes) as u8)
        .collect();
    let picks: Vec<u32> = (0..2500).map(|i| (i * 1237 % 3000) as u32).collect();
    for order in [RowOrder::Stored, RowOrder::Picked(picks.clone())] {
        let part = WeightPart {
            order: order.clone(),
            ..part(DType::BF16, stored_rows, row_bytes / 2, &data)
        };
        for range in [0..1, 7..2000, 100..2500] {
            let mut to = vec![0; range.len() * row_bytes];
            let rows = StoredRows {
                part: &part,
                row_bytes,
                rows: range.clone(),
            };
            assert_eq!(rows.bytes(), to.len());
            rows.copy(&mut to);
            for (row, copied) in range.zip(to.chunks(row_bytes)) {
                let index = match &order {
                    RowOrder::Stored => row,
                    RowOrder::Picked(picks) => picks[row] as usize,
                };
                assert!(
                    copied == &data[index * row_bytes..][..row_bytes],
                    "row {row} in order {order:?}"
                );
            }
        }
    }
}

#[test]
fn eight_bit_floats_are_staged_behind_the_scales_of_their_blocks() {
    let (rows, columns) = (130, 200);
    let data: Vec<u8> = (0..rows * columns).map(|i| (i % 251) as u8).collect();
    let scales: Vec<u8> = [1.0_f32, 2.0, 3.0, 4.0]
        .iter()
        .flat_map(|scale| scale.to_le_bytes())
        .collect();
    let part = WeightPart {
        data: WeightData::Scaled(
            &data,
            BlockScales {
                data: &scales,
                dtype: DType::F32,
                rows: 128,
                columns: 2,
            },
        ),
        order: RowOrder::Picked(vec![129, 0]),
        ..part(DType::F8E4M3, rows, columns, &[])
    };
    let mut to = vec![0; 2 * 2 * 132];
    let staged = StoredRows {
        part: &part,
        row_bytes: 2 * 132,
        rows: 0..2,
    };
    staged.copy(&mut to);
    for (row, (to, scales)) in [129, 0]
        .into_iter()
        .zip(to.chunks(264).zip([[3.0_f32, 4.0], [1.0, 2.0]]))
    {
        let stored = &data[row * columns..][..columns];
        assert_eq!(to[..4], scales[0].to_le_bytes());
        assert_eq!(to[4..132], stored[..128]);
        assert_eq!(to[132..136], scales[1].to_le_bytes());
        assert_eq!(to[136..136 + 72], stored[128..]);
    }
}
