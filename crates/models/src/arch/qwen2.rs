//! Qwen2 and Qwen2.5: biases on queries, keys and values.

use super::transformer::{self, Family};
use crate::{Config, Decoder, Loader, ModelError};
use paceline_device::Backend;

const FAMILY: Family = Family {
    architecture: "qwen2",
    qkv_bias: true,
    head_norms: false,
    experts: false,
};

pub(crate) fn build<B: Backend>(
    loader: &Loader<'_, B>,
    config: &Config<'_>,
) -> Result<Decoder<B>, ModelError> {
    transformer::build(loader, config, &FAMILY)
}
