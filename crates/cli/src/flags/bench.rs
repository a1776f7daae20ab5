//! The flags of `bench`.

use super::engine::{EngineFlags, ModelFlags};
use super::numbers::{self, parsed};
use super::speculation::SpeculationFlags;
use clap::{Args, Subcommand};
use std::path::PathBuf;

const BENCH: &str = "\
Examples:
  paceline bench latency
  paceline bench throughput --requests 64 --rate 4
  paceline bench pipeline --json > pipeline.json
  paceline bench ops --quick";

/// Measure a model or this machine.
#[derive(Debug, Subcommand)]
#[command(after_help = BENCH)]
pub(crate) enum BenchCommand {
    Latency(Box<BenchLatencyFlags>),
    Throughput(Box<BenchThroughputFlags>),
    Pipeline(Box<BenchPipelineFlags>),
    Ops(BenchOpsFlags),
}

impl BenchCommand {
    /// The flags about drafts, of those that run a model.
    pub(super) fn speculation(&self) -> Option<&SpeculationFlags> {
        match self {
            Self::Latency(flags) => Some(&flags.engine.speculation),
            Self::Throughput(flags) => Some(&flags.engine.speculation),
            Self::Pipeline(flags) => Some(&flags.engine.speculation),
            Self::Ops(_) => None,
        }
    }
}

const LATENCY: &str = "\
Examples:
  paceline bench latency
  paceline bench latency --batch-size 1,8 --input-len 16,512 --output-len 128 --json";

/// Time batches of equal requests: first token, step, tokens per second.
///
/// Every combination of batch size, input and output length is run once to warm up and then measured. Prompts
/// are random tokens, so that no cache helps.
#[derive(Debug, Args)]
#[command(after_help = LATENCY)]
pub(crate) struct BenchLatencyFlags {
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    /// Requests at a time, separated by commas.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,16", value_parser = parsed(numbers::at_least_one))]
    pub(crate) batch_size: Vec<usize>,
    /// Tokens of a prompt, separated by commas.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "32", value_parser = parsed(numbers::at_least_one))]
    pub(crate) input_len: Vec<usize>,
    /// Tokens to generate, separated by commas.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "128", value_parser = parsed(numbers::at_least_one))]
    pub(crate) output_len: Vec<usize>,
    /// Measured runs of each; the medians are reported.
    #[arg(long, value_name = "N", default_value = "3", value_parser = parsed(numbers::at_least_one))]
    pub(crate) repeats: usize,
    /// Steps in flight, 1 to 4.
    #[arg(long, value_name = "N", default_value = "2", value_parser = parsed(numbers::pipeline_depth))]
    pub(crate) pipeline_depth: usize,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) engine: EngineFlags,
}

const THROUGHPUT: &str = "\
Examples:
  paceline bench throughput --requests 64 --concurrency 16
  paceline bench throughput --requests 64 --rate 4
  paceline bench throughput --prompts prompts.jsonl --json";

/// Serve many requests: tokens and requests per second, and how long requests take.
///
/// Closed loop: a new request is sent whenever one ends, so that --concurrency are always under way. Open loop:
/// requests arrive at random moments, --rate per second on average, whether or not others have ended.
#[derive(Debug, Args)]
#[command(after_help = THROUGHPUT)]
pub(crate) struct BenchThroughputFlags {
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    /// Requests in all [default: 64, or the lines of the prompts file].
    #[arg(long, value_name = "N", value_parser = parsed(numbers::at_least_one))]
    pub(crate) requests: Option<usize>,
    /// JSON lines with one prompt each, as for generate; over again if there are fewer than requests.
    #[arg(long, value_name = "FILE", conflicts_with = "input_len")]
    pub(crate) prompts: Option<PathBuf>,
    /// Tokens of a random prompt.
    #[arg(long, value_name = "N", default_value = "64", value_parser = parsed(numbers::at_least_one))]
    pub(crate) input_len: usize,
    /// Tokens to generate, where a line does not say otherwise.
    #[arg(long, value_name = "N", default_value = "64", value_parser = parsed(numbers::at_least_one))]
    pub(crate) output_len: usize,
    /// Requests under way at a time (closed loop) [default: 16].
    #[arg(long, value_name = "N", value_parser = parsed(numbers::at_least_one), conflicts_with = "rate")]
    pub(crate) concurrency: Option<usize>,
    /// Requests per second (open loop).
    #[arg(long, value_name = "R", value_parser = parsed(numbers::rate))]
    pub(crate) rate: Option<f64>,
    /// Seed of prompts and arrivals.
    #[arg(long, value_name = "S", default_value = "0")]
    pub(crate) seed: u64,
    /// Steps in flight, 1 to 4.
    #[arg(long, value_name = "N", default_value = "2", value_parser = parsed(numbers::pipeline_depth))]
    pub(crate) pipeline_depth: usize,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) engine: EngineFlags,
}

const PIPELINE: &str = "\
Examples:
  paceline bench pipeline
  paceline bench pipeline --depth 1,2 --batch-size 16 --output-len 512";

/// Compare pipeline depths: how long the device waits for the host between steps.
#[derive(Debug, Args)]
#[command(after_help = PIPELINE)]
pub(crate) struct BenchPipelineFlags {
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    /// Steps in flight, separated by commas.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,2,3,4", value_parser = parsed(numbers::pipeline_depth))]
    pub(crate) depth: Vec<usize>,
    /// Requests at a time, separated by commas.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,16", value_parser = parsed(numbers::at_least_one))]
    pub(crate) batch_size: Vec<usize>,
    /// Tokens of a prompt.
    #[arg(long, value_name = "N", default_value = "16", value_parser = parsed(numbers::at_least_one))]
    pub(crate) input_len: usize,
    /// Tokens to generate.
    #[arg(long, value_name = "N", default_value = "256", value_parser = parsed(numbers::at_least_one))]
    pub(crate) output_len: usize,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) engine: EngineFlags,
}

const OPS: &str = "\
Examples:
  paceline bench ops
  paceline bench ops --quick --threads 1
  paceline bench ops --json > ops.json";

/// Time the operations models are made of, against the machine's memory bandwidth.
///
/// GFLOP/s says how fast an operation computes, GB/s how fast it moves its operands, and the share compares that
/// with the rate at which memory can be read at all.
#[derive(Debug, Args)]
#[command(after_help = OPS)]
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
