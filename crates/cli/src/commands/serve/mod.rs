//! `paceline serve`.

mod keys;
mod kv_events;
mod log;
mod model;
mod table;
mod traces;

use crate::engine::{self, Demand, EngineOptions};
use crate::flags::LogLevel;
use crate::model::{LoadedModel, ModelSource};
use crate::terminal::{self, Silence};
use crate::ui::Ui;
use crate::{Ending, env, interrupt};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use paceline::Options;
use paceline_kv_events::KvEventsConfig;
use paceline_server::{Server, ServerConfig, TlsConfig};
use paceline_text::{ReasoningFormat, ToolFormat};
use std::fs;
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Threads that talk to clients. They wait most of the time; the engine needs the cores.
const WORKERS: usize = 2;

/// Time for work under way whose client has left.
const LAST_WORK: Duration = Duration::from_millis(500);

/// What to serve, at which address, with which keys and limits.
#[derive(Debug)]
pub(crate) struct ServeConfig {
    pub(crate) model: ModelSource,
    /// Names that requests may call the model by; the first is the one in replies.
    pub(crate) names: Vec<String>,
    /// A template in place of the model's, or the name of a file with one.
    pub(crate) chat_template: Option<String>,
    /// How it writes tool calls.
    pub(crate) tool_format: ParserChoice<ToolFormat>,
    /// How it marks its reasoning.
    pub(crate) reasoning_format: ParserChoice<ReasoningFormat>,
    /// Whose sampling requests get that do not say.
    pub(crate) generation_config: GenerationConfig,
    /// What comes before it.
    pub(crate) sampling: Options,
    /// Where to listen.
    pub(crate) address: SocketAddr,
    /// A file with more keys.
    pub(crate) api_key_file: Option<PathBuf>,
    /// Files with certificates and key.
    pub(crate) tls: Option<(PathBuf, PathBuf)>,
    /// Where spans of requests go.
    pub(crate) traces_endpoint: Option<String>,
    /// What is logged.
    pub(crate) log: Option<LogLevel>,
    pub(crate) log_format: LogFormat,
    /// Keys and limits.
    pub(crate) server: ServerConfig,
    /// How the engine is set up.
    pub(crate) engine: EngineOptions,
    /// Where routers are told what is cached.
    pub(crate) kv_events: Option<KvEventsConfig>,
    /// Flags that were given and change nothing.
    pub(crate) unused: Vec<Unused>,
}

/// A format by name, by the template, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParserChoice<T> {
    Auto,
    None,
    Given(T),
}

/// Whose sampling requests get that do not say how to sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum GenerationConfig {
    /// The model's, or else OpenAI's.
    #[default]
    Auto,
    /// OpenAI's, whatever the model says.
    #[value(alias = "openai")]
    Vllm,
    /// That of the page and the terminal for a model that does not say.
    Paceline,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people.
    Text,
    /// One object per line.
    Json,
}

/// A flag that changes nothing, and why.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unused {
    pub(crate) flag: &'static str,
    pub(crate) reason: &'static str,
}

/// Runs the command.
pub(crate) fn run(config: ServeConfig, ui: Ui) -> Result<Ending> {
    let level = config.log.map_or_else(env::log_level, |level| Ok(Some(level)))?;
    let format = config.log_format;
    let _log = log::start(level.unwrap_or(LogLevel::Info), format);
    match format {
        LogFormat::Text => start(config, ui),
        // Whoever reads the log reads nothing but objects: no table, no bars, and a failure is a line of it.
        LogFormat::Json => start(config, Ui::new(true)).or_else(|error| {
            tracing::error!("{error:#}");
            Ok(Ending::Failed)
        }),
    }
}

