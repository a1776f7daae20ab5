//! `paceline completions`.

use crate::flags::{Cli, CompletionsFlags};
use anyhow::Result;
use clap::CommandFactory;
use std::io::{self, Write};

/// Prints the script for a shell.
pub(crate) fn run(flags: &CompletionsFlags) -> Result<()> {
    // The generator panics where its writer fails, so the script is made in memory.
    let mut script = Vec::new();
    clap_complete::generate(flags.shell, &mut Cli::command(), "paceline", &mut script);
    let mut out = io::stdout().lock();
    out.write_all(&script)?;
    out.flush()?;
    Ok(())
}
