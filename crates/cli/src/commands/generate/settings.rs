//! Settings in the order in which they count: a line of a file, then the flags, then the defaults.

use crate::model::LoadedModel;
use anyhow::Result;
use paceline::{Options, Request, RequestSpeculation};
use paceline_text::DecodeOptions;

/// What was asked for; what is not set is left to the next in line.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Settings {
    /// Options of the request.
    pub(crate) options: Options,
    pub(crate) chat: Option<bool>,
    pub(crate) echo: Option<bool>,
    pub(crate) speculation: Option<RequestSpeculation>,
}

impl Settings {
    /// These, and where they are silent the others.
    pub(crate) fn or(self, others: &Self) -> Self {
        Self {
            options: self.options.or(&others.options),
            chat: self.chat.or(others.chat),
            echo: self.echo.or(others.echo),
            speculation: self.speculation.or(others.speculation),
        }
    }

    /// A request without a prompt and how its tokens become text. What is not set is the default, and the
    /// seed and the greatest length those of `neutral`.
    pub(crate) fn request(
        &self,
        model: &LoadedModel,
        mut neutral: Request,
        continues: bool,
    ) -> Result<(Request, DecodeOptions)> {
        let options = self.options.clone().or(model.defaults().options());
        options.apply(&mut neutral);
        for word in options.texts("bad_words") {
            let tokenizer = model.require_tokenizer("bad words")?;
            neutral
                .sampling_mut()
                .bad_words
                .extend(tokenizer.spellings(word)?);
        }
        let stop = options.texts("stop");
        if !stop.is_empty() {
            model.require_tokenizer("stop strings")?;
        }
        let decoding = DecodeOptions {
            stop: stop.into(),
            continues,
            min_tokens: neutral.sampling.min_tokens,
            ..DecodeOptions::default()
        };
        neutral.speculation = self.speculation.unwrap_or_default();
        Ok((neutral, decoding))
    }
}
