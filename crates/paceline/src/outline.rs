//! An engine without memory: what a model and its drafter would ask of a device, learned before anything is loaded.

use crate::drafter::{self, Drafter};
use crate::engine::{build_runner, load_model};
use crate::speculation::{DrafterShape, Speculation};
use crate::{EngineConfig, ModelFiles, StartError};
use paceline_device::{Backend, DeviceInfo, Recorder};
use paceline_models::{Decoder, LoadStats, ModelError};
use paceline_runner::RunnerConfig;
use paceline_types::DType;

/// A model and its drafter on a device that owns no memory and counts what is asked of it.
pub struct Outline {
    recorder: Recorder,
    model: Decoder<Recorder>,
    drafter: Drafter<Recorder>,
    speculation: Speculation,
}

impl Outline {
    /// Of checkpoints, on a device like this one. Names and shapes are checked, weights stay where they are.
    pub fn load<'a>(
        files: impl Into<ModelFiles<'a>>,
        config: &EngineConfig,
        device: &DeviceInfo,
    ) -> Result<Self, StartError> {
        let files = files.into();
        let recorder = Recorder::like(device.clone());
        let model = load_model(&recorder, files.model, config, &|_| {})?;
        check_quantised(config, device, &model.stats)?;
        let given = files.drafter.map(drafter::kind);
        let speculation = Speculation::resolve(&config.speculation, model.mtp.is_some(), given)?;
        let place = (&recorder, &model);
        let drafter = Drafter::load(place, files.drafter, (&speculation, config), &|_| {})?;
        Ok(Self {
            recorder,
            model,
            drafter,
            speculation,
        })
    }

    /// Of a model that was built on `recorder`, maybe from its configuration alone, and that drafts by itself if at all.
    pub fn of(
        recorder: Recorder,
        model: Decoder<Recorder>,
        config: &EngineConfig,
    ) -> Result<Self, StartError> {
        let speculation = Speculation::resolve(&config.speculation, model.mtp.is_some(), None)?;
        Ok(Self {
            recorder,
            model,
            drafter: Drafter::Own,
            speculation,
        })
    }

    /// How it would draft.
    pub fn speculation(&self) -> &Speculation {
        &self.speculation
    }

    pub(crate) fn model(&self) -> &Decoder<Recorder> {
        &self.model
    }

    /// What its drafter adds.
    pub(crate) fn drafter_shape(&self, block_size: usize) -> DrafterShape {
        self.drafter.shape(&self.model, &self.speculation, block_size)
    }

    /// Starts without memory, and returns the bytes of all buffers and tensors that were asked for: what is neither a
    /// weight nor a cache of a layer.
    pub(crate) fn rehearse(self, config: RunnerConfig) -> Result<u64, ModelError> {
        let before = self.recorder.allocated();
        let parts = (self.model, self.drafter);
        let _runner = build_runner(self.recorder.clone(), parts, &self.speculation, config)?;
        Ok(self.recorder.allocated() - before)
    }
}

/// Weights that are to be quantised can be: by the device, and there are some.
pub(crate) fn check_quantised(
    config: &EngineConfig,
    device: &DeviceInfo,
    loaded: &LoadStats,
) -> Result<(), StartError> {
    let Some(dtype) = config.dtype.filter(|dtype| dtype.is_quantised()) else {
        return Ok(());
    };
    let bound = if !device.quantises {
        format!(
            "left out on {}, which keeps weights in floating point",
            device.name
        )
    } else if loaded.quantised > 0 {
        return Ok(());
    } else {
        let quantised = loaded.by_dtype.keys().filter(|dtype| dtype.is_quantised());
        let names: Vec<_> = quantised.map(|dtype| dtype.name()).collect();
        if names.is_empty() {
            format!(
                "left out, since no matrix has rows of whole blocks of {}",
                dtype.block_len()
            )
        } else {
            format!(
                "left out, since the model is quantised already ({})",
                names.join(", ")
            )
        }
    };
    Err(StartError::Option {
        option: "quantize",
        value: if dtype == DType::Q8_0 { "q8" } else { "q4" }.to_owned(),
        bound,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_quantised_is_refused_with_the_reason() {
        let refusal = |dtype, quantises, quantised, stored: &[DType]| {
            let config = EngineConfig {
                dtype: Some(dtype),
                ..EngineConfig::default()
            };
            let device = DeviceInfo {
                name: "cuda:0".to_owned(),
                quantises,
                ..Recorder::silent().info()
            };
            let loaded = LoadStats {
                quantised,
                by_dtype: stored.iter().map(|dtype| (*dtype, (1, 1))).collect(),
                ..LoadStats::default()
            };
            let checked = config
                .check()
                .and_then(|()| check_quantised(&config, &device, &loaded));
            checked.map_or_else(|error| error.to_string(), |()| "started".to_owned())
        };
        let stored = [DType::F32, DType::Q4K, DType::Q6K];
        assert_eq!(refusal(DType::Q4_1, true, 1, &stored), "started");
        assert_eq!(refusal(DType::BF16, false, 0, &stored), "started");
        assert_eq!(
            refusal(DType::Q4_1, true, 0, &stored),
            "`quantize` is q4; it must be left out, since the model is quantised already (Q4_K, Q6_K)"
        );
        assert_eq!(
            refusal(DType::Q8_0, true, 0, &stored[..1]),
            "`quantize` is q8; it must be left out, since no matrix has rows of whole blocks of 32"
        );
        assert_eq!(
            refusal(DType::Q8_0, false, 0, &stored[..1]),
            "`quantize` is q8; it must be left out on cuda:0, which keeps weights in floating point"
        );
        assert_eq!(
            refusal(DType::Q4K, true, 1, &stored),
            "`dtype` is Q4_K; it must be a floating-point type, Q8_0 or Q4_1"
        );
    }
}
