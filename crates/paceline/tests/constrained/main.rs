//! Constrained requests: every finished reply is what its schema describes, and its tokens are the same with any
//! drafter, any number of steps in flight, any batch, preempted or not.

mod callers;
mod grammars;
mod identity;
