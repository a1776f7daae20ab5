//! How each operation is checked and put on the stream.
//!
//! Shapes and overlaps are checked when an operation is enqueued. The closure that goes on the stream holds
//! clones of the handles and makes views of them when it runs, when the live rows are known.
//!
//! That is why the views below are sound: closures run on the stream, one at a time; the checks have excluded
//! that an operation writes what it reads; and tables, weights and parameters are written only by copies, which
//! are entries of the stream themselves.

mod dense;
mod drafts;
mod frame;
mod ngram;
mod sequence;
mod tokens;
