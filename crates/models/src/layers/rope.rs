//! Rotary position frequencies and their scalings.

use crate::{Config, Forward, Loader, ModelError};
use paceline_device::{Backend, DeviceError, Scratch};
use serde_json::Value;
use std::f32::consts::PI;

/// Allowance for shares of a head that were rounded to 32 bits.
const ROUNDING: f64 = 1e-3;

/// Frequencies of the rotated pairs, scaled as the model asks.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// One per rotated pair.
    pub frequencies: Vec<f32>,
    /// Multiplies cosines and sines.
    pub factor: f32,
}

impl RopeConfig {
    /// Reads `rope_parameters` (or the older `rope_scaling` and `rope_theta`) for heads of `head_dim`.
    pub fn read(config: &Config<'_>, head_dim: usize) -> Result<Self, ModelError> {
        let parameters = config
            .get("rope_parameters")
            .or_else(|| config.get("rope_scaling"));
        let fields = Fields { parameters, config };
        let theta = fields.number("rope_theta")?.unwrap_or(10_000.0);
        let share = fields.number("partial_rotary_factor")?.unwrap_or(1.0);
        // The share may be a quotient of two counts, rounded down.
        let rotated = (f64::from(share) * head_dim as f64 + ROUNDING) as usize;
        if rotated == 0 || !rotated.is_multiple_of(2) || rotated > head_dim {
            let why = format!("{share} of a head of {head_dim} gives {rotated} rotated elements");
            return Err(ModelError::config("partial_rotary_factor", why));
        }
        let base: Vec<f32> = (0..rotated / 2)
            .map(|i| 1.0 / theta.powf((2 * i) as f32 / rotated as f32))
            .collect();
        let plain = |frequencies| Self {
            frequencies,
            factor: 1.0,
        };
        let scaled = match fields.kind()? {
            "default" | "mrope" => plain(base),
            "linear" => {
                let factor = fields.required("factor")?;
                plain(base.iter().map(|f| f / factor).collect())
            }
            "llama3" => plain(llama3(&fields, &base)?),
            "yarn" => yarn(&fields, &base, theta)?,
            other => {
                return Err(ModelError::config(
                    "rope_type",
                    format!("`{other}` is not supported"),
                ));
            }
        };
        scaled.finite("rope_parameters")
    }

    /// Fails where the parameters drive a frequency out of the numbers.
    fn finite(self, field: &str) -> Result<Self, ModelError> {
        let finite = self.factor.is_finite() && self.frequencies.iter().all(|f| f.is_finite());
        finite
            .then_some(self)
            .ok_or_else(|| ModelError::config(field, "a frequency is not finite"))
    }

    /// Divides the frequencies by factors that some GGUF files store beside the weights.
    pub fn divide_by(mut self, factors: &[f32]) -> Result<Self, ModelError> {
        if factors.len() != self.frequencies.len() {
            let why = format!(
                "{} factors for {} frequencies",
                factors.len(),
                self.frequencies.len()
            );
            return Err(ModelError::config("rope_freqs", why));
        }
        for (frequency, factor) in self.frequencies.iter_mut().zip(factors) {
            *frequency /= factor;
        }
        self.finite("rope_freqs")
    }
}

/// Rope fields live in their own object or at the top level, depending on the file's age.
struct Fields<'a> {
    parameters: Option<&'a Value>,
    config: &'a Config<'a>,
}

impl Fields<'_> {
    fn number(&self, field: &str) -> Result<Option<f32>, ModelError> {
        let inner = self
            .parameters
            .and_then(|p| p.get(field))
            .filter(|value| !value.is_null());
        let Some(value) = inner.or_else(|| self.config.get(field)) else {
            return Ok(None);
        };
        let number = value
            .as_f64()
            .map(|n| n as f32)
            .filter(|n| n.is_finite() && *n > 0.0);
        number
            .map(Some)
            .ok_or_else(|| ModelError::config(field, format!("{value} is not a positive number")))
    }

    fn required(&self, field: &str) -> Result<f32, ModelError> {
        self.number(field)?
            .ok_or_else(|| ModelError::config(field, "missing from the rope parameters"))
    }

    fn kind(&self) -> Result<&str, ModelError> {
        let Some(parameters) = self.parameters else {
            return Ok("default");
        };
        let kind = parameters.get("rope_type").or_else(|| parameters.get("type"));
        kind.map_or(Ok("default"), |kind| {
            kind.as_str()
                .ok_or_else(|| ModelError::config("rope_type", format!("{kind} is not a string")))
        })
    }

    /// The context length the model was trained for, before it was stretched.
    fn original_length(&self) -> Result<f32, ModelError> {
        match self.number("original_max_position_embeddings")? {
            Some(length) => Ok(length),
            None => self.required("max_position_embeddings"),
        }
    }
}

