//! Philox4x32-10: random bits as a pure function of a counter and a key.
//!
//! J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// Four random words.
pub(crate) fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    philox4x32_lanes(counter.map(|word| [word]), key).map(|[word]| word)
}

/// The same for `N` counters at once: a lane is a counter. Loops over lanes become vectors where it is inlined.
#[inline(always)]
pub(crate) fn philox4x32_lanes<const N: usize>(counters: [[u32; N]; 4], key: [u32; 2]) -> [[u32; N]; 4] {
    let [mut a, mut b, mut c, mut d] = counters;
    let mut k = key;
    for _ in 0..ROUNDS {
        for lane in 0..N {
            let left = u64::from(MULTIPLIERS[0]) * u64::from(a[lane]);
            let right = u64::from(MULTIPLIERS[1]) * u64::from(c[lane]);
            a[lane] = (right >> 32) as u32 ^ b[lane] ^ k[0];
            b[lane] = right as u32;
            c[lane] = (left >> 32) as u32 ^ d[lane] ^ k[1];
            d[lane] = left as u32;
        }
        k = [k[0].wrapping_add(KEY_STEPS[0]), k[1].wrapping_add(KEY_STEPS[1])];
    }
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_vectors_come_out() {
        assert_eq!(
            philox4x32([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox4x32([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn lanes_are_counters_of_their_own() {
        let counters: [[u32; 16]; 4] =
            std::array::from_fn(|word| std::array::from_fn(|lane| (word * 1_000_003 + lane * 77) as u32));
        let key = [0xdead_beef, 7];
        let lanes = philox4x32_lanes(counters, key);
        for lane in 0..16 {
            let one = philox4x32(counters.map(|word| word[lane]), key);
            assert_eq!(lanes.map(|word| word[lane]), one, "{lane}");
        }
    }
}
