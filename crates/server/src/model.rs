//! The model as clients see it.

use crate::error::{ApiError, ErrorKind};
use paceline::SamplingDefaults;
use paceline_text::{ChatInput, ChatTemplate, Detokenizer, ReasoningFormat, Tokenizer, ToolFormat};
use paceline_types::TokenId;
use std::fmt;

/// A model on offer: its names, its text side and its limits.
pub struct ServedModel {
    /// Names that requests may use; the first is the one in replies.
    pub names: Vec<String>,
    /// What it was loaded from, for people.
    pub source: String,
    /// What it is, for clients that show it.
    pub details: ModelDetails,
    /// Absent for models that work on token ids alone.
    pub tokenizer: Option<Tokenizer>,
    /// Absent for models that do not chat.
    pub template: Option<ChatTemplate>,
    /// What requests get where they say nothing.
    pub defaults: SamplingDefaults,
    /// What the page asks for where its reader does not say.
    pub page_defaults: SamplingDefaults,
    /// Longest sequence, prompt included.
    pub max_model_len: usize,
    /// How it writes tool calls, if it does; without it they are text.
    pub tool_format: Option<ToolFormat>,
    /// How it marks its reasoning, if it does; without it that is text.
    pub reasoning_format: Option<ReasoningFormat>,
    /// When it was loaded, in seconds since 1970.
    pub created: u64,
}

/// What a model is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelDetails {
    /// How its files are written: `gguf`, `safetensors`.
    pub format: &'static str,
    /// The family it belongs to: `llama`.
    pub architecture: &'static str,
    /// How many numbers it has learnt.
    pub parameters: u64,
    /// What its file says of their types, or else the type that most of them have: `Q4_K_M`, `BF16`.
    pub weights: String,
}

impl ServedModel {
    /// Its first name.
    pub fn name(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }

    /// Checks the name in a request; none means this model. The result is the name for the reply.
    pub fn named(&self, name: Option<&str>) -> Result<String, ApiError> {
        let Some(name) = name else {
            return Ok(self.name().to_owned());
        };
        if self.names.iter().any(|known| known == name) {
            return Ok(name.to_owned());
        }
        let names = self.names.join("`, `");
        let shown: String = name.chars().take(200).collect();
        Err(ApiError {
            param: Some("model".to_owned()),
            code: Some("model_not_found"),
            ..ApiError::new(
                ErrorKind::NotFound,
                format!("the model `{shown}` does not exist; this server has `{names}`"),
            )
        })
    }

    /// The tokenizer; without one, `param` cannot be served.
    pub fn require_tokenizer(&self, param: &str) -> Result<&Tokenizer, ApiError> {
        self.tokenizer.as_ref().ok_or_else(|| {
            let message = format!("`{param}`: the model has no tokenizer; give token ids");
            ApiError::field(param, message)
        })
    }

    /// The text of a conversation, as the model was trained on it, or by the request's own template.
    pub fn render(&self, input: &ChatInput, own: Option<&str>) -> Result<String, ApiError> {
        let given = own.map(|source| ChatTemplate::replacing(self.template.as_ref(), source));
        let given = given.transpose();
        let given = given.map_err(|error| ApiError::text("chat_template", &error))?;
        let Some(template) = given.as_ref().or(self.template.as_ref()) else {
            let message =
                "`messages`: the model has no chat template; use /v1/completions or --chat-template";
            return Err(ApiError::field("messages", message));
        };
        let param = if given.is_some() {
            "chat_template"
        } else {
            "messages"
        };
        template
            .render(input)
            .map_err(|error| ApiError::text(param, &error))
    }

    /// The text of tokens; those that the tokenizer does not know have none.
    pub fn decode(&self, tokens: &[TokenId], skip_special: bool) -> String {
        let Some(tokenizer) = &self.tokenizer else {
            return String::new();
        };
        let mut detokenizer = Detokenizer::new(tokenizer, skip_special);
        let mut text = String::new();
        for token in tokens {
            text.push_str(&detokenizer.push(*token).unwrap_or_default());
        }
        text.push_str(&detokenizer.finish());
        text
    }

    /// The bytes of one token; none where the tokenizer does not know it.
    pub fn token_bytes(&self, token: TokenId) -> &[u8] {
        let tokenizer = self.tokenizer.as_ref();
        tokenizer
            .and_then(|tokenizer| tokenizer.token_bytes(token).ok())
            .unwrap_or_default()
    }

    /// One token's own text; one that is part of a character shows a replacement.
    pub fn token_text(&self, token: TokenId) -> String {
        String::from_utf8_lossy(self.token_bytes(token)).into_owned()
    }
}

impl fmt::Debug for ServedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedModel")
            .field("names", &self.names)
            .field("max_model_len", &self.max_model_len)
            .finish_non_exhaustive()
    }
}
