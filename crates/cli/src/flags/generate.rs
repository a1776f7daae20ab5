//! The flags of `generate`.

use super::engine::{EngineFlags, ModelFlags};
use super::numbers::{self, TokenBias, TokenIds, parsed};
use super::speculation::SpeculationFlags;
use crate::commands::generate::{GenerateConfig, PromptSource, Settings};
use clap::{ArgGroup, Args};
use paceline_types::TokenId;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  paceline generate --prompt \"Once upon a time\"
  paceline generate --prompt \"The fox\" --temperature 0 --max-tokens 64
  paceline generate --model path/to/model --chat --prompt \"Why is the sky blue?\"
  paceline generate --model org/name:model-Q4_K_M.gguf --prompt \"Hello\" --stop \"The end\"
  paceline generate --prompts prompts.jsonl --json > results.jsonl
  paceline generate --prompt \"The fox\" --n 4 --stats --trace trace.json
  paceline generate --prompt \"The fox\" --speculation mtp --draft-tokens 3 --no-depth-control --stats

The lines of a prompts file run as one batch; results come in the order of the lines. A line is
{\"prompt\": \"...\"} or {\"prompt_ids\": [1, 2]}; it may set for itself what flags set for all, by the flag's
name with underscores: {\"prompt\": \"...\", \"max_tokens\": 9, \"stop\": [\"a\", \"b\"], \"logit_bias\": {\"42\": -1}},
and how it is drafted for: \"speculation\": \"off\" or {\"method\": \"ngram\", \"max_tokens\": 3}.";

const SAMPLING: &str = "Sampling (defaults come from the model's generation_config.json)";

/// Continue a prompt, printing text as it comes.
///
/// The text goes to stdout; the speed and everything else to stderr.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[command(group = ArgGroup::new("source").required(true).args(["prompt", "prompt_ids", "prompts"]))]
pub(crate) struct GenerateFlags {
    #[command(flatten)]
    model: ModelFlags,

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
    /// Continuations of every prompt; they share the work on it [default: 1].
    #[arg(long, value_name = "N", value_parser = parsed(numbers::choices), help_heading = SAMPLING)]
    n: Option<usize>,
    /// Divide the logits of tokens that occurred, in prompt or text, by this (multiply negative ones) [default: 1].
    #[arg(long, value_name = "X", value_parser = parsed(numbers::repetition_penalty), help_heading = SAMPLING)]
    repetition_penalty: Option<f32>,
    /// Subtract this from the logits of tokens that occurred in the text [default: 0].
    #[arg(long, value_name = "X", value_parser = parsed(numbers::penalty), help_heading = SAMPLING, allow_negative_numbers = true)]
    presence_penalty: Option<f32>,
    /// Subtract this once per occurrence in the text [default: 0].
    #[arg(long, value_name = "X", value_parser = parsed(numbers::penalty), help_heading = SAMPLING, allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,
    /// Add BIAS to the logit of token ID; may be given several times.
    #[arg(long, value_name = "ID:BIAS", help_heading = SAMPLING)]
    logit_bias: Vec<TokenBias>,
    /// Text that must not come up, as it is or after a space; may be given several times.
    #[arg(long, value_name = "TEXT", help_heading = SAMPLING)]
    bad_word: Vec<String>,
    /// Fewest tokens to generate: no stop token is chosen before [default: 0].
    #[arg(long, value_name = "N", help_heading = SAMPLING)]
    min_tokens: Option<usize>,
    /// End before this text; may be given several times.
    #[arg(long, value_name = "TEXT", help_heading = SAMPLING)]
    stop: Vec<String>,
    /// End at this token; may be given several times.
    #[arg(long, value_name = "ID", help_heading = SAMPLING)]
    stop_token: Vec<TokenId>,
    /// Go on past the model's end-of-text tokens.
    #[arg(long, help_heading = SAMPLING)]
    ignore_eos: bool,

    /// Report the log-probability of each token and of the N most likely ones (0 to 20).
    #[arg(long, value_name = "N", value_parser = parsed(numbers::logprobs), help_heading = "Output")]
    logprobs: Option<usize>,
    /// Report the same for the tokens of the prompt.
    #[arg(long, value_name = "N", value_parser = parsed(numbers::logprobs), help_heading = "Output")]
    prompt_logprobs: Option<usize>,
    /// Print the prompt before its continuation.
    #[arg(long, help_heading = "Output")]
    echo: bool,
    /// Print one JSON object per continuation.
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Tell at the end how memory was shared out and what the steps took.
    #[arg(long, help_heading = "Output")]
    stats: bool,
    /// Write the times of all steps to FILE, for Perfetto or chrome://tracing.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    trace: Option<PathBuf>,

    /// Requests of lower priority numbers run first [default: 0].
    #[arg(
        long,
        value_name = "P",
        help_heading = "Engine",
        allow_negative_numbers = true
    )]
    priority: Option<i32>,
    /// Give a request up after this many milliseconds, finished or not.
    #[arg(long, value_name = "MS", value_parser = parsed(numbers::deadline_ms), help_heading = "Engine")]
    deadline_ms: Option<u64>,
    /// Steps in flight, 1 to 4: with more than 1 the host prepares a step while another runs.
    #[arg(long, value_name = "N", default_value = "2", value_parser = parsed(numbers::pipeline_depth), help_heading = "Engine")]
    pipeline_depth: usize,
    #[command(flatten)]
    engine: EngineFlags,
}

impl GenerateFlags {
    /// The flags about drafts.
    pub(super) fn speculation(&self) -> &SpeculationFlags {
        &self.engine.speculation
    }

    /// What the flags mean.
    pub(crate) fn into_config(self) -> GenerateConfig {
        let prompts = match (self.prompt, self.prompt_ids, self.prompts) {
            (_, Some(TokenIds(ids)), _) => PromptSource::Ids(ids),
            (_, _, Some(file)) => PromptSource::File(file),
            (text, ..) => PromptSource::Text(text.unwrap_or_default()),
        };
        let mut engine = self.engine.options(&self.model);
        engine.config.pipeline_depth = self.pipeline_depth;
        engine.config.trace = self.trace.is_some();
        GenerateConfig {
            model: self.model.source(),
            prompts,
            system: self.system,
            settings: Settings {
                max_tokens: self.max_tokens,
                temperature: self.temperature,
                top_p: self.top_p,
                top_k: self.top_k,
                min_p: self.min_p,
                seed: self.seed,
                n: self.n,
                repetition_penalty: self.repetition_penalty,
                presence_penalty: self.presence_penalty,
                frequency_penalty: self.frequency_penalty,
                logit_bias: given(self.logit_bias.iter().map(|bias| (bias.0, bias.1)).collect()),
                bad_word: given(self.bad_word),
                min_tokens: self.min_tokens,
                stop: given(self.stop),
                stop_token: given(self.stop_token),
                ignore_eos: Some(self.ignore_eos),
                logprobs: self.logprobs,
                prompt_logprobs: self.prompt_logprobs,
                chat: Some(self.chat),
                echo: Some(self.echo),
                priority: self.priority,
                deadline_ms: self.deadline_ms,
                speculation: None,
            },
            engine,
            json: self.json,
            stats: self.stats,
            trace: self.trace,
        }
    }
}

/// A list, if anything was given.
fn given<T>(list: Vec<T>) -> Option<Vec<T>> {
    Some(list).filter(|list| !list.is_empty())
}
