//! How the device behaves, from environment variables: nobody can pass values to a driver.

/// When copies that go on beside the threads happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timing {
    /// At the last moment that the rules allow.
    Late,
    /// At once.
    Early,
    /// Either, at random.
    Random,
}

/// How the device behaves.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Of the order in which warps run, and of copies at random times.
    pub(crate) seed: u64,
    /// When copies happen.
    pub(crate) timing: Timing,
    /// How many multiprocessors there seem to be.
    pub(crate) multiprocessors: u32,
    /// Bytes of memory that there seem to be.
    pub(crate) memory: u64,
    /// Instructions of warps after which a kernel is taken for one that never ends.
    pub(crate) limit: u64,
    /// A file that gets a table of kernels and what they took.
    pub(crate) times: Option<std::path::PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 0,
            timing: Timing::Late,
            multiprocessors: 4,
            memory: 3 << 30,
            limit: 4_000_000_000,
            times: None,
        }
    }
}

impl Settings {
    /// What the environment says. What cannot be read is as if it were not there, but for the seed of a run, which may be any
    /// text.
    pub(crate) fn from_environment() -> Self {
        let text = |name: &str| std::env::var(format!("PACELINE_EMULATOR_{name}")).ok();
        let number = |name: &str| text(name).and_then(|text| text.parse().ok());
        let usual = Self::default();
        Self {
            seed: number("SEED").unwrap_or(usual.seed),
            timing: match text("COPIES").as_deref() {
                Some("early") => Timing::Early,
                Some("random") => Timing::Random,
                _ => Timing::Late,
            },
            multiprocessors: number("MULTIPROCESSORS")
                .map_or(usual.multiprocessors, |count: u64| count as u32),
            memory: number("MEMORY").unwrap_or(usual.memory),
            limit: number("LIMIT").unwrap_or(usual.limit),
            times: text("TIMES").map(Into::into),
        }
    }
}

/// Numbers at random, the same for the same seed.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6a09_e667_f3bc_c909)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    /// Below a bound, which is not 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
