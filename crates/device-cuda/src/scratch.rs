//! Memory that an operation needs only while it runs.

use crate::context::lock;
use crate::cuda::Cuda;
use std::collections::HashMap;
use std::sync::Mutex;

/// What scratch is for. Operations run one after another, so all of one kind share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ScratchKind {
    /// Inputs of a product, rounded to the type of its weight.
    Inputs,
    /// Those of the next product, where a product itself leaves them.
    OtherInputs,
    /// Partial sums of a product.
    Pieces,
    /// Splits of attention before they are joined.
    Splits,
    /// Which expert has which rows.
    Routing,
    /// Results of experts' first matrices.
    ExpertUp,
    /// Those behind the activation.
    ExpertActive,
    /// Results of experts' second matrices.
    ExpertDown,
    /// What the parts of rows of logits have found.
    Choices,
    /// Rows of logits that are changed by options.
    Rows,
    /// Running totals of attention over prompts.
    Totals,
    /// What lies between the kernels of a recurrent layer.
    Recurrence,
}

/// The scratch of a device: an address and a size per kind.
#[derive(Default)]
pub(crate) struct Scratch(Mutex<HashMap<ScratchKind, (u64, u64)>>);

impl Cuda {
    /// Scratch of at least `bytes` bytes, whose contents are undefined. `None` if there is no memory; whoever waits next
    /// is told.
    ///
    /// It grows with the largest shape that asks for it, and programs are captured largest first. What an earlier program
    /// was given stays good.
    pub(crate) fn scratch(&self, kind: ScratchKind, bytes: u64) -> Option<u64> {
        let mut held = lock(&self.scratch.0);
        if let Some(&(address, size)) = held.get(&kind)
            && size >= bytes
        {
            return Some(address);
        }
        match self.context.take(bytes, "scratch of operations") {
            Ok(address) => {
                held.insert(kind, (address, bytes));
                Some(address)
            }
            Err(error) => {
                self.context.remember(Err(error));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::CudaOptions;
    use crate::driver::Gpu;
    use paceline_device::Backend;

    #[test]
    fn scratch_of_a_kind_is_shared_and_grows_with_the_largest() {
        let gpu = Gpu::imagined();
        let cuda = Cuda::rehearse(gpu, CudaOptions::default()).unwrap();
        let large = cuda.scratch(ScratchKind::Pieces, 5000).unwrap();
        let held = cuda.allocated();
        assert_eq!(cuda.scratch(ScratchKind::Pieces, 100), Some(large));
        assert_eq!(cuda.scratch(ScratchKind::Pieces, 5000), Some(large));
        assert_eq!(cuda.allocated(), held);
        let other = cuda.scratch(ScratchKind::Splits, 100).unwrap();
        let larger = cuda.scratch(ScratchKind::Pieces, 90_000).unwrap();
        // What an earlier program was given stays apart from all that came later.
        assert!(other >= large + 5000 && larger >= other + 100);
        assert_eq!(cuda.scratch(ScratchKind::Pieces, 5001), Some(larger));
    }
}
