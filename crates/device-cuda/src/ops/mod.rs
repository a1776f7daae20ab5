//! The operations: shapes and overlaps are checked here, then a kernel is enqueued.
//!
//! Each file has the wrappers of a group of kernels, with their arguments declared beside them.

mod attention;
mod checks;
pub(crate) mod clock;
mod dense;
mod drafts;
pub(crate) mod experts;
mod finish;
mod frame;
pub(crate) mod inputs;
mod mix;
pub(crate) mod mixture;
mod ngram;
mod norms;
mod product;
mod recurrence;
mod sample;
mod space;
mod tokens;
mod widths;

use crate::cuda::Cuda;
use paceline_device::StepTables;

/// A program with room for fewer tokens per request has no kernels of prompts, even if there may be one.
const PROMPT_TOKENS: usize = 2;

/// Whether a program is one for prompts, beside which there may be decodes.
fn expects_prompts(step: &StepTables<Cuda>) -> bool {
    step.prompts && step.tokens.bucket >= PROMPT_TOKENS * step.requests.bucket
}

/// The headers that declare the arguments of all kernels.
#[cfg(test)]
pub(crate) fn headers() -> Vec<(&'static str, String)> {
    vec![
        attention::header(),
        clock::header(),
        crate::plants::header(),
        crate::weight::header(),
        dense::header(),
        drafts::header(),
        mixture::header(),
        finish::header(),
        frame::header(),
        mix::header(),
        ngram::header(),
        product::header(),
        recurrence::header(),
        sample::header(),
        space::header(),
        tokens::header(),
    ]
}
