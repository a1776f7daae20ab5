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
mod ngram;
mod product;
mod recurrence;
mod sample;
mod tokens;

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
        experts::header(),
        finish::header(),
        frame::header(),
        mix::header(),
        ngram::header(),
        product::header(),
        recurrence::header(),
        sample::header(),
        tokens::header(),
    ]
}
