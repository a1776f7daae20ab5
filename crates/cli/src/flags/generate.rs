//! The flags of `generate`.

use super::engine::{EngineFlags, ModelFlags};
use super::numbers::{self, TokenIds, parsed};
use super::sampling::{Generate, OptionFlags};
use super::speculation::SpeculationFlags;
use crate::commands::generate::{GenerateConfig, PromptSource, Settings};
use clap::{ArgGroup, Args};
use std::io::{self, IsTerminal};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  paceline generate --prompt \"Once upon a time\"
  paceline generate --prompt \"The fox\" --temperature 0 --max-tokens 64
  paceline generate --model path/to/model --chat --prompt \"Why is the sky blue?\"
  paceline generate --model org/name:model-Q4_K_M.gguf --prompt \"Hello\" --stop \"The end\"
  paceline generate --prompts prompts.jsonl --json > results.jsonl
  cat notes.txt | paceline generate --model org/name --max-tokens 100
  paceline generate --prompt \"The fox\" --n 4 --stats --trace trace.json
  paceline generate --prompt \"The fox\" --speculation mtp --draft-tokens 3 --no-depth-control --stats

The lines of a prompts file run as one batch; results come in the order of the lines. A line is
{\"prompt\": \"...\"} or {\"prompt_ids\": [1, 2]}; it may set for itself what flags set for all, by the flag's
name with underscores: {\"prompt\": \"...\", \"max_tokens\": 9, \"stop\": [\"a\", \"b\"], \"logit_bias\": {\"42\": -1}},
and how it is drafted for: \"speculation\": \"off\" or {\"method\": \"ngram\", \"max_tokens\": 3}.";

/// Continue a prompt, printing text as it comes.
///
/// The text goes to stdout, behind its prompt if that is a terminal; the speed and everything else to stderr.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[command(group = ArgGroup::new("source").args(["prompt", "prompt_ids", "prompts"]))]
pub(crate) struct GenerateFlags {
    #[command(flatten)]
    model: ModelFlags,

    /// Text to continue; `-` is what is piped in, and so is no flag at all.
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

    #[command(flatten)]
    options: OptionFlags<Generate>,

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

    /// Whether there is nothing to continue: no flag says what, and nothing is piped in.
    pub(super) fn lacks_prompt(&self) -> bool {
        let given = self.prompt.is_some() || self.prompt_ids.is_some() || self.prompts.is_some();
        !given && io::stdin().is_terminal()
    }

    /// What the flags mean.
    pub(crate) fn into_config(self) -> GenerateConfig {
        let prompts = match (self.prompt, self.prompt_ids, self.prompts) {
            (_, Some(TokenIds(ids)), _) => PromptSource::Ids(ids),
            (_, _, Some(file)) => PromptSource::File(file),
            (Some(text), ..) if text != "-" => PromptSource::Text(text),
            _ => PromptSource::Stdin,
        };
        let mut engine = self.engine.options(&self.model);
        engine.config.pipeline_depth = self.pipeline_depth;
        engine.config.trace = self.trace.is_some();
        GenerateConfig {
            model: self.model.source(),
            prompts,
            system: self.system,
            settings: Settings {
                options: self.options.0,
                chat: Some(self.chat),
                echo: Some(self.echo),
                speculation: None,
            },
            engine,
            json: self.json,
            stats: self.stats,
            trace: self.trace,
        }
    }
}
