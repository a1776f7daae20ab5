//! Seeded random numbers: the same on every machine, and named, so that a case can be made again alone.

/// The `SplitMix64` generator.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Numbers that depend on the seed and the name of what they are for.
    pub fn new(seed: u64, name: &str) -> Self {
        let named = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ named)
    }

    /// Any 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Below a bound that is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.bits()) * bound as u128) >> 64) as usize
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// Between -`scale` and `scale`.
    pub fn number(&mut self, scale: f32) -> f32 {
        ((self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0) * scale
    }

    /// That many numbers.
    pub fn numbers(&mut self, len: usize, scale: f32) -> Vec<f32> {
        (0..len).map(|_| self.number(scale)).collect()
    }

    /// One of several.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }
}
