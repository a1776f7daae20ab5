//! Qwen3-MoE: Qwen3 with mixtures of experts.

use super::transformer::{self, Family};
use crate::{Config, Decoder, Loader, ModelError};
use paceline_device::Backend;

const FAMILY: Family = Family {
    architecture: "qwen3_moe",
    qkv_bias: false,
    head_norms: true,
    experts: true,
};

pub(crate) fn build<B: Backend>(
    loader: &Loader<'_, B>,
    config: &Config<'_>,
) -> Result<Decoder<B>, ModelError> {
    transformer::build(loader, config, &FAMILY)
}
