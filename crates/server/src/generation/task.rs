//! The fields that say how to generate, the same in every interface.

use super::GenerationTask;
use super::allowed::AllowedTokens;
use crate::error::ApiError;
use crate::fields::{Field, Fields, Unknown};
use crate::identifiers;
use crate::preparation::Preparing;
use paceline::{Request, SamplingDefaults};
use paceline_text::DecodeOptions;
use paceline_types::{TokenId, TokenMask};
use serde_json::value::RawValue;
use std::sync::Arc;

/// What a stream carries besides the text.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamOptions {
    /// It ends with what it took.
    pub(crate) include_usage: bool,
    /// Every chunk has what was taken so far.
    pub(crate) continuous_usage: bool,
}

impl Field for StreamOptions {
    fn read(place: &str, json: &RawValue, unknown: &mut Unknown) -> Result<Self, ApiError> {
        let mut options = Fields::inside(place, json)?;
        let include_usage = options.flag("include_usage")?;
        let continuous_usage = options.flag("continuous_usage_stats")? && include_usage;
        // Events have nothing to be obfuscated.
        options.take::<bool>("include_obfuscation")?;
        options.leave(unknown);
        Ok(Self {
            include_usage,
            continuous_usage,
        })
    }
}

impl GenerationTask {
    /// A task without prompts, of the fields that say how to generate. `but` names those that the interface reads
    /// itself, and `default_max_tokens` is what there is to generate if the request does not say.
    pub(crate) fn take(
        model: &Preparing<'_>,
        fields: &mut Fields<'_>,
        (default_max_tokens, but): (usize, &[&str]),
    ) -> Result<Self, ApiError> {
        Self::take_or(model, fields, &model.defaults, (default_max_tokens, but))
    }

    /// The same with other defaults, of interfaces whose clients expect them.
    pub(crate) fn take_or(
        model: &Preparing<'_>,
        fields: &mut Fields<'_>,
        defaults: &SamplingDefaults,
        (default_max_tokens, but): (usize, &[&str]),
    ) -> Result<Self, ApiError> {
        let options = fields.options(but)?;
        let mut request = Request::default();
        request.sampling_mut().max_tokens = default_max_tokens;
        // A number that every client can hand on, those included whose numbers are floats.
        request.sampling_mut().seed = identifiers::random() >> 11;
        let options = options.or(defaults.options());
        options.apply(&mut request);
        request.sampling_mut().bad_words = bad_words(model, options.texts("bad_words"))?;
        let stop = options.texts("stop");
        if !stop.is_empty() {
            model.require_tokenizer("stop")?;
        }
        let min_tokens = request.sampling.min_tokens;
        let task = Self {
            decoding: DecodeOptions {
                stop: stop.into(),
                include_stop: fields.flag("include_stop_str_in_output")?,
                show_special: fields.take("skip_special_tokens")? == Some(false),
                continues: false,
                min_tokens,
                token_texts: false,
            },
            request: Request {
                speculation: fields.take("speculation")?.unwrap_or_default(),
                constraint: None,
                ..request
            },
            allowed: fields.take::<Vec<TokenId>>("allowed_token_ids")?,
            cache_salt: cache_salt(fields)?,
            truncate: fields.take("truncate_prompt_tokens")?,
            prompts: Vec::new(),
            resumed: None,
            movable: false,
        };
        task.refuse_unsupported(fields)?;
        Ok(task)
    }

    fn refuse_unsupported(&self, fields: &mut Fields<'_>) -> Result<(), ApiError> {
        let n = self.n();
        if let Some(best) = fields.take::<usize>("best_of")?.filter(|best| *best != n) {
            return Err(ApiError::bound("best_of", &best, &format!("equal to n, {n}")));
        }
        fields.refuse("use_beam_search", "there is no beam search")?;
        if self.truncate == Some(0) {
            return Err(ApiError::bound("truncate_prompt_tokens", &0, "at least 1"));
        }
        Ok(())
    }

    /// Takes the field that asks how every token came, for interfaces that tell it; whether it does.
    pub(crate) fn take_origins(&mut self, fields: &mut Fields<'_>) -> Result<bool, ApiError> {
        let wanted = fields.flag("return_token_origins")?;
        if wanted {
            self.request.sampling_mut().origins = true;
            self.decoding.token_texts = true;
        }
        Ok(wanted)
    }

    /// Adds a prompt, cut from the left if the request says so.
    pub(crate) fn add_prompt(&mut self, mut tokens: Vec<TokenId>) -> Arc<[TokenId]> {
        if let Some(most) = self.truncate {
            tokens.drain(..tokens.len().saturating_sub(most));
        }
        let tokens: Arc<[TokenId]> = tokens.into();
        self.prompts.push(Arc::clone(&tokens));
        tokens
    }

    /// Lets nothing come but what the request allows, where it says so.
    pub(crate) fn allow(&mut self, vocabulary: usize) -> Result<(), ApiError> {
        const FIELD: &str = "allowed_token_ids";
        let Some(tokens) = self.allowed.take() else {
            return Ok(());
        };
        if self.request.constraint.is_some() {
            let message = format!("`{FIELD}` is given although the form of the text is too");
            return Err(ApiError::field(FIELD, message));
        }
        let beyond = tokens.iter().find(|token| **token as usize >= vocabulary);
        if let Some(token) = beyond {
            let bound = format!("made of tokens below {vocabulary}, where the vocabulary ends");
            return Err(ApiError::bound(FIELD, &format!("with token {token}"), &bound));
        }
        if tokens.is_empty() {
            return Err(ApiError::bound(FIELD, &"[]", "at least one token"));
        }
        let mask = TokenMask::of(&tokens, vocabulary);
        self.request.constraint = Some(Arc::new(AllowedTokens(mask)));
        Ok(())
    }

    /// Choices per prompt.
    pub(crate) fn n(&self) -> usize {
        self.request.n.unwrap_or(1)
    }

    /// Choices in all.
    pub(crate) fn choices(&self) -> usize {
        self.prompts.len() * self.n()
    }
}

/// Whether the reply is a stream, and what it carries.
pub(crate) fn stream(fields: &mut Fields<'_>) -> Result<(bool, StreamOptions), ApiError> {
    let stream = fields.flag("stream")?;
    let options = fields.take::<StreamOptions>("stream_options")?;
    if options.is_some() && !stream {
        let message = "`stream_options` is given although `stream` is not true";
        return Err(ApiError::field("stream_options", message));
    }
    Ok((stream, options.unwrap_or_default()))
}

/// The field `cache_salt`.
pub(crate) fn cache_salt(fields: &mut Fields<'_>) -> Result<Option<String>, ApiError> {
    let salt = fields.take::<String>("cache_salt")?;
    if salt.as_deref() == Some("") {
        let bound = "a text of at least one character";
        return Err(ApiError::bound("cache_salt", &"empty", bound));
    }
    Ok(salt)
}

/// A word that must not come up is forbidden as it is and after a space.
fn bad_words(model: &Preparing<'_>, words: &[String]) -> Result<Vec<Vec<TokenId>>, ApiError> {
    let mut sequences = Vec::new();
    for word in words {
        let tokenizer = model.require_tokenizer("bad_words")?;
        let spellings = tokenizer.spellings(word);
        sequences.extend(spellings.map_err(|error| ApiError::text("bad_words", &error))?);
    }
    Ok(sequences)
}
