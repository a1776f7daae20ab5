//! Floats of eight bits: a sign, four bits of exponent, three of mantissa. No infinities; all ones is not a number.

/// The largest one.
pub const E4M3_MAX: f32 = 448.0;

/// What a byte stands for.
pub fn e4m3_value(code: u8) -> f32 {
    if code & 0x7f == 0x7f {
        return f32::NAN;
    }
    // The same bits a little further down are a half-precision float of a 256th of the value.
    let shifted = (i16::from_be_bytes([code, 0]) >> 1) as u16 & 0xbfff;
    half::f16::from_bits(shifted).to_f32() * 256.0
}

/// The nearest to a number, ties to even; what is larger than all becomes the largest.
pub fn e4m3_nearest(value: f32) -> u8 {
    let magnitude = value.abs();
    let code = if magnitude.is_nan() {
        0x7f
    } else if magnitude < 1.0 / 64.0 {
        // Numbers without a leading one, in steps of a 512th; the eighth is the first with one.
        (magnitude * 512.0).round_ties_even() as u32
    } else {
        let bits = magnitude.to_bits();
        (((bits + 0x7_ffff + (bits >> 20 & 1)) >> 20) - (120 << 3)).min(0x7e)
    };
    code as u8 | u8::from(value.is_sign_negative()) << 7
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Straight from the description of the format.
    fn plain(code: u8) -> f32 {
        let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
        let magnitude = match exponent {
            0 => mantissa / 8.0 * 2.0_f32.powi(-6),
            _ => (1.0 + mantissa / 8.0) * 2.0_f32.powi(exponent - 7),
        };
        if code & 0x80 == 0 { magnitude } else { -magnitude }
    }

    #[test]
    fn every_code_has_the_value_of_the_format_and_is_nearest_to_it() {
        for code in 0..=255_u8 {
            if code & 0x7f == 0x7f {
                assert!(e4m3_value(code).is_nan());
                continue;
            }
            assert_eq!(e4m3_value(code).to_bits(), plain(code).to_bits(), "{code:#x}");
            assert_eq!(e4m3_nearest(plain(code)), code, "{code:#x}");
        }
        assert_eq!(plain(0x7e).to_bits(), E4M3_MAX.to_bits());
    }

    #[test]
    fn numbers_between_two_go_to_the_nearer_and_halfway_to_the_even_one() {
        for code in 0..0x7e_u8 {
            let (low, high) = (plain(code), plain(code + 1));
            let middle = f32::midpoint(low, high);
            assert_eq!(e4m3_nearest(middle.next_down()), code);
            assert_eq!(e4m3_nearest(middle.next_up()), code + 1);
            assert_eq!(e4m3_nearest(middle), code + code % 2);
            assert_eq!(e4m3_nearest(-middle), 0x80 | (code + code % 2));
        }
        for large in [449.0, 464.0, 480.0, 1e9, f32::MAX, f32::INFINITY] {
            assert_eq!(e4m3_nearest(large), 0x7e);
            assert_eq!(e4m3_nearest(-large), 0xfe);
        }
        assert_eq!(e4m3_nearest(f32::NAN) & 0x7f, 0x7f);
    }
}
