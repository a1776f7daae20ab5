//! Stored test matrices with an element-by-element reference, and the claims about packing.

use super::layout::Layout;
use super::*;
use crate::pool::Pool;
use crate::simd::Instructions;
use half::{bf16, f16};
use paceline_device::{BlockScales, SCALE_BLOCK, WeightData, e4m3_value};

/// All instructions that there are on one thread, the plainest first, and the best on several.
pub(crate) fn pools() -> Vec<Pool> {
    let one = Instructions::all().into_iter().map(|with| Pool::new(1, with));
    let several = (2..=3).map(|threads| Pool::new(threads, Instructions::detect()));
    one.chain(several).collect()
}

/// `count` numbers between -1 and 1.
pub(crate) fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random.number()).collect()
}

/// A matrix as a file would hold it.
pub(crate) struct Stored {
    pub(crate) dtype: DType,
    pub(crate) rows: usize,
    pub(crate) inputs: usize,
    pub(crate) data: Vec<u8>,
    /// One f32 per 128 rows and 128 inputs; empty where elements have none.
    pub(crate) scales: Vec<u8>,
}

impl Stored {
    pub(crate) fn part<'a>(&'a self, name: &'a str) -> WeightPart<'a> {
        WeightPart {
            name,
            dtype: self.dtype,
            stored_rows: self.rows,
            columns: self.inputs,
            data: if self.scales.is_empty() {
                WeightData::Stored(&self.data)
            } else {
                WeightData::Scaled(&self.data, self.block_scales())
            },
            order: RowOrder::Stored,
        }
    }

    fn block_scales(&self) -> BlockScales<'_> {
        BlockScales {
            data: &self.scales,
            dtype: DType::F32,
            rows: SCALE_BLOCK,
            columns: self.inputs.div_ceil(SCALE_BLOCK),
        }
    }

    /// The scale of an element that has one.
    pub(crate) fn scale(&self, row: usize, input: usize) -> f32 {
        let at = row / SCALE_BLOCK * self.inputs.div_ceil(SCALE_BLOCK) + input / SCALE_BLOCK;
        f32::from_le_bytes(self.scales[4 * at..][..4].try_into().unwrap())
    }

    pub(crate) fn pack(&self, store_as: Option<DType>) -> CpuWeight {
        CpuWeight::pack(&[self.part("w")], store_as, 2).unwrap()
    }
}

/// Random valid contents.
pub(crate) fn stored(dtype: DType, rows: usize, inputs: usize, seed: u64) -> Stored {
    let data = random_data(dtype, rows * inputs, seed);
    let scales = match dtype {
        DType::F8E4M3 => numbers(
            rows.div_ceil(SCALE_BLOCK) * inputs.div_ceil(SCALE_BLOCK),
            seed + 1,
        ),
        _ => Vec::new(),
    };
    Stored {
        dtype,
        rows,
        inputs,
        data,
        scales: scales.into_iter().flat_map(f32::to_le_bytes).collect(),
    }
}

/// Random stored elements: any bytes, with scales of sane size.
fn random_data(dtype: DType, elements: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let blocks = elements / dtype.block_len();
    let mut data = Vec::with_capacity(blocks * dtype.block_bytes());
    for _ in 0..blocks {
        let start = data.len();
        match dtype {
            DType::F32 => data.extend(random.number().to_le_bytes()),
            DType::F16 => data.extend(f16::from_f32(random.number()).to_le_bytes()),
            DType::BF16 => data.extend(bf16::from_f32(random.number()).to_le_bytes()),
            DType::F8E4M3 => {
                let byte = (random.bits() >> 9) as u8;
                data.push(if byte & 0x7f == 0x7f { 0 } else { byte });
            }
            _ => {
                data.extend((0..dtype.block_bytes()).map(|_| (random.bits() >> 9) as u8));
                let scales: &[usize] = match dtype {
                    DType::Q6K => &[208],
                    DType::Q2K => &[80, 82],
                    DType::Q3K => &[108],
                    DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K => &[0, 2],
                    _ => &[0],
                };
                for at in scales {
                    let scale = f16::from_f32(random.number() * 0.01).to_le_bytes();
                    data[start + at..start + at + 2].copy_from_slice(&scale);
                }
            }
        }
    }
    data
}

/// Random numbers that are the same every time.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15))
    }

    fn bits(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// Between -1 and 1.
    fn number(&mut self) -> f32 {
        self.bits() as f32 / 2_147_483_648.0 - 1.0
    }
}

