//! The flags of the commands around generation.

use super::numbers::{self, parsed};
use clap::{Args, Subcommand};
use clap_complete::Shell;

const INSPECT: &str = "\
Examples:
  paceline inspect
  paceline inspect path/to/model.gguf
  paceline inspect path/to/config.json --json";

/// Describe a model without loading it: sizes, layers, memory per token and request.
///
/// A folder without weights or a lone config.json will do.
#[derive(Debug, Args)]
#[command(after_help = INSPECT)]
pub(crate) struct InspectFlags {
    /// Folder, config.json, GGUF file, or hub id [default: the built-in model].
    pub(crate) model: Option<String>,
    /// Print one JSON object with exact numbers.
    #[arg(long)]
    pub(crate) json: bool,
}

const DOCTOR: &str = "\
Examples:
  paceline doctor
  paceline doctor --json";

/// Report what this machine offers: processor, memory, GPU driver, cache folders.
#[derive(Debug, Args)]
#[command(after_help = DOCTOR)]
pub(crate) struct DoctorFlags {
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

const BENCH: &str = "\
Examples:
  paceline bench ops
  paceline bench ops --quick --threads 1
  paceline bench ops --json > ops.json";

/// Measure this machine.
#[derive(Debug, Subcommand)]
#[command(after_help = BENCH)]
pub(crate) enum BenchCommand {
    Ops(BenchOpsFlags),
}

/// Time the operations models are made of, against the machine's memory bandwidth.
///
/// GFLOP/s says how fast an operation computes, GB/s how fast it moves its operands, and the share compares that
/// with the rate at which memory can be read at all.
#[derive(Debug, Args)]
#[command(after_help = BENCH)]
pub(crate) struct BenchOpsFlags {
    /// Threads to compute on [default: the cores this process may use].
    #[arg(long, value_name = "N", value_parser = parsed(numbers::at_least_one))]
    pub(crate) threads: Option<usize>,
    /// Fewer types and sizes.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

const COMPLETIONS: &str = "\
Examples:
  paceline completions bash > ~/.local/share/bash-completion/completions/paceline
  paceline completions zsh > ~/.zfunc/_paceline
  paceline completions fish > ~/.config/fish/completions/paceline.fish";

/// Print a completion script for a shell.
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS)]
pub(crate) struct CompletionsFlags {
    /// Which shell.
    pub(crate) shell: Shell,
}
