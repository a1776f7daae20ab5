//! A model of the command line as the benchmarks see it.

use crate::engine::{self, Demand, EngineOptions};
use crate::flags::MeasureFlags;
use crate::model::LoadedModel;
use crate::ui::Ui;
use anyhow::{Context, Result};
use paceline::{Handle, SpeculationMethod};
use paceline_bench::{EngineSetup, Subject, SubjectError};
use paceline_device::Recorder;
use paceline_models::Decoder;
use paceline_text::ChatInput;
use paceline_types::TokenId;
use serde_json::json;

/// A model to measure and how its engines are set up.
pub(super) struct OpenModel {
    pub(super) model: LoadedModel,
    pub(super) options: EngineOptions,
    outline: Decoder<Recorder>,
    ui: Ui,
}

impl OpenModel {
    pub(super) fn open(flags: &MeasureFlags, ui: Ui) -> Result<Self> {
        let options = flags.engine.options(&flags.model);
        let model = LoadedModel::open(&flags.model.source(), ui)?;
        let outline = engine::outline(&model)?;
        Ok(Self {
            model,
            options,
            outline,
            ui,
        })
    }

    fn start_engine(&self, setup: &EngineSetup) -> Result<Handle> {
        let mut options = self.options.clone();
        if !setup.drafts {
            options.config.speculation.method = SpeculationMethod::Off;
            options.draft_model = None;
            options.warnings.clear();
        }
        options.config.pipeline_depth = setup.pipeline_depth;
        // What is measured is what was asked for, not what usually makes sense.
        options.max_num_seqs = options.max_num_seqs.or(Some(setup.sequences));
        let demand = Demand {
            sequences: setup.sequences,
            choices: setup.choices,
            longest: setup.longest,
        };
        options.start((&self.model, &self.outline), demand, self.ui)
    }

    fn tokens(&self, text: &str, special: bool) -> Result<Vec<TokenId>> {
        let tokenizer = self.model.require_tokenizer("a text prompt")?;
        Ok(tokenizer.encode(text, special)?)
    }

    fn chat(&self, turns: &[(&str, &str)]) -> Result<Vec<TokenId>> {
        let template = self.model.template()?.with_context(|| {
            format!(
                "{}: the model has no chat template, which --workload again needs",
                self.model.source
            )
        })?;
        let message = |(role, content): &(&str, &str)| json!({ "role": role, "content": content });
        let input = ChatInput {
            messages: turns.iter().map(message).collect(),
            add_generation_prompt: true,
            ..ChatInput::default()
        };
        self.tokens(&template.render(&input).context("chat template")?, false)
    }
}

impl Subject for OpenModel {
    fn name(&self) -> &str {
        &self.model.source
    }

    fn threads(&self) -> usize {
        self.options.config.threads
    }

    fn vocabulary(&self) -> usize {
        self.outline.dims.vocabulary
    }

    fn context(&self) -> usize {
        let given = self.options.config.max_model_len;
        given.unwrap_or(self.outline.dims.max_positions)
    }

    fn start(&self, setup: &EngineSetup) -> Result<Handle, SubjectError> {
        Ok(self.start_engine(setup)?)
    }

    fn encode(&self, text: &str) -> Result<Vec<TokenId>, SubjectError> {
        Ok(self.tokens(text, true)?)
    }

    fn decode(&self, tokens: &[TokenId]) -> Result<String, SubjectError> {
        let tokenizer = self.model.require_tokenizer("a chat")?;
        Ok(tokenizer.decode(tokens, true)?)
    }

    fn encode_chat(&self, turns: &[(&str, &str)]) -> Result<Vec<TokenId>, SubjectError> {
        Ok(self.chat(turns)?)
    }
}