/// All weights, straight from the description of the formats.
pub(crate) fn plain_weights(stored: &Stored) -> Vec<f32> {
    let dtype = stored.dtype;
    let length = dtype.block_len();
    (0..stored.rows * stored.inputs)
        .map(|index| {
            let block = &stored.data[index / length * dtype.block_bytes()..][..dtype.block_bytes()];
            let scale = match dtype {
                DType::F8E4M3 => stored.scale(index / stored.inputs, index % stored.inputs),
                _ => 1.0,
            };
            element(dtype, block, index % length) * scale
        })
        .collect()
}

/// The numbers behind the codes of IQ4.
const IQ4: [i32; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

fn element(dtype: DType, b: &[u8], j: usize) -> f32 {
    match dtype {
        DType::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        DType::F16 => f16::from_le_bytes([b[0], b[1]]).to_f32(),
        DType::BF16 => bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        DType::F8E4M3 => e4m3_value(b[0]),
        _ => {
            let Quantised { scale, code, minimum } = quantised(dtype, b, j);
            minimum.map_or(scale * code as f32, |minimum| scale.mul_add(code as f32, minimum))
        }
    }
}

/// A weight of a quantised type: `scale · code + minimum`.
pub(crate) struct Quantised {
    pub(crate) scale: f32,
    pub(crate) code: i32,
    pub(crate) minimum: Option<f32>,
}

/// Weight `j` of a stored block, straight from the description of the formats.
pub(crate) fn quantised(dtype: DType, b: &[u8], j: usize) -> Quantised {
    let half = |at: usize| f16::from_le_bytes([b[at], b[at + 1]]).to_f32();
    let nibble = |from: usize| {
        let byte = b[from + j % 16];
        i32::from(if j < 16 { byte & 15 } else { byte >> 4 })
    };
    let bit = |from: usize| i32::from(b[from + j / 8] >> (j % 8) & 1);
    let (scale, code, minimum) = match dtype {
        DType::Q8_0 => (half(0), i32::from(b[2 + j] as i8), None),
        DType::Q4_0 => (half(0), nibble(2) - 8, None),
        DType::Q4_1 => (half(0), nibble(4), Some(half(2))),
        DType::Q5_0 => (half(0), nibble(6) + 16 * bit(2) - 16, None),
        DType::Q5_1 => (half(0), nibble(8) + 16 * bit(4), Some(half(2))),
        DType::Q4K | DType::Q5K => {
            let (sub, l) = (j / 32, j % 32);
            let (scale, min) = if sub < 4 {
                (b[4 + sub] & 63, b[8 + sub] & 63)
            } else {
                (
                    b[8 + sub] & 15 | b[sub] >> 6 << 4,
                    b[8 + sub] >> 4 | b[4 + sub] >> 6 << 4,
                )
            };
            let codes = if dtype == DType::Q4K { 16 } else { 48 };
            let byte = b[codes + sub / 2 * 32 + l];
            let mut code = if sub % 2 == 0 { byte & 15 } else { byte >> 4 };
            if dtype == DType::Q5K {
                code |= (b[16 + l] >> sub & 1) << 4;
            }
            let (scale, min) = (half(0) * f32::from(scale), -(half(2) * f32::from(min)));
            (scale, i32::from(code), Some(min))
        }
        DType::Q6K => {
            let (n, l, part) = (j / 128, j % 32, j % 128 / 32);
            let low = b[n * 64 + l + part % 2 * 32] >> (part / 2 * 4) & 15;
            let high = b[128 + n * 32 + l] >> (2 * part) & 3;
            let scale = half(208) * f32::from(b[192 + j / 16] as i8);
            (scale, i32::from(low | high << 4) - 32, None)
        }
        DType::Q2K => {
            let code = b[16 + j / 128 * 32 + j % 32] >> (j % 128 / 32 * 2) & 3;
            let (scale, min) = (b[j / 16] & 15, b[j / 16] >> 4);
            let (scale, min) = (half(80) * f32::from(scale), -(half(82) * f32::from(min)));
            (scale, i32::from(code), Some(min))
        }
        DType::Q3K => {
            let low = b[32 + j / 128 * 32 + j % 32] >> (j % 128 / 32 * 2) & 3;
            let high = b[j % 32] >> (j / 32) & 1;
            let (sub, scales) = (j / 16, &b[96..108]);
            let scale = if sub < 8 {
                scales[sub] & 15
            } else {
                scales[sub - 8] >> 4
            } | (scales[8 + sub % 4] >> (sub / 4 * 2) & 3) << 4;
            let scale = half(108) * (i32::from(scale) - 32) as f32;
            (scale, i32::from(low | high << 2) - 4, None)
        }
        DType::Iq4Nl => (half(0), IQ4[nibble(2) as usize], None),
        DType::Iq4Xs => {
            let (sub, l) = (j / 32, j % 32);
            let scale = b[4 + sub / 2] >> (sub % 2 * 4) & 15 | (b[2 + sub / 4] >> (sub % 4 * 2) & 3) << 4;
            let byte = b[8 + 16 * sub + l % 16];
            let code = if l < 16 { byte & 15 } else { byte >> 4 };
            let scale = half(0) * (i32::from(scale) - 32) as f32;
            (scale, IQ4[usize::from(code)], None)
        }
        DType::F32 | DType::F16 | DType::BF16 | DType::F8E4M3 => unreachable!("{dtype} has no codes"),
    };
    Quantised { scale, code, minimum }
}

fn failure(parts: &[WeightPart<'_>], store_as: Option<DType>) -> String {
    match CpuWeight::pack(parts, store_as, 2) {
        Ok(_) => "packed".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn shapes_that_do_not_fit_are_named() {
    let good = stored(DType::Q8_0, 3, 64, 1);
    let mut short = good.part("model.short");
    short.data = WeightData::Stored(&good.data[1..]);
    assert_eq!(
        failure(&[short], None),
        "weight model.short: 203 bytes do not hold 3 rows of 64 Q8_0 elements"
    );
    let mut ragged = good.part("ragged");
    ragged.columns = 40;
    assert_eq!(
        failure(&[ragged], None),
        "weight ragged: 40 columns are not whole Q8_0 blocks of 32"
    );
    let mut picked = good.part("picked");
    picked.order = RowOrder::Picked(vec![2, 0, 3]);
    assert_eq!(
        failure(&[picked], None),
        "weight picked: row 3 is asked for, but there are 3"
    );
    let narrow = stored(DType::F32, 2, 32, 1);
    assert_eq!(
        failure(&[good.part("wide"), narrow.part("narrow")], None),
        "weight narrow: has 32 columns where the parts before it have 64"
    );
    assert_eq!(
        failure(&[good.part("w")], Some(DType::Q4_0)),
        "weight w: cannot be converted from Q8_0 to Q4_0"
    );
    let narrow = stored(DType::F32, 2, 33, 1);
    assert_eq!(
        failure(&[narrow.part("w")], Some(DType::Q4_0)),
        "weight w: cannot be converted from F32 to Q4_0"
    );
    assert_eq!(
        failure(&[narrow.part("w")], Some(DType::Q8_0)),
        "weight w: 33 columns are not whole Q8_0 blocks of 32"
    );
    assert_eq!(failure(&[], None), "weight without parts: has no rows");
}

#[test]
fn values_that_are_not_finite_are_named_in_every_type() {
    for dtype in DType::ALL {
        let inputs = 3 * dtype.block_len().max(100 / dtype.block_len());
        let mut data = stored(dtype, 20, inputs, 5);
        let row_bytes = dtype.bytes_for(inputs).unwrap();
        // The high byte of the last value (or scale) of row 17.
        let at = match dtype {
            DType::F32 | DType::F16 | DType::BF16 | DType::F8E4M3 | DType::Q2K | DType::Q3K | DType::Q6K => {
                18 * row_bytes - 1
            }
            _ => 18 * row_bytes - dtype.block_bytes() + 1,
        };
        data.data[at] = match dtype {
            DType::F32 | DType::BF16 | DType::F8E4M3 => 0xff,
            _ => 0x7c,
        };
        if dtype != DType::F8E4M3 {
            data.data[at - 1] |= 0x80;
        }
        for store_as in [None, Some(DType::F32), Some(DType::BF16), Some(DType::F16)] {
            assert_eq!(
                failure(&[data.part("bad")], store_as),
                "weight bad: row 17 holds a value that is not finite",
                "{dtype} as {store_as:?}"
            );
        }
    }
    let large = Stored {
        dtype: DType::F32,
        rows: 1,
        inputs: 1,
        data: 70_000.0_f32.to_le_bytes().to_vec(),
        scales: Vec::new(),
    };
    assert_eq!(
        failure(&[large.part("large")], Some(DType::F16)),
        "weight large: row 0 holds 7e4, too large for F16"
    );
}

#[test]
fn a_scale_that_is_not_finite_is_named() {
    for scale in [f32::NAN, f32::INFINITY, f32::MAX] {
        let mut data = stored(DType::F8E4M3, 140, 130, 5);
        // Of rows from 128 on and the last two inputs.
        data.scales[12..].copy_from_slice(&scale.to_le_bytes());
        assert_eq!(
            failure(&[data.part("bad")], None),
            "weight bad: row 128 holds a value that is not finite"
        );
    }
}

#[test]
fn floats_become_eight_bits_with_a_scale_per_row_and_block() {
    let data = stored(DType::F32, 20, 300, 5);
    let (packed, expected) = (data.pack(Some(DType::F8E4M3)), plain_weights(&data));
    assert_eq!(packed.bytes(), 2 * (3 * 64 + 300 * 16_usize).next_multiple_of(64));
    for (row, expected) in expected.chunks(300).enumerate() {
        for (first, expected) in (0..300).step_by(SCALE_BLOCK).zip(expected.chunks(SCALE_BLOCK)) {
            let largest = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            for (k, expected) in (first..).zip(expected) {
                let panel = packed.segments()[0].place::<layout::E4m3Panel>(row / PANEL);
                // SAFETY: an input and an output of the panel.
                let kept = unsafe { layout::E4m3Panel::weight(panel, k, row % PANEL) };
                // Three bits of mantissa, and steps of a 512th below the smallest normal number.
                let limit = (expected.abs() / 16.0).max(largest / 448.0 / 1024.0) * 1.000_001;
                assert!(
                    (kept - expected).abs() <= limit,
                    "row {row}, input {k}: {kept} for {expected}"
                );
            }
        }
    }
    let zero = Stored {
        data: vec![0; 4 * 256],
        ..stored(DType::F32, 1, 256, 1)
    };
    assert!(
        zero.pack(Some(DType::F8E4M3))
            .panel_bytes()
            .flatten()
            .all(|byte| *byte == 0)
    );
}

#[test]
fn a_large_weight_is_packed_by_all_threads_like_a_small_one() {
    let data = stored(DType::BF16, 1_000, 300, 3);
    let whole = data.pack(None);
    for first in [0_u32, 513, 984] {
        let mut part = data.part("w");
        part.order = RowOrder::Picked((first..first + 16).collect());
        let small = CpuWeight::pack(&[part], None, 2).unwrap();
        let bits = |weight: &CpuWeight, panel: usize| -> Vec<u32> {
            let place = weight.segments()[0].place::<layout::Bf16Panel>(panel);
            let places = (0..300).flat_map(|k| (0..PANEL).map(move |lane| (k, lane)));
            // SAFETY: inputs and outputs of the panel.
            let weight = |(k, lane)| unsafe { layout::Bf16Panel::weight(place, k, lane) }.to_bits();
            places.map(weight).collect()
        };
        if first % 16 == 0 {
            assert_eq!(bits(&whole, first as usize / 16), bits(&small, 0));
        }
    }
    assert_eq!(whole.bytes(), 63 * 16 * 300 * 2);
}

/// A kernel that takes four panels reads one stream, and so does one that takes what the last ones are; a part of a weight finds its
/// panels where they are.
#[test]
fn panels_of_floats_lie_side_by_side_four_at_a_time() {
    fn check<L: layout::Layout>(dtype: DType) {
        let data = stored(dtype, 7 * PANEL - 3, 9, 1);
        let whole = data.pack(None);
        let part = whole.first_outputs(6 * PANEL);
        let start = whole.segments()[0].place::<L>(0).start as usize;
        let four = 4 * 5 * L::PAIR_BYTES; // five pairs: nine inputs and a place that stays empty
        let expected = [
            (0, 4),
            (L::PAIR_BYTES, 4),
            (2 * L::PAIR_BYTES, 4),
            (3 * L::PAIR_BYTES, 4),
            (four, 3),
            (four + L::PAIR_BYTES, 3),
            (four + 2 * L::PAIR_BYTES, 3),
        ];
        for (panel, expected) in expected.into_iter().enumerate() {
            for weight in [&whole, &part] {
                if panel < weight.panels() {
                    let place = weight.segments()[0].place::<L>(panel);
                    assert_eq!(
                        (place.start as usize - start, place.abreast),
                        expected,
                        "{dtype}, panel {panel}"
                    );
                }
            }
        }
    }
    check::<layout::F32Panel>(DType::F32);
    check::<layout::F16Panel>(DType::F16);
    check::<layout::Bf16Panel>(DType::BF16);
}
