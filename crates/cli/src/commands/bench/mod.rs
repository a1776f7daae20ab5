//! `paceline bench`.

mod latency;
mod load;
mod ops;
mod pipeline;
mod serve;
mod speculation;
mod throughput;

pub(crate) use serve::Slo;

use crate::Ending;
use crate::flags::BenchCommand;
use crate::ui::Ui;
use anyhow::Result;
use serde::Serialize;
use std::io::{self, Write};

/// What was measured; `--json` prints it as it is.
trait Results: Serialize {
    /// A table for people.
    fn write(&self, out: &mut dyn Write) -> io::Result<()>;
}

/// Runs the command.
pub(crate) fn run(command: &BenchCommand, ui: Ui) -> Result<Ending> {
    match command {
        BenchCommand::Latency(flags) => latency::run(flags, ui)?,
        BenchCommand::Throughput(flags) => throughput::run(flags, ui)?,
        BenchCommand::Pipeline(flags) => pipeline::run(flags, ui)?,
        BenchCommand::Speculation(flags) => speculation::run(flags, ui)?,
        BenchCommand::Serve(flags) => return serve::run(flags, ui),
        BenchCommand::Ops(flags) => ops::run(flags, ui)?,
    }
    Ok(Ending::Done)
}

fn print<R: Results>(results: &R, json: bool) -> Result<()> {
    let mut out = io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, results).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        results.write(&mut out)?;
    }
    out.flush()?;
    Ok(())
}
