//! Constrained requests: every finished reply is what its schema describes, and its tokens are the same with any
//! drafter, any number of steps in flight, any batch, preempted or not.

#[path = "../support/mod.rs"]
mod support;

mod callers;
mod grammars;
mod identity;
