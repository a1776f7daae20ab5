//! Sampling options as far as they are given: by a line of a file, then by flags, then by the model.

use crate::model::GenerationDefaults;
use paceline::RequestSpeculation;
use paceline_types::{SamplingParams, TokenId};

/// What was asked for; `None` leaves the choice to the next in line.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Settings {
    pub(crate) max_tokens: Option<usize>,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<u32>,
    pub(crate) min_p: Option<f32>,
    pub(crate) seed: Option<u64>,
    pub(crate) n: Option<usize>,
    pub(crate) repetition_penalty: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) logit_bias: Option<Vec<(TokenId, f32)>>,
    pub(crate) bad_word: Option<Vec<String>>,
    pub(crate) min_tokens: Option<usize>,
    pub(crate) stop: Option<Vec<String>>,
    pub(crate) stop_token: Option<Vec<TokenId>>,
    pub(crate) ignore_eos: Option<bool>,
    pub(crate) logprobs: Option<usize>,
    pub(crate) prompt_logprobs: Option<usize>,
    pub(crate) chat: Option<bool>,
    pub(crate) echo: Option<bool>,
    pub(crate) priority: Option<i32>,
    pub(crate) deadline_ms: Option<u64>,
    pub(crate) speculation: Option<RequestSpeculation>,
}

impl Settings {
    /// These, and where they are silent the others.
    pub(crate) fn or(self, others: &Self) -> Self {
        Self {
            max_tokens: self.max_tokens.or(others.max_tokens),
            temperature: self.temperature.or(others.temperature),
            top_p: self.top_p.or(others.top_p),
            top_k: self.top_k.or(others.top_k),
            min_p: self.min_p.or(others.min_p),
            seed: self.seed.or(others.seed),
            n: self.n.or(others.n),
            repetition_penalty: self.repetition_penalty.or(others.repetition_penalty),
            presence_penalty: self.presence_penalty.or(others.presence_penalty),
            frequency_penalty: self.frequency_penalty.or(others.frequency_penalty),
            logit_bias: self.logit_bias.or_else(|| others.logit_bias.clone()),
            bad_word: self.bad_word.or_else(|| others.bad_word.clone()),
            min_tokens: self.min_tokens.or(others.min_tokens),
            stop: self.stop.or_else(|| others.stop.clone()),
            stop_token: self.stop_token.or_else(|| others.stop_token.clone()),
            ignore_eos: self.ignore_eos.or(others.ignore_eos),
            logprobs: self.logprobs.or(others.logprobs),
            prompt_logprobs: self.prompt_logprobs.or(others.prompt_logprobs),
            chat: self.chat.or(others.chat),
            echo: self.echo.or(others.echo),
            priority: self.priority.or(others.priority),
            deadline_ms: self.deadline_ms.or(others.deadline_ms),
            speculation: self.speculation.or(others.speculation),
        }
    }

    /// Parameters for the engine; bad words are still text.
    pub(crate) fn params(&self, model: GenerationDefaults, random_seed: u64) -> SamplingParams {
        let neutral = SamplingParams::default();
        SamplingParams {
            temperature: self.temperature.unwrap_or(model.temperature),
            top_p: self.top_p.unwrap_or(model.top_p),
            top_k: self.top_k.unwrap_or(model.top_k),
            min_p: self.min_p.unwrap_or(model.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(model.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(neutral.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(neutral.frequency_penalty),
            logit_bias: self.logit_bias.clone().unwrap_or_default(),
            bad_words: Vec::new(),
            seed: self.seed.unwrap_or(random_seed),
            min_tokens: self.min_tokens.unwrap_or(neutral.min_tokens),
            max_tokens: self.max_tokens.unwrap_or(neutral.max_tokens),
            ignore_eos: self.ignore_eos.unwrap_or(neutral.ignore_eos),
            stop_tokens: self.stop_token.clone().unwrap_or_default(),
            logprobs: self.logprobs,
            prompt_logprobs: self.prompt_logprobs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_wins_over_flags_and_flags_over_the_model() {
        let line = Settings {
            temperature: Some(0.1),
            ..Settings::default()
        };
        let flags = Settings {
            temperature: Some(0.2),
            top_p: Some(0.3),
            ..Settings::default()
        };
        let model = GenerationDefaults {
            temperature: 0.4,
            top_p: 0.5,
            top_k: 6,
            ..GenerationDefaults::default()
        };
        let params = line.or(&flags).params(model, 9);
        assert_eq!((params.temperature, params.top_p), (0.1, 0.3));
        assert_eq!((params.top_k, params.seed, params.max_tokens), (6, 9, 256));
    }
}
