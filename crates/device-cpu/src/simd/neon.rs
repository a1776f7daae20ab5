//! NEON, which every 64-bit Arm machine has: portable code compiles to it. What this proves is for `dots`.

/// Proof that NEON and its dot products are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neon {
    i8mm: bool,
}

impl Neon {
    /// The family without products of matrices, and with them, as far as they are there.
    pub(super) fn detect() -> Vec<Self> {
        let present = std::arch::is_aarch64_feature_detected!("dotprod");
        let i8mm = std::arch::is_aarch64_feature_detected!("i8mm");
        let kinds = [(false, present), (true, present && i8mm)];
        let kinds = kinds.into_iter().filter(|(_, present)| *present);
        kinds.map(|(i8mm, _)| Self { i8mm }).collect()
    }

    /// Whether this is proof of I8MM too.
    pub(crate) const fn i8mm(self) -> bool {
        self.i8mm
    }
}
