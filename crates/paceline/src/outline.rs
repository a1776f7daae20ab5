//! An engine without memory: what a model and its drafter would ask of a device, learned before anything is loaded.

use crate::drafter::{self, Drafter};
use crate::engine::{build_runner, load_model};
use crate::speculation::{DrafterShape, Speculation};
use crate::{EngineConfig, ModelFiles, StartError};
use paceline_device::{Backend, DeviceInfo, Recorder};
use paceline_models::{Decoder, ModelError};
use paceline_runner::RunnerConfig;

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
