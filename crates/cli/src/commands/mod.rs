//! The commands, one module each.

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod generate;
pub(crate) mod hub;
pub(crate) mod inspect;
pub(crate) mod man;
pub(crate) mod pack;
pub(crate) mod selftest;
pub(crate) mod serve;