fn start(mut config: ServeConfig, ui: Ui) -> Result<Ending> {
    let start = Instant::now();
    config.server.api_keys = keys::gather(&config.server.api_keys, config.api_key_file.as_deref())?;
    check_key_priorities(&config.server)?;
    config.server.tls = config.tls.as_ref().map(read_tls).transpose()?;
    config.server.traces = traces::config(config.traces_endpoint.as_deref())?;
    // Before the model is loaded: a port that cannot be had should not cost that time.
    let listener = listen(config.address)?;
    let address = listener.local_addr().context("the address that is listened on")?;
    let _events = kv_events::start(&mut config)?;
    let model = LoadedModel::open(&config.model, ui)?;
    let outline = engine::outline(&model)?;
    let demand = Demand {
        sequences: usize::MAX,
        choices: 1,
        longest: usize::MAX,
    };
    let engine = config.engine.start((&model, &outline), demand, ui)?;
    let (served, texts) = model::served((&model, &outline), &config, engine.max_model_len())?;
    let features = table::features(&config, &engine, (&served, &texts));
    let width = terminal::status_width();
    ui.note(format_args!("{}", table::render(&model.source, &features, width)));
    ui.note(format_args!("memory\n{}", engine.memory()));
    let url = |address| url(&config, address);
    let here = url(reachable(address));
    let page = if config.server.page {
        format!(": open {here} in a browser, or")
    } else {
        String::new()
    };
    let example = table::example(&here, &config, &texts);
    let url = url(address);
    let server = Server {
        config: config.server,
        model: served,
        engine,
        features,
    };
    let seconds = start.elapsed().as_secs_f64();
    tracing::info!(source = model.source.as_str(), seconds, "model loaded");
    drop((model, outline));
    let announce = || {
        announce(&url);
        ui.note(format_args!("try it{page}"));
        ui.verbatim(&example);
    };
    serve(server, listener, announce)
}

/// Where a client on this machine finds a server that listens everywhere.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

fn url(config: &ServeConfig, address: SocketAddr) -> String {
    let scheme = if config.server.tls.is_some() {
        "https"
    } else {
        "http"
    };
    format!("{scheme}://{address}")
}

fn serve(server: Server, listener: TcpListener, announce: impl FnOnce()) -> Result<Ending> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .context("cannot start the threads of the server")?;
    let ended = runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let drain = until_signal(&runtime)?;
        // Signals are heard by now, so the terminal is restored whatever the ending.
        let _silence = Silence::begin();
        announce();
        server.serve(listener, drain).await?;
        anyhow::Ok(())
    });
    runtime.shutdown_timeout(LAST_WORK);
    ended.map(|()| Ending::Done)
}

/// The one line that goes to stdout: a program that starts the server waits for it. A closed stdout is no reason to fail.
fn announce(url: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "Paceline is listening on {url}").and_then(|()| out.flush());
}

/// Waits for the first signal to end, a terminal that hangs up included. The second one ends the process.
fn until_signal(runtime: &Runtime) -> Result<impl Future<Output = ()> + use<>> {
    let kinds = [
        SignalKind::terminate(),
        SignalKind::interrupt(),
        SignalKind::hangup(),
    ];
    let signals = kinds.into_iter().map(signal).collect::<Result<Vec<_>, _>>();
    let mut signals = signals.context("cannot listen for signals")?;
    let (first, heard) = tokio::sync::oneshot::channel();
    runtime.spawn(async move {
        any(&mut signals).await;
        let _ = first.send(());
        any(&mut signals).await;
        terminal::end(interrupt::EXIT_CODE);
    });
    Ok(async move {
        let _ = heard.await;
    })
}

/// Waits for one of the signals.
async fn any(signals: &mut [Signal]) {
    std::future::poll_fn(|cx| {
        let heard = signals.iter_mut().any(|signal| signal.poll_recv(cx).is_ready());
        if heard { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

fn listen(address: SocketAddr) -> Result<TcpListener> {
    let listener = TcpListener::bind(address).map_err(|error| {
        let (host, port) = (address.ip(), address.port());
        match error.kind() {
            ErrorKind::AddrInUse => {
                anyhow::anyhow!(
                    "port {port} of {host} is in use; choose another with --port, or 0 for a free one"
                )
            }
            ErrorKind::PermissionDenied => {
                anyhow::anyhow!("port {port} of {host}: not permitted; ports below 1024 need privileges")
            }
            _ => anyhow::anyhow!("cannot listen on port {port} of {host}: {error}"),
        }
    })?;
    // The runtime waits for it together with everything else.
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// A priority for a key that opens nothing would have no effect.
fn check_key_priorities(config: &ServerConfig) -> Result<()> {
    let mut keys = config.key_min_priority.keys();
    match keys.find(|key| !config.api_keys.contains(key)) {
        Some(_) => bail!("--key-min-priority: a key in it is none of the server's API keys"),
        None => Ok(()),
    }
}

fn read_tls((certificates, key): &(PathBuf, PathBuf)) -> Result<TlsConfig> {
    let (chain, secret) = (read(certificates, "--ssl-certfile")?, read(key, "--ssl-keyfile")?);
    TlsConfig::from_pem(&chain, &secret).with_context(|| {
        format!(
            "--ssl-certfile {}, --ssl-keyfile {}",
            certificates.display(),
            key.display()
        )
    })
}

fn read(path: &Path, flag: &str) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("{flag} {}", path.display()))
}
