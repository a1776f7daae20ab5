//! `paceline bench quality`.

use super::{explain, print};
use crate::engine;
use crate::env;
use crate::flags::BenchQualityFlags;
use crate::model::LoadedModel;
use crate::ui::Ui;
use anyhow::{Context, Result, bail};
use paceline::{Device, EngineConfig, OnDevice};
use paceline_bench::SubjectError;
use paceline_bench::quality::{self, ForcedModel};
use paceline_device::Backend;
use paceline_selftest::Solo;
use paceline_types::{DType, TokenId};
use std::fs;

/// Tokens that a model sees at a time, and of these in one step.
const WINDOW: usize = 512;
const STEP: usize = 256;

/// Runs the command.
pub(super) fn run(flags: &BenchQualityFlags, ui: Ui) -> Result<()> {
    let (reference, reference_dtype) = flags.reference();
    let model = LoadedModel::open(&flags.model.source(), ui)?;
    let reference = LoadedModel::open(&reference, ui)?;
    let path = flags.text.display();
    let text = fs::read_to_string(&flags.text).with_context(|| path.to_string())?;
    let mut tokens = model.require_tokenizer("a text")?.encode(&text, true)?;
    tokens.truncate(flags.tokens);
    if tokens.len() < 2 {
        bail!("{path}: there are no two tokens in it");
    }
    let config = EngineConfig {
        device: engine::device(flags.model.device())?,
        kernel_cache: env::kernel_cache(),
        ..flags.model.config()
    };
    let reference_config = EngineConfig {
        kv_cache_dtype: Some(DType::F32),
        ..config.clone()
    };
    let config = EngineConfig {
        kv_cache_dtype: flags.kv_cache_dtype(),
        ..config
    };
    let mut model = Device::open(&config)?.run(Load(&model, config.dtype))?;
    let mut reference = Device::open(&reference_config)?.run(Load(&reference, reference_dtype))?;
    let pair: (&mut dyn ForcedModel, &mut dyn ForcedModel) = (&mut *model, &mut *reference);
    let quality = quality::run(pair, &tokens, WINDOW, &ui).map_err(explain)?;
    print(&quality, flags.json)
}

/// Puts a model on a device, its matrices converted to a type.
struct Load<'a>(&'a LoadedModel, Option<DType>);

impl OnDevice for Load<'_> {
    type Output = Result<Box<dyn ForcedModel>>;

    fn run<B: Backend>(self, backend: B) -> Self::Output {
        let Self(model, dtype) = self;
        let decoder = paceline_models::load(&backend, &model.checkpoint, dtype, &|_| {})
            .with_context(|| model.source.clone())?;
        let types = dtype.map_or_else(|| "as stored".to_owned(), |dtype| format!("as {dtype}"));
        let kv = backend.info().elements.kv;
        Ok(Box::new(Forced {
            name: format!("{}, {types}, keys and values as {kv}", model.source),
            solo: Solo::new(&backend, decoder, None)?,
        }))
    }
}

/// A model on a device.
struct Forced<B: Backend> {
    name: String,
    solo: Solo<B>,
}

impl<B: Backend> ForcedModel for Forced<B> {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn vocabulary(&self) -> usize {
        self.solo.model().dims.vocabulary
    }

    fn logits(&mut self, text: &[TokenId]) -> Result<Vec<f32>, SubjectError> {
        Ok(self.solo.prompt_logits(text, STEP, text.len())?)
    }
}
