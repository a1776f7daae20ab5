//! What is on, what is off, and why.

use super::model::Texts;
use super::{ServeConfig, Unused};
use crate::format;
use paceline::{Handle, ProgramReport};
use paceline_server::{Feature, PrefixCacheScope, ServedModel, ServerConfig};
use paceline_types::{DType, Pooling};
use std::time::Duration;

/// The rows of the table.
pub(super) fn features(
    config: &ServeConfig,
    engine: &Handle,
    (model, texts): (&ServedModel, &Texts),
) -> Vec<Feature> {
    let options = &config.engine.config;
    let memory = engine.memory();
    let mut rows = vec![row(
        "names",
        config.names.join(", "),
        "--served-model-name, or the model's name and the model as given",
    )];
    rows.extend(place(engine));
    rows.push(weights(engine, options.dtype));
    let limited = options.max_model_len.is_some();
    rows.extend([
        row(
            "context",
            format!("{} tokens", memory.max_model_len),
            given(limited, "--max-model-len", "the model's limit"),
        ),
        row(
            "batch",
            format!(
                "{} requests, {} tokens per step",
                memory.slots,
                engine.limits().max_num_batched_tokens
            ),
            "--max-num-seqs, --max-num-batched-tokens",
        ),
        row("prompts", throttle(options.max_step), "--max-step-ms"),
        row(
            "pipeline",
            format!("{} steps in flight", options.pipeline_depth),
            "--pipeline-depth",
        ),
        programs(engine),
        row(
            "speculation",
            engine.speculation().to_string(),
            "--speculation and what the model has",
        ),
        row(
            "prefix caching",
            on(options.prefix_caching),
            given(
                !options.prefix_caching,
                "--no-prefix-caching",
                "on unless switched off",
            ),
        ),
    ]);
    rows.extend(sampling(model));
    rows.extend(understanding(texts));
    rows.push(row(
        "embeddings",
        match config.server.pooling {
            Pooling::Mean => "mean",
            Pooling::Last => "last",
        },
        "--pooling; a request may say otherwise",
    ));
    rows.extend(access(&config.server));
    rows.extend(
        config.unused.iter().map(|Unused { flag, reason }| {
            row(flag, "no effect", &format!("has no effect, because {reason}"))
        }),
    );
    rows
}

/// Where it runs, and what it takes there.
fn place(engine: &Handle) -> [Feature; 2] {
    let memory = engine.memory();
    [
        row(
            "device",
            engine.device().to_string(),
            "--device, $PACELINE_DEVICE, or the best there is",
        ),
        row(
            "memory",
            format!(
                "{} in all, {} of it for {} blocks of {} tokens",
                format::memory(memory.total()),
                format::memory(memory.kv),
                memory.blocks,
                memory.block_size
            ),
            "--max-num-seqs times 4096 tokens, --kv-cache-memory, --num-blocks or --memory-utilization",
        ),
    ]
}

/// What weights take, and in which types.
fn weights(engine: &Handle, dtype: Option<DType>) -> Feature {
    let how = match dtype {
        None => "as stored".to_owned(),
        Some(DType::Q8_0) => "quantised to Q8_0".to_owned(),
        Some(dtype) if dtype.is_quantised() => {
            format!("quantised to {dtype}, embeddings and head to Q8_0")
        }
        Some(dtype) => format!("as {dtype}"),
    };
    let bytes = format::memory(engine.memory().weights);
    let mapped = engine
        .packed()
        .map(|path| format!(", mapped from {}", path.display()));
    row(
        "weights",
        format!("{bytes}, {how}{}", mapped.unwrap_or_default()),
        "--quantize, --dtype, paceline pack",
    )
}

/// The programs of steps, which exist before the first request.
fn programs(engine: &Handle) -> Feature {
    let ProgramReport {
        programs,
        time,
        scratch,
    } = engine.limits().programs;
    let (ms, scratch) = (time.as_millis(), format::memory(scratch));
    row(
        "programs",
        format!("{programs} captured in {ms} ms, {scratch} of scratch"),
        "sizes of steps, draft forwards, with and without prompts",
    )
}

/// What requests get that do not say how to sample, and what the page asks for.
fn sampling(model: &ServedModel) -> Vec<Feature> {
    let mut rows = vec![row(
        "sampling",
        model.defaults.to_string(),
        "of requests that do not say; --temperature, --top-p ..., --generation-config",
    )];
    if model.page_defaults != model.defaults {
        let page = model.page_defaults.to_string();
        rows.push(row("on the page", page, "the same flags"));
    }
    rows
}

/// What is made of conversations and of what the model says.
fn understanding(texts: &Texts) -> [Feature; 4] {
    [
        row("chat", on(texts.chat.0), &texts.chat.1),
        row(
            "tool calls",
            texts.tools.0.map_or("off", |format| format.name()),
            &texts.tools.1,
        ),
        row(
            "reasoning",
            texts.reasoning.0.map_or("off", |format| format.name()),
            &texts.reasoning.1,
        ),
        structured(texts),
    ]
}

