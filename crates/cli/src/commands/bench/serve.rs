//! `paceline bench serve`.

use crate::flags::{BenchServeFlags, RequestFlags, ServerFlags};
use crate::ui::Ui;
use crate::{Ending, env, interrupt, seed};
use anyhow::{Context, Result, anyhow};
use paceline_bench::BenchError;
use paceline_bench::serve::{self, Earlier, PromptFile, PromptSource, RequestConfig, ServeConfig};
use paceline_client::{Client, ClientError};
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Runs the command.
pub(super) fn run(flags: &BenchServeFlags, ui: Ui) -> Result<Ending> {
    // What was typed wrongly should not cost a run.
    let config = config(flags)?;
    let earlier = flags.compare.as_deref().map(Earlier::read).transpose();
    let earlier = earlier.context("--compare")?;
    let json = flags.json.as_deref().map(create).transpose()?;
    let html = flags.html.as_deref().map(create).transpose()?;
    let client = client(&flags.server)?;
    let run = runtime()?.block_on(async {
        let stop = stop_on_interrupt()?;
        let run = serve::run(&config, &client, stop, &ui).await;
        run.map_err(|error| explain(error, &client))
    })?;
    if let Some((mut file, path)) = json {
        let written = run.write_json(&mut file);
        written.with_context(|| path.display().to_string())?;
    }
    if let Some((mut file, path)) = html {
        let written = run.write_html(&mut file, earlier.as_ref());
        written.with_context(|| path.display().to_string())?;
    }
    // Last: a reader of the table may stop in the middle of it.
    run.write_table(&mut io::stdout().lock(), earlier.as_ref())?;
    if run.interrupted() {
        return Ok(Ending::Cancelled);
    }
    run.check()?;
    Ok(Ending::Done)
}

/// The client of the server that is asked.
pub(super) fn client(flags: &ServerFlags) -> Result<Client> {
    let given = flags.api_key.clone();
    let key = given.map_or_else(env::api_key, |key| Ok(Some(key)))?;
    crate::client::open(&flags.base_url, key.as_deref(), flags.ca_file.as_deref())
}

/// One thread: it waits most of the time, and the server may need the others.
pub(super) fn runtime() -> Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build();
    runtime.context("cannot start the clock of the benchmark")
}

fn config(flags: &BenchServeFlags) -> Result<ServeConfig> {
    Ok(ServeConfig {
        command: command_line(std::env::args().skip(1)),
        model: flags.server.model.clone(),
        requests: requests(&flags.requests)?,
        concurrency: flags.concurrency,
        request_rate: flags.request_rate,
        burstiness: flags.burstiness,
        num_prompts: flags.num_prompts,
        duration: flags.duration.map(Duration::from_secs_f64),
        verify: flags.verify,
        slo: flags.slo.clone(),
    })
}

/// What is asked.
pub(super) fn requests(flags: &RequestFlags) -> Result<RequestConfig> {
    Ok(RequestConfig {
        endpoint: flags.endpoint.into(),
        timeout: Duration::from_secs_f64(flags.timeout),
        warmup: flags.warmup,
        seed: flags.seed.unwrap_or_else(seed::random),
        prompts: match &flags.prompts {
            Some(path) => PromptSource::File(PromptFile::read(path)?),
            None => PromptSource::Random {
                input_len: flags.input_len,
                prefix_len: flags.prefix_len,
            },
        },
        output_len: flags.output_len,
        temperature: flags.temperature,
        ignore_eos: flags.ignore_eos,
        token_ids: flags.token_ids,
        extra_body: flags.extra_body.clone().unwrap_or_default().0,
    })
}

pub(super) fn create(path: &Path) -> Result<(File, &Path)> {
    let file = File::create(path).with_context(|| path.display().to_string())?;
    Ok((file, path))
}

/// Cancelled by the first Ctrl-C; the second one ends the process.
pub(super) fn stop_on_interrupt() -> Result<CancellationToken> {
    let mut signal = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
    let stop = CancellationToken::new();
    let token = stop.clone();
    tokio::spawn(async move {
        while signal.recv().await.is_some() {
            if token.is_cancelled() {
                std::process::exit(interrupt::EXIT_CODE.into());
            }
            token.cancel();
        }
    });
    Ok(stop)
}

/// Why a server could not be measured, and what to do about it.
fn explain(error: BenchError, client: &Client) -> anyhow::Error {
    let root = client.root();
    match error {
        BenchError::Server(error @ ClientError::Connect { .. }) => anyhow!(
            "{error}; start a server there, for instance with `paceline serve`, or name another with --base-url"
        ),
        BenchError::Server(
            error @ ClientError::Status {
                status: 401 | 403, ..
            },
        ) => anyhow!("{root}: {error}; give the key with --api-key or PACELINE_API_KEY"),
        BenchError::Server(error) => anyhow!(error).context(root.to_owned()),
        other => anyhow!(other),
    }
}

/// Flags with keys behind them.
const KEYS: [&str; 2] = ["--api-key", "--peer-api-key"];

/// What was typed. Keys stay out of it: reports are passed on.
pub(super) fn command_line(arguments: impl Iterator<Item = String>) -> String {
    let mut words = vec!["paceline".to_owned()];
    let mut secret = false;
    for argument in arguments {
        words.push(match (std::mem::take(&mut secret), argument.split_once('=')) {
            (true, _) => "...".to_owned(),
            (_, Some((name, _))) if KEYS.contains(&name) => format!("{name}=..."),
            _ if argument.contains([' ', '"', '{']) => format!("'{argument}'"),
            _ => argument.clone(),
        });
        secret = KEYS.contains(&argument.as_str());
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_not_told() {
        let words = [
            "bench",
            "serve",
            "--api-key",
            "secret",
            "--api-key=secret",
            "--peer-api-key",
            "secret",
            "--extra-body",
            "{\"a\": 1}",
        ];
        let line = command_line(words.iter().map(|word| (*word).to_owned()));
        assert_eq!(
            line,
            "paceline bench serve --api-key ... --api-key=... --peer-api-key ... --extra-body '{\"a\": 1}'"
        );
    }
}
