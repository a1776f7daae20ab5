//! The flags of `generate`.

use super::numbers::{self, TokenIds, parsed};
use crate::commands::generate::{GenerateConfig, PromptSource, Settings};
use crate::model::ModelSource;
use clap::{ArgGroup, Args, ValueEnum};
use paceline_types::DType;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  paceline generate --prompt \"Once upon a time\"
  paceline generate --prompt \"The fox\" --temperature 0 --max-tokens 64
  paceline generate --model path/to/model --chat --prompt \"Why is the sky blue?\"
  paceline generate --model org/name:model-Q4_K_M.gguf --prompt \"Hello\" --stop \"The end\"
  paceline generate --prompts prompts.jsonl --json > results.jsonl

A line of a prompts file is {\"prompt\": \"...\"} or {\"prompt_ids\": [1, 2]}; it may set for itself
max_tokens, temperature, top_p, top_k, min_p, seed, stop, ignore_eos, logprobs and chat.";

const SAMPLING: &str = "Sampling (defaults come from the model's generation_config.json)";

/// Continue a prompt, printing text as it comes.
///
/// The text goes to stdout; the speed and everything else to stderr.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[command(group = ArgGroup::new("source").required(true).args(["prompt", "prompt_ids", "prompts"]))]
pub(crate) struct GenerateFlags {
    /// Folder, GGUF file, or hub id such as `org/name` or `org/name:FILE.gguf` [default: the built-in model].
    #[arg(short, long, value_name = "MODEL", help_heading = "Model")]
    model: Option<String>,
    /// Element type to compute with: `auto` keeps what is stored, the others convert the matrices.
    #[arg(long, value_name = "TYPE", default_value = "auto", help_heading = "Model")]
    dtype: DTypeFlag,
    /// Threads to compute on [default: the cores this process may use].
    #[arg(long, value_name = "N", value_parser = parsed(numbers::at_least_one), help_heading = "Model")]
    threads: Option<usize>,

    /// Text to continue.
    #[arg(short, long, value_name = "TEXT", help_heading = "Prompt")]
    prompt: Option<String>,
    /// Token ids to continue, separated by commas.
    #[arg(long, value_name = "IDS", help_heading = "Prompt")]
    prompt_ids: Option<TokenIds>,
    /// JSON lines with one prompt each; `-` reads them from stdin.
    #[arg(long, value_name = "FILE", help_heading = "Prompt")]
    prompts: Option<PathBuf>,
    /// Treat the prompt as a user's message and apply the model's chat template.
    #[arg(long, conflicts_with = "prompt_ids", help_heading = "Prompt")]
    chat: bool,
    /// System message before the user's.
    #[arg(long, value_name = "TEXT", requires = "chat", help_heading = "Prompt")]
    system: Option<String>,

    /// Most tokens to generate [default: 256].
    #[arg(short = 'n', long, value_name = "N", value_parser = parsed(numbers::at_least_one), help_heading = SAMPLING)]
    max_tokens: Option<usize>,
    /// Randomness; 0 takes the most likely token [default: the model's, else 1].
    #[arg(short, long, value_name = "T", value_parser = parsed(numbers::temperature), help_heading = SAMPLING)]
    temperature: Option<f32>,
    /// Keep the most likely tokens that together reach this probability [default: the model's, else 1].
    #[arg(long, value_name = "P", value_parser = parsed(numbers::top_p), help_heading = SAMPLING)]
    top_p: Option<f32>,
    /// Keep this many of the most likely tokens; 0 keeps all [default: the model's, else 0].
    #[arg(long, value_name = "K", help_heading = SAMPLING)]
    top_k: Option<u32>,
    /// Drop tokens less likely than this share of the most likely one [default: the model's, else 0].
    #[arg(long, value_name = "P", value_parser = parsed(numbers::min_p), help_heading = SAMPLING)]
    min_p: Option<f32>,
    /// Equal seeds give equal texts [default: random, told at the end].
    #[arg(short, long, value_name = "S", help_heading = SAMPLING)]
    seed: Option<u64>,
    /// End before this text; may be given several times.
    #[arg(long, value_name = "TEXT", help_heading = SAMPLING)]
    stop: Vec<String>,
    /// Go on past the model's end-of-text tokens.
    #[arg(long, help_heading = SAMPLING)]
    ignore_eos: bool,

    /// Report the log-probability of each token and of the N most likely ones (0 to 20).
    #[arg(long, value_name = "N", value_parser = parsed(numbers::logprobs), help_heading = "Output")]
    logprobs: Option<usize>,
    /// Print one JSON object per prompt.
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// Choices of `--dtype`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum DTypeFlag {
    Auto,
    F32,
    Bf16,
}

impl GenerateFlags {
    /// What the flags mean.
    pub(crate) fn into_config(self) -> GenerateConfig {
        let prompts = match (self.prompt, self.prompt_ids, self.prompts) {
            (_, Some(TokenIds(ids)), _) => PromptSource::Ids(ids),
            (_, _, Some(file)) => PromptSource::File(file),
            (text, ..) => PromptSource::Text(text.unwrap_or_default()),
        };
        GenerateConfig {
            model: ModelSource::new(self.model),
            prompts,
            system: self.system,
            settings: Settings {
                max_tokens: self.max_tokens,
                temperature: self.temperature,
                top_p: self.top_p,
                top_k: self.top_k,
                min_p: self.min_p,
                seed: self.seed,
                stop: Some(self.stop).filter(|stop| !stop.is_empty()),
                ignore_eos: Some(self.ignore_eos),
                logprobs: self.logprobs,
                chat: Some(self.chat),
            },
            threads: self.threads,
            store_as: match self.dtype {
                DTypeFlag::Auto => None,
                DTypeFlag::F32 => Some(DType::F32),
                DTypeFlag::Bf16 => Some(DType::BF16),
            },
            json: self.json,
        }
    }
}
