//! The flags of `bench serve` and `bench compare`.

use super::numbers::{self, parsed};
use clap::{Args, ValueEnum};
use paceline_bench::serve::Slo;
use paceline_client::Endpoint;
use serde_json::{Map, Value};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  paceline serve &                                        # or any other server with OpenAI's interface
  paceline bench serve --concurrency 8 --num-prompts 64
  paceline bench serve --request-rate 4 --duration 60 --slo ttft:200,tpot:50
  paceline bench serve --endpoint completions --input-len 512 --output-len 64 --ignore-eos
  paceline bench serve --prompts questions.jsonl --json run.json --html run.html
  paceline bench serve --base-url http://127.0.0.1:8080 --compare run.json --html both.html

What is measured, on this side of the connection:
  TTFT       from the moment a request is due to its first piece of text; every request makes a
             connection of its own, which is part of it
  TPOT       from the first piece of text to the last, by the tokens behind the first
  ITL        between two pieces of text, by the tokens of the second: a server that sends several
             at a time (drafts that held) is measured per token. How many there are is known with
             --token-ids; else it is the mean of the stream
  chunk gap  between two pieces of text, as it is
  E2E        from the moment a request is due to the end of its answer
  stall      the longest chunk gap of any stream
Tokens are those that the server counts (usage). If it does not count, pieces of text are counted,
and the report says so. In an open loop requests are due at their arrival,
whether or not the server keeps up.";

/// Load a server with OpenAI's interface, ours or another: latencies, throughput, goodput, errors.
///
/// Closed loop: --concurrency requests are always under way. Open loop: with --request-rate requests arrive at random
/// moments, whether or not others have ended. Ctrl-C ends early and still reports.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchServeFlags {
    #[command(flatten)]
    pub(crate) server: ServerFlags,

    /// Requests under way at a time (closed loop) [default: 16]; with --request-rate the most.
    #[arg(long, alias = "max-concurrency", value_name = "N", value_parser = parsed(numbers::at_least_one), help_heading = "Load")]
    pub(crate) concurrency: Option<usize>,
    /// Requests per second on average (open loop); `inf` sends all at once.
    #[arg(long, value_name = "R", value_parser = parsed(numbers::rate_or_infinity), help_heading = "Load")]
    pub(crate) request_rate: Option<f64>,
    /// Shape of the times between arrivals: 1 is Poisson, less comes in bursts, more is regular.
    #[arg(long, value_name = "X", default_value = "1", value_parser = parsed(numbers::rate), requires = "request_rate", help_heading = "Load")]
    pub(crate) burstiness: f64,
    /// Requests in all [default: 100, the lines of the prompts file, or no bound with --duration].
    #[arg(long, value_name = "N", value_parser = parsed(numbers::at_least_one), help_heading = "Load")]
    pub(crate) num_prompts: Option<usize>,
    /// Send nothing new after this many seconds; what is under way ends.
    #[arg(long, value_name = "S", value_parser = parsed(numbers::seconds), help_heading = "Load")]
    pub(crate) duration: Option<f64>,
    /// Ask for N of the answers again when all is done, alone and without drafts, and compare: a text that differs is an error.
    /// Every request has a seed of its own then.
    #[arg(long, value_name = "N", default_value = "0", help_heading = "Load")]
    pub(crate) verify: usize,
    #[command(flatten)]
    pub(crate) requests: RequestFlags,

    /// Limits in milliseconds that good requests keep, such as ttft:200,tpot:50,e2e:5000,stall:100.
    #[arg(long, value_name = "LIMITS", help_heading = "Report")]
    pub(crate) slo: Option<Slo>,
    /// Write everything that was measured to FILE.
    #[arg(long, value_name = "FILE", help_heading = "Report")]
    pub(crate) json: Option<PathBuf>,
    /// Write a report with plots to FILE, which any browser opens.
    #[arg(long, value_name = "FILE", help_heading = "Report")]
    pub(crate) html: Option<PathBuf>,
    /// Show the figures of an earlier run (its --json) beside these.
    #[arg(long, value_name = "FILE", help_heading = "Report")]
    pub(crate) compare: Option<PathBuf>,
}

const COMPARE: &str = "\
Examples:
  paceline serve model.gguf &
  llama-server -m model.gguf --port 8080 &                # or any other server with OpenAI's interface
  paceline bench compare --peer-url http://127.0.0.1:8080 --ignore-eos
  paceline bench compare --peer-url http://127.0.0.1:8080 --concurrency 1,8 --turns 20 --input-len 500 --json both.json

A turn is a crowd of requests that are sent together, first to one server and then, the same prompts, to the other; who
is first changes with every turn. What the machine does meanwhile falls on both, so the ratios of single turns
are what counts: shown is their median, with the bounds of 95 % of its resamples. Keep both servers on the same
machine and the same cores: the one that is not asked has nothing to do.";

/// Compare a server with another one that has OpenAI's interface: the same prompts, taking turns.
#[derive(Debug, Args)]
#[command(after_help = COMPARE)]
pub(crate) struct BenchCompareFlags {
    /// Address of the server to compare with, with or without /v1.
    #[arg(long, value_name = "URL", help_heading = "Server")]
    pub(crate) peer_url: String,
    /// Model to ask it for [default: the first that it lists].
    #[arg(long, value_name = "NAME", help_heading = "Server")]
    pub(crate) peer_model: Option<String>,
    /// Key to send to it.
    #[arg(long, value_name = "KEY", help_heading = "Server")]
    pub(crate) peer_api_key: Option<String>,
    #[command(flatten)]
    pub(crate) server: ServerFlags,

