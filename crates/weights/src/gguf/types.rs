//! The element types of GGUF tensors by their numbers.

use paceline_types::DType;

/// The element type with number `ggml_type`, if the engine computes with it.
pub const fn dtype_of(ggml_type: u32) -> Option<DType> {
    Some(match ggml_type {
        0 => DType::F32,
        1 => DType::F16,
        2 => DType::Q4_0,
        3 => DType::Q4_1,
        6 => DType::Q5_0,
        7 => DType::Q5_1,
        8 => DType::Q8_0,
        10 => DType::Q2K,
        11 => DType::Q3K,
        12 => DType::Q4K,
        13 => DType::Q5K,
        14 => DType::Q6K,
        20 => DType::Iq4Nl,
        23 => DType::Iq4Xs,
        30 => DType::BF16,
        _ => return None,
    })
}

/// The number of an element type in GGUF files, if they have it.
pub const fn ggml_type_of(dtype: DType) -> Option<u32> {
    Some(match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::Q4_0 => 2,
        DType::Q4_1 => 3,
        DType::Q5_0 => 6,
        DType::Q5_1 => 7,
        DType::Q8_0 => 8,
        DType::Q2K => 10,
        DType::Q3K => 11,
        DType::Q4K => 12,
        DType::Q5K => 13,
        DType::Q6K => 14,
        DType::Iq4Nl => 20,
        DType::Iq4Xs => 23,
        DType::BF16 => 30,
        DType::F8E4M3 => return None,
    })
}

/// The name of the type with number `ggml_type`, supported or not, if it is known.
pub const fn ggml_type_name(ggml_type: u32) -> Option<&'static str> {
    Some(match ggml_type {
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        40 => "NVFP4",
        _ => match dtype_of(ggml_type) {
            Some(dtype) => dtype.name(),
            None => return None,
        },
    })
}

/// What people call a file whose `general.file_type` has this number, if it is known: `Q4_K_M` says more than the type that most
/// of its tensors have.
pub const fn file_type_name(file_type: u64) -> Option<&'static str> {
    Some(match file_type {
        0 => "F32",
        1 => "F16",
        2 => "Q4_0",
        3 => "Q4_1",
        7 => "Q8_0",
        8 => "Q5_0",
        9 => "Q5_1",
        10 => "Q2_K",
        11 => "Q3_K_S",
        12 => "Q3_K_M",
        13 => "Q3_K_L",
        14 => "Q4_K_S",
        15 => "Q4_K_M",
        16 => "Q5_K_S",
        17 => "Q5_K_M",
        18 => "Q6_K",
        19 => "IQ2_XXS",
        20 => "IQ2_XS",
        21 => "Q2_K_S",
        22 => "IQ3_XS",
        23 => "IQ3_XXS",
        24 => "IQ1_S",
        25 => "IQ4_NL",
        26 => "IQ3_S",
        27 => "IQ3_M",
        28 => "IQ2_S",
        29 => "IQ2_M",
        30 => "IQ4_XS",
        31 => "IQ1_M",
        32 => "BF16",
        36 => "TQ1_0",
        37 => "TQ2_0",
        _ => return None,
    })
}

/// The type for a message: its name and number, or the number alone.
pub(crate) fn describe(ggml_type: u32) -> String {
    match ggml_type_name(ggml_type) {
        Some(name) => format!("{name} ({ggml_type})"),
        None => format!("number {ggml_type}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_types_are_inverse() {
        let numbered = DType::ALL.map(|dtype| ggml_type_of(dtype).map(|number| (dtype, number)));
        let numbered: Vec<_> = numbered.into_iter().flatten().collect();
        for (dtype, number) in &numbered {
            assert_eq!(dtype_of(*number), Some(*dtype));
            assert_eq!(ggml_type_name(*number), Some(dtype.name()));
        }
        assert_eq!((0..64).filter(|&n| dtype_of(n).is_some()).count(), numbered.len());
        assert_eq!(ggml_type_of(DType::F8E4M3), None, "a type of safetensors alone");
    }
}
