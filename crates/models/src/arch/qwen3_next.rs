//! Qwen3-Next: the hybrid with mixtures and with projections stored by key head.

use super::qwen_hybrid::{self, Family};
use crate::{Config, Decoder, Loader, ModelError};
use paceline_device::Backend;

/// Its configuration does not mention the draft head that every published checkpoint has.
const FAMILY: Family = Family {
    architecture: "qwen3_next",
    grouped_projections: true,
    experts: true,
    always_renormalise: false,
    draft_head: true,
};

pub(crate) fn build<B: Backend>(
    loader: &Loader<'_, B>,
    config: &Config<'_>,
) -> Result<Decoder<B>, ModelError> {
    qwen_hybrid::build(loader, config, &FAMILY)
}
