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
use paceline_bench::quality::{self, ForcedModel, Quality};
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
    let comparison = Comparison {
        model: (&model, config.dtype),
        reference: (&reference, reference_dtype),
        tokens: &tokens,
        ui,
    };
    print(&Device::open(&config)?.run(comparison)?, flags.json)
}

struct Comparison<'a> {
    model: (&'a LoadedModel, Option<DType>),
    reference: (&'a LoadedModel, Option<DType>),
    tokens: &'a [TokenId],
    ui: Ui,
}

impl OnDevice for Comparison<'_> {
    type Output = Result<Quality>;

    fn run<B: Backend>(self, backend: B) -> Result<Quality> {
        let mut model = Forced::load(&backend, self.model)?;
        let mut reference = Forced::load(&backend, self.reference)?;
        let pair: (&mut dyn ForcedModel, &mut dyn ForcedModel) = (&mut model, &mut reference);
        quality::run(pair, self.tokens, WINDOW, &self.ui).map_err(explain)
    }
}

/// A model on a device.
struct Forced<B: Backend> {
    name: String,
    solo: Solo<B>,
}

impl<B: Backend> Forced<B> {
    fn load(backend: &B, (model, dtype): (&LoadedModel, Option<DType>)) -> Result<Self> {
        let decoder = paceline_models::load(backend, &model.checkpoint, dtype, &|_| {})
            .with_context(|| model.source.clone())?;
        let types = dtype.map_or_else(|| "as stored".to_owned(), |dtype| format!("as {dtype}"));
        Ok(Self {
            name: format!("{}, {types}", model.source),
            solo: Solo::new(backend, decoder, None)?,
        })
    }
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
