//! Qwen3: normed query and key heads.

use super::transformer::{self, Family};
use crate::{Config, Decoder, Loader, ModelError};
use paceline_device::Backend;

const FAMILY: Family = Family {
    architecture: "qwen3",
    qkv_bias: false,
    head_norms: true,
    experts: false,
};

pub(crate) fn build<B: Backend>(
    loader: &Loader<'_, B>,
    config: &Config<'_>,
) -> Result<Decoder<B>, ModelError> {
    transformer::build(loader, config, &FAMILY)
}