/// Long wavelengths are divided by the factor, short ones kept, those between interpolated.
fn llama3(fields: &Fields<'_>, base: &[f32]) -> Result<Vec<f32>, ModelError> {
    let factor = fields.required("factor")?;
    let (low, high) = (
        fields.required("low_freq_factor")?,
        fields.required("high_freq_factor")?,
    );
    let original = fields.original_length()?;
    let scale = |frequency: f32| {
        let wavelength = 2.0 * PI / frequency;
        if wavelength < original / high {
            frequency
        } else if wavelength > original / low {
            frequency / factor
        } else {
            let smooth = (original / wavelength - low) / (high - low);
            (1.0 - smooth) * frequency / factor + smooth * frequency
        }
    };
    Ok(base.iter().map(|frequency| scale(*frequency)).collect())
}

/// Interpolates low frequencies, keeps high ones, with a linear ramp between two turn counts.
fn yarn(fields: &Fields<'_>, base: &[f32], theta: f32) -> Result<RopeConfig, ModelError> {
    let dim = (2 * base.len()) as f32;
    let original = fields.original_length()?;
    let factor = match fields.number("factor")? {
        Some(factor) => factor,
        None => fields.required("max_position_embeddings")? / original,
    };
    let beta_fast = fields.number("beta_fast")?.unwrap_or(32.0);
    let beta_slow = fields.number("beta_slow")?.unwrap_or(1.0);
    let turns_at = |turns: f32| dim * (original / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln());
    let low = turns_at(beta_fast).floor().max(0.0);
    let mut high = turns_at(beta_slow).ceil().min(dim - 1.0);
    if (high - low).abs() < f32::EPSILON {
        high += 0.001;
    }
    let blend = |(i, frequency): (usize, &f32)| {
        let ramp = ((i as f32 - low) / (high - low)).clamp(0.0, 1.0);
        frequency / factor * ramp + frequency * (1.0 - ramp)
    };
    let frequencies = base.iter().enumerate().map(blend).collect();
    Ok(RopeConfig {
        frequencies,
        factor: attention_factor(fields, factor)?,
    })
}

fn attention_factor(fields: &Fields<'_>, factor: f32) -> Result<f32, ModelError> {
    if let Some(given) = fields.number("attention_factor")? {
        return Ok(given);
    }
    let scale = |mscale: f32| {
        if factor <= 1.0 {
            1.0
        } else {
            0.1 * mscale * factor.ln() + 1.0
        }
    };
    Ok(
        match (fields.number("mscale")?, fields.number("mscale_all_dim")?) {
            (Some(mscale), Some(all)) => scale(mscale) / scale(all),
            _ => scale(1.0),
        },
    )
}

/// Rotary positions on the device.
pub struct Rope<B: Backend> {
    frequencies: B::Buffer<f32>,
    pairs: usize,
    factor: f32,
}

impl<B: Backend> Rope<B> {
    /// Uploads the frequencies.
    pub fn new(loader: &Loader<'_, B>, config: &RopeConfig) -> Result<Self, ModelError> {
        let frequencies = loader.upload(&config.frequencies)?;
        Ok(Self {
            frequencies,
            pairs: config.frequencies.len(),
            factor: config.factor,
        })
    }

    /// Cosines and sines for the step's positions.
    pub fn angles(&self, cx: &Forward<'_, B>) -> Result<Scratch<B>, DeviceError> {
        let mut out = cx.tokens(2 * self.pairs)?;
        cx.backend
            .rope_angles(cx.step, &self.frequencies, self.factor, &mut out);
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(parameters: &Value, head_dim: usize) -> Result<RopeConfig, ModelError> {
        RopeConfig::read(&Config::new(&json!({ "rope_parameters": parameters })), head_dim)
    }

    #[test]
    fn a_share_that_was_divided_out_gives_its_count_back() {
        for head_dim in 2..=512 {
            for pairs in 1..=head_dim / 2 {
                let share = 2.0 * pairs as f64 / head_dim as f64;
                let rope = read(&json!({ "partial_rotary_factor": share }), head_dim);
                assert_eq!(
                    rope.unwrap().frequencies.len(),
                    pairs,
                    "{pairs} pairs of {head_dim}"
                );
            }
        }
    }

    #[test]
    fn parameters_that_leave_the_numbers_are_refused() {
        let equal = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 2.0 * std::f64::consts::PI * 4.0});
        for parameters in [json!({ "rope_theta": 1e-45 }), equal] {
            let message = read(&parameters, 16).unwrap_err().to_string();
            assert!(message.contains("rope_parameters"), "{message}");
        }
        let rope = read(&json!({}), 4).unwrap();
        assert!(rope.clone().divide_by(&[1.0]).is_err());
        assert!(rope.divide_by(&[1.0, 0.0]).is_err());
    }
}