/// The forms that a text can be asked to have.
fn structured(texts: &Texts) -> Feature {
    let (state, reason) = if texts.tokenizer {
        (
            "text, json_object, json_schema",
            "and expressions, grammars, choices, forced tool calls",
        )
    } else {
        ("text", "the model has no tokenizer, so a text has no form")
    };
    row("response_format", state, reason)
}

/// How fast prompts are taken in.
fn throttle(max_step: Option<Duration>) -> String {
    match max_step {
        Some(limit) => format!("throttled to steps of {} ms while streams run", limit.as_millis()),
        None => "as much as a step has room for".to_owned(),
    }
}

/// Keys, encryption and limits.
fn access(server: &ServerConfig) -> Vec<Feature> {
    let keys = server.api_keys.len();
    let limit = |limit: Option<usize>| limit.map_or("no limit".to_owned(), |limit| limit.to_string());
    vec![
        row(
            "API keys",
            Some(keys)
                .filter(|keys| *keys > 0)
                .map_or("off".to_owned(), |keys| keys.to_string()),
            given(
                keys == 0,
                "no --api-key was given: every client that can connect may use it",
                "--api-key",
            ),
        ),
        row(
            "prefix cache scope",
            match server.prefix_cache_scope {
                PrefixCacheScope::Key => "each key for itself",
                PrefixCacheScope::All => "shared by all",
            },
            "--prefix-cache-scope; a cache_salt separates further",
        ),
        row("page", given(server.page, "at /", "off"), "--no-page"),
        row("TLS", on(server.tls.is_some()), "--ssl-certfile, --ssl-keyfile"),
        row(
            "other origins",
            if server.allowed_origins.is_empty() {
                "off".to_owned()
            } else {
                server.allowed_origins.join(", ")
            },
            "--allowed-origins: pages of other servers that may ask this one",
        ),
        row(
            "requests at a time",
            limit(server.max_concurrent_requests),
            "--max-concurrent-requests; the engine's queue has its own limit",
        ),
        row(
            "requests per key",
            server.max_requests_per_key.map_or_else(
                || if keys > 1 { "half of the queue" } else { "no limit" }.to_owned(),
                |limit| limit.to_string(),
            ),
            "--max-requests-per-key",
        ),
        row(
            "time per request",
            server
                .request_timeout
                .map_or("no limit".to_owned(), |limit| format!("{limit:?}")),
            "--request-timeout",
        ),
        row(
            "unread replies",
            format!("cut after {:?}", server.write_timeout),
            "--write-timeout",
        ),
        row("drain", format!("{:?}", server.drain_timeout), "--drain-timeout"),
        row(
            "watchdog",
            server
                .watchdog_timeout
                .map_or("off".to_owned(), |time| format!("{time:?}")),
            "--watchdog-timeout",
        ),
    ]
}

fn row(name: &str, state: impl Into<String>, reason: &str) -> Feature {
    Feature {
        name: name.to_owned(),
        state: state.into(),
        reason: reason.to_owned(),
    }
}

fn on(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

fn given<'a>(given: bool, flag: &'a str, otherwise: &'a str) -> &'a str {
    if given { flag } else { otherwise }
}

/// Columns of a terminal that has not been made wider.
const WIDTH: usize = 80;

/// The table for people: what does not fit beside a name goes on below it.
pub(super) fn render(source: &str, features: &[Feature], width: Option<usize>) -> String {
    let width = width.map_or(WIDTH, |width| width.clamp(40, 120) - 1);
    let names = features.iter().map(|row| row.name.chars().count()).max();
    let names = names.unwrap_or(0);
    let rows = features
        .iter()
        .map(|Feature { name, state, reason }| format!("  {name:names$}  {state} ({reason})"));
    let lines: Vec<String> = [format!("serving {source}")].into_iter().chain(rows).collect();
    format::wrapped(&lines.join("\n"), width)
}

/// A command that asks the server for something, to be pasted into a shell.
pub(super) fn example(url: &str, config: &ServeConfig, texts: &Texts) -> String {
    let (path, body) = match (texts.tokenizer, texts.chat.0) {
        (true, true) => (
            "chat/completions",
            r#"{"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 32}"#,
        ),
        (true, false) => (
            "completions",
            r#"{"prompt": "Once upon a time", "max_tokens": 32}"#,
        ),
        (false, _) => ("completions", r#"{"prompt": [1, 2, 3], "max_tokens": 32}"#),
    };
    let mut lines = vec![format!("curl {url}/v1/{path}")];
    if let Some((certificates, _)) = &config.tls {
        lines.push(format!("--cacert '{}'", certificates.display()));
    }
    if !config.server.api_keys.is_empty() {
        lines.push(r#"-H "authorization: Bearer $PACELINE_API_KEY""#.to_owned());
    }
    lines.push("-H 'content-type: application/json'".to_owned());
    lines.push(format!("-d '{body}'"));
    lines.join(" \\\n  ")
}
