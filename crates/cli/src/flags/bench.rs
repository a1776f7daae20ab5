//! The flags of `bench`.

use super::bench_serve::{BenchCompareFlags, BenchServeFlags};
use super::engine::{DTypeFlag, EngineFlags, KvTypeFlag, ModelFlags};
use super::numbers::{self, parsed};
use super::speculation::SpeculationFlags;
use crate::model::ModelSource;
use clap::{Args, Subcommand, ValueEnum};
use paceline::DeviceChoice;
use paceline_types::DType;
use std::path::PathBuf;

const BENCH: &str = "\
Examples:
  paceline bench latency
  paceline bench throughput --requests 64 --rate 4
  paceline bench pipeline --json > pipeline.json
  paceline bench speculation --workload stories --batch-size 1,8
  paceline bench serve --concurrency 8 --html report.html
  paceline bench compare --peer-url http://127.0.0.1:8080
  paceline bench ops --quick
  paceline bench quality -m model.gguf --text book.txt";

/// Measure a model, a server or this machine.
#[derive(Debug, Subcommand)]
#[command(after_help = BENCH)]
pub(crate) enum BenchCommand {
    Latency(Box<BenchLatencyFlags>),
    Throughput(Box<BenchThroughputFlags>),
    Pipeline(Box<BenchPipelineFlags>),
    Speculation(Box<BenchSpeculationFlags>),
    Serve(Box<BenchServeFlags>),
    Compare(Box<BenchCompareFlags>),
    Ops(BenchOpsFlags),
    Quality(Box<BenchQualityFlags>),
}

impl BenchCommand {
    /// The flags about drafts, of those that run a model.
    pub(super) fn speculation(&self) -> Option<&SpeculationFlags> {
        match self {
            Self::Latency(flags) => Some(&flags.common.engine.speculation),
            Self::Throughput(flags) => Some(&flags.common.engine.speculation),
            Self::Pipeline(flags) => Some(&flags.common.engine.speculation),
            Self::Speculation(flags) => Some(&flags.common.engine.speculation),
            Self::Serve(_) | Self::Compare(_) | Self::Ops(_) | Self::Quality(_) => None,
        }
    }
}

// Plain comments on these two: a doc comment would replace the description of the command that takes them in.

// What every measurement of a model takes.
#[derive(Debug, Args)]
pub(crate) struct MeasureFlags {
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) engine: EngineFlags,
}

// One pipeline depth.
#[derive(Debug, Args)]
pub(crate) struct DepthFlags {
    /// Steps in flight, 1 to 4.
    #[arg(long, value_name = "N", default_value = "2", value_parser = parsed(numbers::pipeline_depth))]
    pub(crate) pipeline_depth: usize,
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
    #[command(flatten)]
    pub(crate) depth: DepthFlags,
    #[command(flatten)]
    pub(crate) common: MeasureFlags,
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
    #[command(flatten)]
    pub(crate) depth: DepthFlags,
    #[command(flatten)]
    pub(crate) common: MeasureFlags,
}

const PIPELINE: &str = "\
Examples:
  paceline bench pipeline
  paceline bench pipeline --depth 1,2 --batch-size 16 --output-len 512";

/// Compare pipeline depths: how long the device waits for the host between steps.
#[derive(Debug, Args)]
#[command(after_help = PIPELINE)]
pub(crate) struct BenchPipelineFlags {
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
    #[command(flatten)]
    pub(crate) common: MeasureFlags,
}

const SPECULATION: &str = "\
Examples:
  paceline bench speculation
  paceline bench speculation --workload stories --speculation mtp --draft-tokens 3 --no-depth-control
  paceline bench speculation --model coder.gguf --workload code,rename --requests 8 --output-len 256 --batch-size 1
  paceline bench speculation --model model.gguf --prompts HumanEval.jsonl --requests 16 --batch-size 1";

/// Measure what speculation gains: the same requests with and without it, in turns.
///
/// An engine that drafts and one that does not live in one process and take turns, so that what else the machine
/// does falls on both. The gain is the median over the repetitions of time without drafts over time with them;
/// `quickest` compares the quickest repetition of each turn, for machines that are never quiet.
/// Texts must be the same; a difference is an error.
#[derive(Debug, Args)]
#[command(after_help = SPECULATION)]
pub(crate) struct BenchSpeculationFlags {
    /// What to generate, separated by commas [default: stories,again,random, or file if --prompts is given].
    #[arg(long, value_name = "W,..", value_delimiter = ',')]
    workload: Vec<WorkloadFlag>,
    /// JSON lines with a field `prompt`, for the workload `file`.
    #[arg(long, value_name = "FILE")]
    pub(crate) prompts: Option<PathBuf>,
    /// Requests of a workload, or of the file, from its start.
    #[arg(long, value_name = "N", default_value = "32", value_parser = parsed(numbers::at_least_one))]
    pub(crate) requests: usize,
    /// Requests at a time, separated by commas.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,8", value_parser = parsed(numbers::at_least_one))]
    pub(crate) batch_size: Vec<usize>,
    /// Most tokens to generate for a request.
    #[arg(long, value_name = "N", default_value = "128", value_parser = parsed(numbers::at_least_one))]
    pub(crate) output_len: usize,
    /// Measured runs of each engine.
    #[arg(long, value_name = "N", default_value = "5", value_parser = parsed(numbers::at_least_one))]
    pub(crate) repeats: usize,
    #[command(flatten)]
    pub(crate) depth: DepthFlags,
    #[command(flatten)]
    pub(crate) common: MeasureFlags,
}

