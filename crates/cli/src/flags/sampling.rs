//! The flags of commands that sample.

use super::numbers::{self, TokenBias, parsed};
use crate::commands::generate::Settings;
use clap::Args;
use paceline_types::TokenId;

/// Heading of these flags in `--help`.
pub(super) const SAMPLING: &str = "Sampling (defaults come from the model's generation_config.json)";

// A plain comment: a doc comment would replace the description of the command.

// How tokens are chosen, and where texts end.
#[derive(Debug, Args)]
pub(crate) struct SamplingFlags {
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
    /// Equal seeds give equal texts [default: random; `generate` tells which].
    #[arg(short, long, value_name = "S", help_heading = SAMPLING)]
    seed: Option<u64>,
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
}

impl SamplingFlags {
    /// What was asked for; nothing else is set.
    pub(super) fn settings(self) -> Settings {
        Settings {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            seed: self.seed,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: given(self.logit_bias.iter().map(|bias| (bias.0, bias.1)).collect()),
            bad_word: given(self.bad_word),
            min_tokens: self.min_tokens,
            stop: given(self.stop),
            stop_token: given(self.stop_token),
            ignore_eos: Some(self.ignore_eos),
            ..Settings::default()
        }
    }
}

/// A list, if anything was given.
fn given<T>(list: Vec<T>) -> Option<Vec<T>> {
    Some(list).filter(|list| !list.is_empty())
}
