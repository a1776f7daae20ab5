//! Text in and out. One program of tests.

#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../parts/mod.rs"]
mod parts;

mod chat_templates;
mod decoder;
mod detokenizer;
mod output_formats;
mod output_parser;
mod output_parser_laws;
mod tokenizer;
