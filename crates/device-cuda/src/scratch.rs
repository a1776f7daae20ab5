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
