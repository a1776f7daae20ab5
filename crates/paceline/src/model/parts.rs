//! What lies beside a model's weights: its tokenizer, its chat template and how it wants to be sampled.

use crate::Options;
use paceline_text::{ChatTemplate, GgufTokenizer, TextError, Tokenizer, TokenizerConfig};
use paceline_weights::{Checkpoint, GgufMetadata};
use std::error::Error;

/// A file beside the weights, or metadata in a GGUF file, that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {cause}")]
pub struct TextPartsError {
    place: String,
    cause: Box<dyn Error + Send + Sync>,
}

/// What lies beside a model's weights.
#[derive(Debug)]
pub struct TextParts {
    /// Absent for models that come without one: they work on token ids.
    pub tokenizer: Option<Tokenizer>,
    /// Special tokens and chat templates.
    pub config: TokenizerConfig,
    /// Sampling parameters that the model asks for.
    pub sampling: Options,
}

impl TextParts {
    /// Reads them: `tokenizer.json`, `tokenizer_config.json`, `generation_config.json` and the like, or GGUF's metadata.
    pub fn of(checkpoint: &Checkpoint) -> Result<Self, TextPartsError> {
        match checkpoint.gguf() {
            Some(metadata) => {
                let at = |part: &str| format!("{}: metadata {part}", checkpoint.source());
                let (tokenizer, config) = of_gguf(metadata).map_err(failed(at("tokenizer.ggml")))?;
                let sampling = Options::from_gguf(metadata).map_err(failed(at("general.sampling")))?;
                Ok(Self {
                    tokenizer,
                    config,
                    sampling,
                })
            }
            None => of_files(checkpoint),
        }
    }

    /// Compiles the chat template, if there is one.
    pub fn template(&self) -> Result<Option<ChatTemplate>, TextError> {
        let given = !self.config.chat_templates.is_empty();
        given.then(|| ChatTemplate::from_config(&self.config)).transpose()
    }
}

fn failed<E: Into<Box<dyn Error + Send + Sync>>>(place: String) -> impl FnOnce(E) -> TextPartsError {
    move |cause| TextPartsError {
        place,
        cause: cause.into(),
    }
}

fn of_files(checkpoint: &Checkpoint) -> Result<TextParts, TextPartsError> {
    let file = |name: &str| format!("{}/{name}", checkpoint.source());
    let mut config = match checkpoint.tokenizer_config() {
        Some(json) => TokenizerConfig::from_json_bytes(json.to_string().as_bytes())
            .map_err(failed(file("tokenizer_config.json")))?,
        None => TokenizerConfig::default(),
    };
    if let Some(template) = checkpoint.chat_template_file() {
        config = config.with_chat_template(template);
    }
    let tokenizer = checkpoint.tokenizer_json().map(Tokenizer::from_json_bytes);
    let tokenizer = tokenizer.transpose().map_err(failed(file("tokenizer.json")))?;
    let sampling = checkpoint
        .generation_config()
        .map(Options::from_generation_config);
    let sampling = sampling
        .transpose()
        .map_err(failed(file("generation_config.json")))?;
    Ok(TextParts {
        tokenizer: tokenizer.map(|tokenizer| tokenizer.with_config(&config)),
        config,
        sampling: sampling.unwrap_or_default(),
    })
}

type Cause = Box<dyn Error + Send + Sync>;

/// The tokenizer that the metadata describes, if it describes one, and what goes with it.
fn of_gguf(metadata: &GgufMetadata) -> Result<(Option<Tokenizer>, TokenizerConfig), Cause> {
    let Some(description) = describe(metadata)? else {
        return Ok((None, TokenizerConfig::default()));
    };
    let template = description.chat_template.clone();
    let tokenizer = Tokenizer::from_gguf(description)?;
    let spelled = |id: Option<u32>| id.and_then(|id| tokenizer.id_to_token(id));
    let config = TokenizerConfig {
        bos_token: spelled(tokenizer.bos_id()),
        eos_token: spelled(tokenizer.eos_id()),
        ..TokenizerConfig::default()
    };
    let config = match template {
        Some(source) => config.with_chat_template(&source),
        None => config,
    };
    Ok((Some(tokenizer), config))
}

fn describe(metadata: &GgufMetadata) -> Result<Option<GgufTokenizer>, Cause> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let id = |name: &str| metadata.get_u32(&key(name));
    let text = |name: &str| metadata.get_str(&key(name));
    let texts = |name: &str| -> Result<Vec<String>, Cause> {
        let list = metadata.get_array_str(&key(name))?.unwrap_or_default();
        Ok(list.into_iter().map(str::to_owned).collect())
    };
    let Some(model) = text("model")?.filter(|model| *model != "none") else {
        return Ok(None);
    };
    Ok(Some(GgufTokenizer {
        model: model.to_owned(),
        pre: text("pre")?.unwrap_or_default().to_owned(),
        tokens: texts("tokens")?,
        token_types: metadata.get_array_i32(&key("token_type"))?.unwrap_or_default(),
        merges: texts("merges")?,
        scores: metadata.get_array_f32(&key("scores"))?.unwrap_or_default(),
        bos: id("bos_token_id")?,
        eos: id("eos_token_id")?,
        eot: id("eot_token_id")?,
        padding: id("padding_token_id")?,
        unknown: id("unknown_token_id")?,
        add_bos: metadata.get_bool(&key("add_bos_token"))?,
        add_space_prefix: metadata.get_bool(&key("add_space_prefix"))?,
        chat_template: metadata.get_str("tokenizer.chat_template")?.map(str::to_owned),
    }))
}
