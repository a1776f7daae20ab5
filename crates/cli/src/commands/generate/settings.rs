//! Sampling as far as somebody has an opinion: a line of a file, then the flags, then the model.

use crate::model::GenerationDefaults;
use paceline_types::SamplingParams;

/// What was asked for; `None` leaves the choice to the next in line.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Settings {
    pub(crate) max_tokens: Option<usize>,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<u32>,
    pub(crate) min_p: Option<f32>,
    pub(crate) seed: Option<u64>,
    pub(crate) stop: Option<Vec<String>>,
    pub(crate) ignore_eos: Option<bool>,
    pub(crate) logprobs: Option<usize>,
    pub(crate) chat: Option<bool>,
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
            stop: self.stop.or_else(|| others.stop.clone()),
            ignore_eos: self.ignore_eos.or(others.ignore_eos),
            logprobs: self.logprobs.or(others.logprobs),
            chat: self.chat.or(others.chat),
        }
    }

    /// Parameters for the engine.
    pub(crate) fn params(&self, model: GenerationDefaults, random_seed: u64) -> SamplingParams {
        let neutral = SamplingParams::default();
        SamplingParams {
            temperature: self.temperature.unwrap_or(model.temperature),
            top_p: self.top_p.unwrap_or(model.top_p),
            top_k: self.top_k.unwrap_or(model.top_k),
            min_p: self.min_p.unwrap_or(model.min_p),
            seed: self.seed.unwrap_or(random_seed),
            max_tokens: self.max_tokens.unwrap_or(neutral.max_tokens),
            ignore_eos: self.ignore_eos.unwrap_or(neutral.ignore_eos),
            logprobs: self.logprobs,
            ..neutral
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
            min_p: 0.0,
        };
        let params = line.or(&flags).params(model, 9);
        assert_eq!((params.temperature, params.top_p), (0.1, 0.3));
        assert_eq!((params.top_k, params.seed, params.max_tokens), (6, 9, 256));
    }
}
