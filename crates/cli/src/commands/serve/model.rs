//! From the model's files to what clients see of it.

use super::{GenerationConfig, ParserChoice, ServeConfig};
use crate::model::LoadedModel;
use anyhow::{Context, Result};
use paceline::{Options, SamplingDefaults};
use paceline_device::Recorder;
use paceline_models::Decoder;
use paceline_server::{ModelDetails, ServedModel};
use paceline_text::{ChatTemplate, ReasoningFormat, ToolFormat};
use paceline_weights::Format;
use paceline_weights::gguf::file_type_name;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// How the model's texts are understood, with reasons.
pub(super) struct Texts {
    /// There is text at all, not only tokens.
    pub(super) tokenizer: bool,
    pub(super) chat: (bool, String),
    pub(super) tools: (Option<ToolFormat>, String),
    pub(super) reasoning: (Option<ReasoningFormat>, String),
}

/// The model for the server.
pub(super) fn served(
    (model, outline): (&LoadedModel, &Decoder<Recorder>),
    config: &ServeConfig,
    max_model_len: usize,
) -> Result<(ServedModel, Texts)> {
    let given = config.chat_template.as_deref().map(template_source).transpose()?;
    let (template, chat) = template(model, given.as_deref())?;
    let sources: Vec<&str> = match &given {
        Some(source) => vec![source.as_str()],
        None => model.template_sources().collect(),
    };
    let source = sources.join("\n");
    let texts = Texts {
        tokenizer: model.tokenizer.is_some(),
        chat,
        tools: tools(config.tool_format, template.is_some(), &source),
        reasoning: chosen(
            config.reasoning_format,
            ReasoningFormat::detect(&source),
            "--reasoning-parser",
        ),
    };
    let defaults = match config.generation_config {
        GenerationConfig::Auto => SamplingDefaults::for_programs(&model.sampling),
        GenerationConfig::Vllm => SamplingDefaults::for_programs(&Options::default()),
        GenerationConfig::Paceline => SamplingDefaults::for_people(&Options::default()),
    };
    let created = SystemTime::now().duration_since(UNIX_EPOCH);
    let served = ServedModel {
        names: config.names.clone(),
        source: model.source.clone(),
        details: details(model, outline),
        tokenizer: model.tokenizer.clone(),
        template,
        defaults: defaults.with_flags(&config.sampling),
        page_defaults: model.defaults().with_flags(&config.sampling),
        max_model_len,
        tool_format: texts.tools.0,
        reasoning_format: texts.reasoning.0,
        created: created.map_or(0, |time| time.as_secs()),
    };
    Ok((served, texts))
}

/// What the model is, for clients that show it.
fn details(model: &LoadedModel, outline: &Decoder<Recorder>) -> ModelDetails {
    let file_type = || {
        let number = model.checkpoint.gguf()?.value("general.file_type")?.as_u64()?;
        file_type_name(number).map(str::to_owned)
    };
    let most = || {
        let types = outline.stats.by_dtype.iter();
        let (dtype, _) = types.max_by_key(|(_, (_, bytes))| *bytes)?;
        Some(dtype.to_string())
    };
    ModelDetails {
        format: match model.checkpoint.format() {
            Format::Gguf => "gguf",
            Format::HuggingFace => "safetensors",
        },
        architecture: outline.dims.architecture,
        parameters: outline.stats.parameters,
        weights: file_type().or_else(most).unwrap_or_default(),
    }
}

/// A template as it was given: itself, or the name of a file with it.
fn template_source(given: &str) -> Result<String> {
    if given.contains("{{") || given.contains("{%") {
        return Ok(given.to_owned());
    }
    std::fs::read_to_string(Path::new(given)).with_context(|| format!("--chat-template {given}"))
}

/// The template, whether there is one, and why. The model's own may be damaged without keeping anyone from plain
/// completions; one that was asked for may not.
fn template(model: &LoadedModel, given: Option<&str>) -> Result<(Option<ChatTemplate>, (bool, String))> {
    if let Some(source) = given {
        let spelled = |id: Option<u32>| model.tokenizer.as_ref()?.id_to_token(id?);
        let tokenizer = model.tokenizer.as_ref();
        let bos = spelled(tokenizer.and_then(paceline_text::Tokenizer::bos_id));
        let eos = spelled(tokenizer.and_then(paceline_text::Tokenizer::eos_id));
        let template =
            ChatTemplate::new(source, bos.as_deref(), eos.as_deref()).context("--chat-template")?;
        return Ok((Some(template), (true, "--chat-template was given".to_owned())));
    }
    Ok(match model.template() {
        Ok(Some(template)) => (Some(template), (true, "the model has a chat template".to_owned())),
        Ok(None) => (
            None,
            (
                false,
                "the model has no chat template; see --chat-template".to_owned(),
            ),
        ),
        Err(error) => (
            None,
            (false, format!("the model's chat template is damaged: {error:#}")),
        ),
    })
}

/// How tools are called. A model that chats and has no format that we know is told one with the tools.
fn tools(choice: ParserChoice<ToolFormat>, chats: bool, source: &str) -> (Option<ToolFormat>, String) {
    match chosen(choice, ToolFormat::detect(source), "--tool-call-parser") {
        (None, _) if chats && matches!(choice, ParserChoice::Auto) => (
            Some(ToolFormat::Generic),
            "no known format: JSON, described in the system prompt".to_owned(),
        ),
        found => found,
    }
}

fn chosen<T>(choice: ParserChoice<T>, detected: Option<T>, flag: &str) -> (Option<T>, String) {
    match choice {
        ParserChoice::Given(format) => (Some(format), format!("{flag} was given")),
        ParserChoice::None => (None, format!("{flag} is none")),
        ParserChoice::Auto if detected.is_some() => (detected, "the chat template says so".to_owned()),
        ParserChoice::Auto => (
            None,
            format!("the chat template shows no known format; see {flag}"),
        ),
    }
}