    /// Requests that are sent together, separated by commas.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,8", value_parser = parsed(numbers::at_least_one), help_heading = "Load")]
    pub(crate) concurrency: Vec<usize>,
    /// Turns of each server with each of these.
    #[arg(long, value_name = "N", default_value = "10", value_parser = parsed(numbers::at_least_one), help_heading = "Load")]
    pub(crate) turns: usize,
    #[command(flatten)]
    pub(crate) requests: RequestFlags,

    /// Write everything that was measured to FILE.
    #[arg(long, value_name = "FILE", help_heading = "Report")]
    pub(crate) json: Option<PathBuf>,
}

// Plain comments on these two: a doc comment would replace the description of the command that takes them in.

// The server to ask.
#[derive(Debug, Args)]
pub(crate) struct ServerFlags {
    /// Address of the server, with or without /v1.
    #[arg(
        long,
        value_name = "URL",
        default_value = "http://127.0.0.1:8000",
        help_heading = "Server"
    )]
    pub(crate) base_url: String,
    /// Model to ask for [default: the first that the server lists].
    #[arg(short, long, value_name = "NAME", help_heading = "Server")]
    pub(crate) model: Option<String>,
    /// Key to send [default: $PACELINE_API_KEY].
    #[arg(long, value_name = "KEY", help_heading = "Server")]
    pub(crate) api_key: Option<String>,
    /// Certificates to trust, in place of the usual authorities (PEM).
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub(crate) ca_file: Option<PathBuf>,
}

// What is asked.
#[derive(Debug, Args)]
pub(crate) struct RequestFlags {
    /// How to ask: with messages, or with a text to continue.
    #[arg(long, value_name = "KIND", default_value = "chat", help_heading = "Server")]
    pub(crate) endpoint: EndpointFlag,
    /// Give a request up after this many seconds.
    #[arg(long, value_name = "S", default_value = "600", value_parser = parsed(numbers::seconds), help_heading = "Server")]
    pub(crate) timeout: f64,
    /// Requests before the measurement, with prompts of their own.
    #[arg(long, value_name = "N", default_value = "2", help_heading = "Load")]
    pub(crate) warmup: usize,
    /// Seed of prompts and arrivals, to repeat a run [default: another every time, so that no cache of the server knows
    /// the prompts; the report names it].
    #[arg(long, value_name = "S", help_heading = "Load")]
    pub(crate) seed: Option<u64>,

    /// Prompts: a .txt file with one per line, or JSON lines with `prompt`, `text`, `messages` or `turns` (the first
    /// is asked), and `max_tokens` if a line has its own; over again if there are too few.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["input_len", "prefix_len"],
        help_heading = "Prompts"
    )]
    pub(crate) prompts: Option<PathBuf>,
    /// Tokens of a prompt of random words, about: the server is asked how many tokens its words have.
    #[arg(long, value_name = "N", default_value = "64", value_parser = parsed(numbers::at_least_one), help_heading = "Prompts")]
    pub(crate) input_len: usize,
    /// Tokens at the start of these prompts that are the same in all of them, about.
    #[arg(long, value_name = "N", default_value = "0", help_heading = "Prompts")]
    pub(crate) prefix_len: usize,

    /// Most tokens to generate, where a line does not say otherwise.
    #[arg(long, alias = "max-tokens", value_name = "N", default_value = "64", value_parser = parsed(numbers::at_least_one), help_heading = "Sampling")]
    pub(crate) output_len: usize,
    /// Randomness; 0 takes the most likely token.
    #[arg(short, long, value_name = "T", default_value = "0", value_parser = parsed(numbers::temperature), help_heading = "Sampling")]
    pub(crate) temperature: f32,
    /// Ask the server to go on past the end of texts, so that all have the same length.
    #[arg(long, help_heading = "Sampling")]
    pub(crate) ignore_eos: bool,
    /// Ask for the ids of tokens (`return_token_ids`), so that it is known how many a piece carries.
    #[arg(long, help_heading = "Sampling")]
    pub(crate) token_ids: bool,
    /// Further fields of every request; null takes a field out.
    #[arg(long, value_name = "JSON", value_parser = object, help_heading = "Sampling")]
    pub(crate) extra_body: Option<Fields>,
}

/// Choices of `--endpoint`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum EndpointFlag {
    Chat,
    #[value(alias = "completion")]
    Completions,
}

impl From<EndpointFlag> for Endpoint {
    fn from(flag: EndpointFlag) -> Self {
        match flag {
            EndpointFlag::Chat => Self::Chat,
            EndpointFlag::Completions => Self::Completions,
        }
    }
}

/// Fields of a JSON object.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields(pub(crate) Map<String, Value>);

fn object(text: &str) -> Result<Fields, String> {
    match serde_json::from_str(text) {
        Ok(Value::Object(fields)) => Ok(Fields(fields)),
        Ok(_) => Err("not a JSON object such as {\"top_p\": 0.9}".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