/// Choices of `--workload`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum WorkloadFlag {
    /// Beginnings of stories, continued greedily.
    Stories,
    /// Chats in which a story was told, greedily, and is asked for again; the chat so far is in the prefix cache.
    Again,
    /// Random tokens, continued at random, so that drafts are of no use.
    Random,
    /// Signatures of functions with what they do, continued greedily.
    Code,
    /// Chats that ask for a program again with a name changed, answered greedily.
    Rename,
    /// The prompts of a file, continued greedily.
    File,
}

impl BenchSpeculationFlags {
    /// What to measure.
    pub(crate) fn workloads(&self) -> Vec<WorkloadFlag> {
        match (self.workload.as_slice(), &self.prompts) {
            ([], Some(_)) => vec![WorkloadFlag::File],
            ([], None) => vec![WorkloadFlag::Stories, WorkloadFlag::Again, WorkloadFlag::Random],
            (given, _) => given.to_vec(),
        }
    }
}

const OPS: &str = "\
Examples:
  paceline bench ops
  paceline bench ops --quick --device cpu --threads 1
  paceline bench ops --json > ops.json";

/// Time the operations models are made of, against the bandwidth of the device's memory.
///
/// GFLOP/s says how fast an operation computes, GB/s how fast it moves its operands, and the share compares that
/// with the rate at which the device reads a large matrix or copies one.
#[derive(Debug, Args)]
#[command(after_help = OPS)]
pub(crate) struct BenchOpsFlags {
    /// Device to measure: auto, the best there is, cpu, or cuda:N [default: $PACELINE_DEVICE, or auto].
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<DeviceChoice>,
    /// Threads to compute on, on the CPU [default: the cores this process may use].
    #[arg(long, value_name = "N", value_parser = parsed(numbers::threads))]
    pub(crate) threads: Option<usize>,
    /// Fewer types and sizes.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

const QUALITY: &str = "\
Examples:
  paceline bench quality -m model.gguf --text book.txt                     # what quantised products cost here
  paceline bench quality -m org/name:Q4_K_M --reference org/name:F16 --text book.txt";

/// Measure what a model loses by how it is stored or run: its distributions beside a reference's, over a text.
///
/// Both run over the text, in windows of 512 tokens. Reported are the KL divergence of the distributions of the next
/// token, how often both prefer the same one, and the perplexities. Without --reference the same model is the reference,
/// its matrices converted to f32: that shows what the arithmetic of its own type costs, and nothing else. The reference
/// has keys and values in f32.
#[derive(Debug, Args)]
#[command(after_help = QUALITY)]
pub(crate) struct BenchQualityFlags {
    /// File with the text.
    #[arg(long, value_name = "FILE")]
    pub(crate) text: PathBuf,
    /// Tokens of the text to use, from its start.
    #[arg(long, value_name = "N", default_value = "4096", value_parser = parsed(numbers::at_least_one))]
    pub(crate) tokens: usize,
    /// Model to compare with, of the same vocabulary [default: the same model].
    #[arg(long, value_name = "MODEL")]
    reference: Option<String>,
    /// Element type to compute the reference with.
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    reference_dtype: DTypeFlag,
    /// Element type of the model's keys and values.
    #[arg(long, value_name = "TYPE", default_value = "auto")]
    kv_cache_dtype: KvTypeFlag,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

impl BenchQualityFlags {
    /// The model to compare with, and the type to convert its matrices to.
    pub(crate) fn reference(&self) -> (ModelSource, Option<DType>) {
        let source = match &self.reference {
            Some(name) => ModelSource::new(Some(name.clone())),
            None => self.model.source(),
        };
        (source, self.reference_dtype.dtype())
    }

    /// What keys and values of the model are stored as, if it is not left to the device.
    pub(crate) fn kv_cache_dtype(&self) -> Option<DType> {
        self.kv_cache_dtype.dtype()
    }
}
