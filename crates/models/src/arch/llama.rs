//! Llama 2 and 3, SmolLM2 and everything else that names itself a Llama.

use super::transformer::{self, Family};
use crate::{Config, Decoder, Loader, ModelError};
use paceline_device::Backend;

const FAMILY: Family = Family {
    architecture: "llama",
    qkv_bias: false,
    head_norms: false,
    experts: false,
};

pub(crate) fn build<B: Backend>(
    loader: &Loader<'_, B>,
    config: &Config<'_>,
) -> Result<Decoder<B>, ModelError> {
    transformer::build(loader, config, &FAMILY)
}
