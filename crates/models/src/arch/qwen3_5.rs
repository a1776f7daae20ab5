//! Qwen3.5, dense and with mixtures of experts.

use super::qwen_hybrid::{self, Family};
use crate::{Config, Decoder, Loader, ModelError};
use paceline_device::Backend;

pub(crate) fn build<B: Backend>(
    loader: &Loader<'_, B>,
    config: &Config<'_>,
) -> Result<Decoder<B>, ModelError> {
    qwen_hybrid::build(loader, config, &family("qwen3_5", false))
}

pub(crate) fn build_moe<B: Backend>(
    loader: &Loader<'_, B>,
    config: &Config<'_>,
) -> Result<Decoder<B>, ModelError> {
    qwen_hybrid::build(loader, config, &family("qwen3_5_moe", true))
}

fn family(architecture: &'static str, experts: bool) -> Family {
    Family {
        architecture,
        grouped_projections: false,
        experts,
        always_renormalise: true,
        draft_head: false,
    }
}
