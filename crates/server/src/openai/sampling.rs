//! The fields that chat and completions share, and what they mean for the engine.

use super::fields::{LogitBias, Seed, SpeculationField, Stops, float};
use crate::error::ApiError;
use crate::generation::GenerationTask;
use crate::identifiers;
use crate::preparation::Preparing;
use paceline::MAX_DEADLINE;
use paceline_types::{SamplingParams, TokenId};
use serde::Deserialize;
use std::time::Duration;

/// Fields of a request that say how to generate.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SamplingFields {
    #[serde(deserialize_with = "float")]
    pub(crate) temperature: Option<f32>,
    #[serde(deserialize_with = "float")]
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<i64>,
    #[serde(deserialize_with = "float")]
    pub(crate) min_p: Option<f32>,
    #[serde(deserialize_with = "float")]
    pub(crate) repetition_penalty: Option<f32>,
    #[serde(deserialize_with = "float")]
    pub(crate) presence_penalty: Option<f32>,
    #[serde(deserialize_with = "float")]
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) logit_bias: Option<LogitBias>,
    pub(crate) bad_words: Option<Vec<String>>,
    pub(crate) seed: Option<Seed>,
    pub(crate) max_tokens: Option<u64>,
    pub(crate) max_completion_tokens: Option<u64>,
    pub(crate) min_tokens: Option<u64>,
    pub(crate) ignore_eos: Option<bool>,
    pub(crate) stop: Option<Stops>,
    pub(crate) stop_token_ids: Option<Vec<TokenId>>,
    pub(crate) include_stop_str_in_output: Option<bool>,
    pub(crate) skip_special_tokens: Option<bool>,
    pub(crate) n: Option<usize>,
    pub(crate) best_of: Option<usize>,
    pub(crate) use_beam_search: Option<bool>,
    pub(crate) priority: Option<i32>,
    pub(crate) deadline_ms: Option<u64>,
    pub(crate) cache_salt: Option<String>,
    pub(crate) speculation: Option<SpeculationField>,
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<StreamOptions>,
    pub(crate) return_token_ids: Option<bool>,
}

/// What a stream carries besides the text.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StreamOptions {
    pub(crate) include_usage: Option<bool>,
}

impl SamplingFields {
    /// Whether the reply is a stream.
    pub(crate) fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// Whether a stream ends with what it took.
    pub(crate) fn include_usage(&self) -> bool {
        let options = self.stream_options.unwrap_or_default();
        options.include_usage.unwrap_or(false)
    }

    /// A task without prompts. What is out of bounds and would not reach the engine as it was typed is refused
    /// here; the engine refuses the rest.
    pub(crate) fn task(
        &self,
        model: &Preparing<'_>,
        default_max_tokens: usize,
    ) -> Result<GenerationTask, ApiError> {
        let n = self.n.unwrap_or(1);
        self.check_unsupported(n)?;
        let stop = self.stop.clone().unwrap_or_default().0;
        if !stop.is_empty() {
            model.require_tokenizer("stop")?;
        }
        Ok(GenerationTask {
            prompts: Vec::new(),
            sampling: self.params(model, default_max_tokens)?,
            n,
            stop,
            include_stop: self.include_stop_str_in_output.unwrap_or(false),
            skip_special: self.skip_special_tokens.unwrap_or(true),
            continues: false,
            priority: self.priority.unwrap_or(0),
            deadline: deadline(self.deadline_ms)?,
            speculation: self.speculation.unwrap_or_default().0,
            constraint: None,
            tenant: 0,
            cache_salt: cache_salt(self.cache_salt.clone())?,
            salt: 0,
        })
    }

    fn check_unsupported(&self, n: usize) -> Result<(), ApiError> {
        if let Some(best) = self.best_of.filter(|best| *best != n) {
            return Err(ApiError::bound("best_of", &best, &format!("equal to n, {n}")));
        }
        if self.use_beam_search == Some(true) {
            return Err(ApiError::bound(
                "use_beam_search",
                &true,
                "false: there is no beam search",
            ));
        }
        if self.stream_options.is_some() && !self.streams() {
            let message = "`stream_options` is given although `stream` is not true";
            return Err(ApiError::field("stream_options", message));
        }
        Ok(())
    }

