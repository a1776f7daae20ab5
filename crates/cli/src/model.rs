//! A model as the commands use it: its files, its tokenizer, its chat template and its sampling defaults.

use crate::ui::Ui;
use anyhow::{Context, Result, bail};
use paceline::{Options, SamplingDefaults, TextParts};
use paceline_text::{ChatTemplate, Tokenizer, TokenizerConfig};
use paceline_weights::hub::{self, HubConfig, ModelRef};
use paceline_weights::{Bytes, Checkpoint, ModelParts};
use std::path::PathBuf;

/// Name of the model in the binary.
pub(crate) const EMBEDDED: &str = "storyteller";

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ModelSource {
    /// The model in the binary.
    Embedded,
    /// A path or an id of the hub, as typed.
    Named(String),
    /// The same, of which only the configuration is read.
    Shape(String),
}

impl ModelSource {
    /// What an optional model argument means. A folder called like the embedded model is `./storyteller`.
    pub(crate) fn new(argument: Option<String>) -> Self {
        match argument {
            Some(name) if name != EMBEDDED => Self::Named(name),
            _ => Self::Embedded,
        }
    }

    /// What clients of a server may call it: the name they would expect, and the model as it was typed.
    pub(crate) fn names(&self) -> Vec<String> {
        let (Self::Named(typed) | Self::Shape(typed)) = self else {
            return vec![EMBEDDED.to_owned()];
        };
        let model = ModelRef::parse(typed, &HubConfig::from_env().endpoint);
        let mut names = vec![model.map_or_else(|_| typed.clone(), |model| model.name())];
        if names[0] != *typed {
            names.push(typed.clone());
        }
        names
    }

    /// The local path, after a download if need be; `None` for the embedded model.
    pub(crate) fn resolve(&self, ui: Ui) -> Result<Option<PathBuf>> {
        let (Self::Named(name) | Self::Shape(name)) = self else {
            return Ok(None);
        };
        if let Some((EMBEDDED, _)) = name.split_once('@') {
            bail!("{EMBEDDED} is built in: there is one of it, and no revision");
        }
        let path = hub::resolve(name, &HubConfig::from_env(), &ui.downloads())?;
        Ok(Some(path))
    }
}

/// A model's files, opened and understood, but not yet on a device.
#[derive(Debug)]
pub(crate) struct LoadedModel {
    /// Tensors and configuration.
    pub(crate) checkpoint: Checkpoint,
    /// Absent for models that come without one: they work on token ids.
    pub(crate) tokenizer: Option<Tokenizer>,
    /// Sampling parameters the model asks for.
    pub(crate) sampling: Options,
    /// Name for people.
    pub(crate) source: String,
    /// Where its weights are, if they are in files.
    pub(crate) path: Option<PathBuf>,
    text_config: TokenizerConfig,
}

impl LoadedModel {
    /// Opens a model, downloading it first if need be.
    pub(crate) fn open(source: &ModelSource, ui: Ui) -> Result<Self> {
        match source.resolve(ui)? {
            None => Self::new(embedded()?, format!("{EMBEDDED} (built in)")),
            Some(path) => {
                let checkpoint = match source {
                    ModelSource::Shape(_) => Checkpoint::config_only(&path)?,
                    _ => Checkpoint::open(&path)?,
                };
                let name = checkpoint.source().to_owned();
                let weights = !matches!(source, ModelSource::Shape(_));
                Ok(Self {
                    path: weights.then_some(path),
                    ..Self::new(checkpoint, name)?
                })
            }
        }
    }

    /// Reads what lies beside the tensors.
    pub(crate) fn new(checkpoint: Checkpoint, source: String) -> Result<Self> {
        let text = TextParts::of(&checkpoint)?;
        Ok(Self {
            checkpoint,
            tokenizer: text.tokenizer,
            sampling: text.sampling,
            source,
            path: None,
            text_config: text.config,
        })
    }

    /// What people get where they do not say how to sample.
    pub(crate) fn defaults(&self) -> SamplingDefaults {
        SamplingDefaults::for_people(&self.sampling)
    }

    /// The tokenizer; a model without one is an error that says what still works.
    pub(crate) fn require_tokenizer(&self, what: &str) -> Result<&Tokenizer> {
        self.tokenizer.as_ref().with_context(|| {
            format!(
                "{}: the model has no tokenizer (tokenizer.json), so {what} cannot be used; use --prompt-ids",
                self.source
            )
        })
    }

    /// Compiles the chat template, if the model has one. A damaged template is an error only here, so that it does
    /// not keep anyone from plain generation.
    pub(crate) fn template(&self) -> Result<Option<ChatTemplate>> {
        if self.text_config.chat_templates.is_empty() {
            return Ok(None);
        }
        let template = ChatTemplate::from_config(&self.text_config);
        template.map(Some).with_context(|| self.source.clone())
    }

    /// The sources of the chat templates.
    pub(crate) fn template_sources(&self) -> impl Iterator<Item = &str> {
        let templates = self.text_config.chat_templates.iter();
        templates.map(|template| template.source.as_str())
    }
}

macro_rules! asset {
    ($file:literal) => {
        Bytes::from_static(include_bytes!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../assets/storyteller/",
            $file
        )))
    };
}

/// The model in the binary.
pub(crate) fn embedded() -> Result<Checkpoint> {
    let parts = ModelParts {
        name: EMBEDDED.to_owned(),
        config_json: asset!("config.json"),
        safetensors: asset!("model.safetensors"),
        tokenizer_json: Some(asset!("tokenizer.json")),
        tokenizer_config: Some(asset!("tokenizer_config.json")),
        generation_config: Some(asset!("generation_config.json")),
        chat_template: None,
    };
    Ok(Checkpoint::from_parts(parts)?)
}
