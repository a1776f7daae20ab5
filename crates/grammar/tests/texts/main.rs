//! Every kind of grammar, and every text that its masks let through.

#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

mod hostile;
mod kinds;
mod objects;
mod support;
mod walks;
mod work;