    fn params(&self, model: &Preparing<'_>, default_max_tokens: usize) -> Result<SamplingParams, ApiError> {
        let (defaults, neutral) = (&model.defaults, SamplingParams::default());
        let (max_tokens, min_tokens) = self.lengths(model, default_max_tokens)?;
        Ok(SamplingParams {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            top_k: self.top_k.map_or(Ok(defaults.top_k), top_k)?,
            min_p: self.min_p.unwrap_or(defaults.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(neutral.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(neutral.frequency_penalty),
            logit_bias: self.logit_bias.clone().unwrap_or_default().0,
            bad_words: self.bad_words(model)?,
            seed: self.seed.map_or_else(
                || defaults.seed.unwrap_or_else(identifiers::random),
                |Seed(seed)| seed,
            ),
            min_tokens,
            max_tokens,
            ignore_eos: self.ignore_eos.unwrap_or(false),
            stop_tokens: self.stop_token_ids.clone().unwrap_or_default(),
            logprobs: None,
            prompt_logprobs: None,
        })
    }

    /// Most and fewest tokens. More than the context holds means: until it is full.
    fn lengths(&self, model: &Preparing<'_>, default_max: usize) -> Result<(usize, usize), ApiError> {
        let (field, asked) = match (self.max_completion_tokens, self.max_tokens) {
            (Some(count), _) => ("max_completion_tokens", Some(count)),
            (None, count) => ("max_tokens", count),
        };
        if asked == Some(0) {
            return Err(ApiError::bound(field, &0, "at least 1"));
        }
        let max = asked.unwrap_or(default_max as u64);
        let min = self.min_tokens.unwrap_or(0);
        if min > max {
            return Err(ApiError::bound(
                "min_tokens",
                &min,
                &format!("at most {field}, {max}"),
            ));
        }
        let within = |count: u64| {
            usize::try_from(count)
                .unwrap_or(usize::MAX)
                .min(model.max_model_len)
        };
        Ok((within(max), within(min)))
    }

    /// A word that must not come up is forbidden as it is and after a space.
    fn bad_words(&self, model: &Preparing<'_>) -> Result<Vec<Vec<TokenId>>, ApiError> {
        let mut sequences = Vec::new();
        for word in self.bad_words.iter().flatten() {
            for spelling in [word.clone(), format!(" {}", word.trim_start())] {
                sequences.push(model.encode("bad_words", &spelling, false)?);
            }
        }
        sequences.dedup();
        Ok(sequences)
    }
}

/// -1 is how many clients write "all".
fn top_k(value: i64) -> Result<u32, ApiError> {
    if value == -1 {
        return Ok(0);
    }
    u32::try_from(value).map_err(|_| {
        let bound = format!("within 0..={}, or -1 for all", u32::MAX);
        ApiError::bound("top_k", &value, &bound)
    })
}

/// The field `cache_salt`.
pub(crate) fn cache_salt(salt: Option<String>) -> Result<Option<String>, ApiError> {
    if salt.as_deref() == Some("") {
        return Err(ApiError::bound(
            "cache_salt",
            &"empty",
            "a text of at least one character",
        ));
    }
    Ok(salt)
}

/// The field `deadline_ms`.
pub(crate) fn deadline(wait: Option<u64>) -> Result<Option<Duration>, ApiError> {
    let most = MAX_DEADLINE.as_millis() as u64;
    if let Some(wait) = wait.filter(|wait| !(1..=most).contains(wait)) {
        let bound = format!("within 1..={most}, a week");
        return Err(ApiError::bound("deadline_ms", &wait, &bound));
    }
    Ok(wait.map(Duration::from_millis))
}
