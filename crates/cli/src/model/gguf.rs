//! Tokenizer and chat template of a GGUF file.

use anyhow::Result;
use paceline_text::{GgufTokenizer, Tokenizer, TokenizerConfig};
use paceline_weights::GgufMetadata;

/// Builds the tokenizer the metadata describes, if it describes one, and what goes with it.
pub(super) fn text_parts(metadata: &GgufMetadata) -> Result<(Option<Tokenizer>, TokenizerConfig)> {
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

fn describe(metadata: &GgufMetadata) -> Result<Option<GgufTokenizer>> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let id = |name: &str| metadata.get_u32(&key(name));
    let text = |name: &str| metadata.get_str(&key(name));
    let texts = |name: &str| {
        let list = metadata.get_array_str(&key(name))?.unwrap_or_default();
        anyhow::Ok(list.into_iter().map(str::to_owned).collect())
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
