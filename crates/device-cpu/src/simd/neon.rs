//! NEON, which every 64-bit Arm machine has: portable code compiles to it. What this proves is for `dots`.

/// Proof that NEON and its dot products are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neon(());

impl Neon {
    pub(super) fn detect() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("dotprod").then_some(Self(()))
    }
}
