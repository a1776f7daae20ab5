//! `paceline bench compare`.

use super::serve::{client, command_line, create, requests, runtime, stop_on_interrupt};
use crate::Ending;
use crate::flags::BenchCompareFlags;
use crate::ui::Ui;
use anyhow::{Context, Result};
use paceline_bench::Results;
use paceline_bench::serve::compare::{self, CompareConfig};
use std::io::{self, Write};

/// Runs the command.
pub(super) fn run(flags: &BenchCompareFlags, ui: Ui) -> Result<Ending> {
    let config = CompareConfig {
        command: command_line(std::env::args().skip(1)),
        models: [flags.server.model.clone(), flags.peer_model.clone()],
        requests: requests(&flags.requests)?,
        crowds: flags.concurrency.clone(),
        turns: flags.turns,
    };
    let json = flags.json.as_deref().map(create).transpose()?;
    let ours = client(&flags.server)?;
    let ca_file = flags.server.ca_file.as_deref();
    let peer = crate::client::open(&flags.peer_url, flags.peer_api_key.as_deref(), ca_file)?;
    let comparison = runtime()?.block_on(async {
        let stop = stop_on_interrupt()?;
        anyhow::Ok(compare::run(&config, [&ours, &peer], stop, &ui).await?)
    })?;
    if let Some((mut file, path)) = json {
        let written = serde_json::to_writer_pretty(&mut file, &comparison).map_err(io::Error::from);
        let written = written.and_then(|()| writeln!(file));
        written.with_context(|| path.display().to_string())?;
    }
    comparison.write(&mut io::stdout().lock())?;
    if comparison.interrupted() {
        return Ok(Ending::Cancelled);
    }
    comparison.check()?;
    Ok(Ending::Done)
}
