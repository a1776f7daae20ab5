//! Stored blocks against the values that another implementation of the formats gives them (`tests/blocks/make.py`).

use super::blocks::{Block, LONGEST};
use paceline_types::DType;

fn file(dtype: DType) -> &'static [u8] {
    macro_rules! file {
        ($name:literal) => {
            include_bytes!(concat!("../../tests/blocks/", $name, ".bin"))
        };
    }
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 | DType::F8E4M3 => &[],
        DType::Q4_0 => file!("Q4_0"),
        DType::Q4_1 => file!("Q4_1"),
        DType::Q5_0 => file!("Q5_0"),
        DType::Q5_1 => file!("Q5_1"),
        DType::Q8_0 => file!("Q8_0"),
        DType::Q2K => file!("Q2_K"),
        DType::Q3K => file!("Q3_K"),
        DType::Q4K => file!("Q4_K"),
        DType::Q5K => file!("Q5_K"),
        DType::Q6K => file!("Q6_K"),
        DType::Iq4Nl => file!("IQ4_NL"),
        DType::Iq4Xs => file!("IQ4_XS"),
    }
}

#[test]
fn every_quantised_type_has_the_values_of_the_reference_bit_for_bit() {
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_quantised()) {
        let (length, bytes, file) = (dtype.block_len(), dtype.block_bytes(), file(dtype));
        let count = file.len() / (bytes + 4 * length);
        assert_eq!(file.len(), count * (bytes + 4 * length), "{dtype}");
        assert!(count * length >= 768, "{dtype} has {count} blocks");
        let (blocks, values) = file.split_at(count * bytes);
        // What another block has left behind must not show.
        let mut block = Block::ZERO;
        block.codes.fill(-1);
        block.scales.fill(-1);
        block.mins.fill(-1);
        let blocks = blocks.chunks_exact(bytes);
        for (index, (stored, expected)) in blocks.zip(values.chunks_exact(4 * length)).enumerate() {
            block.read(dtype, stored);
            let mut read = [0.0; LONGEST];
            block.weights(dtype, &mut read[..length]);
            let expected = expected
                .chunks_exact(4)
                .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            for (at, (read, expected)) in read.iter().zip(expected).enumerate() {
                // A code of zero under a negative scale is a zero of either sign.
                let same = read.to_bits() == expected || *read == 0.0 && expected << 1 == 0;
                let expected = f32::from_bits(expected);
                assert!(
                    same,
                    "{dtype}: value {at} of block {index} is {read:e}, not {expected:e}"
                );
            }
        }
    }
}
