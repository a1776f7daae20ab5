//! `paceline man`.

use crate::flags::{Cli, ManFlags};
use anyhow::{Context, Result};
use clap::CommandFactory;

/// Writes the pages, one per command.
pub(crate) fn run(flags: &ManFlags) -> Result<()> {
    let folder = &flags.folder;
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), folder))
        .with_context(|| folder.display().to_string())
}
