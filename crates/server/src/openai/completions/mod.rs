//! `/v1/completions`: a prompt is continued.

mod reply;
mod stream;

use super::format::FormatFields;
use crate::constraint::Wanted;
use crate::error::ApiError;
use crate::fields::{Fields, Prompt, Prompts};
use crate::generation::{GenerationTask, Resumed, stream};
use crate::identifiers;
use crate::interface::{Interface, Understood};
use crate::preparation::Preparing;
use paceline_types::TokenId;
use reply::Writer;

/// Tokens to generate if the request does not say.
const MAX_TOKENS: usize = 16;

/// `POST /v1/completions`.
pub(crate) struct Completions;

impl Interface for Completions {
    const NAMES: &'static [(&'static str, &'static str)] = &[("generated", "continuation.token_ids")];
    type Writer = Writer;

    fn check(model: &Preparing<'_>, fields: &mut Fields<'_>) -> Result<Understood<Writer>, ApiError> {
        let name = model.named(fields.take::<String>("model")?.as_deref())?;
        fields.refuse("suffix", "the models here continue text and fill no gaps")?;
        let Prompts(prompts) = fields.require("prompt")?;
        let echo = fields.flag("echo")?;
        // Zero tokens after an echo is how a text is scored: nothing is shown of the one that is generated.
        let only_prompt = echo && fields.take_zero("max_tokens");
        let mut task = GenerationTask::take(model, fields, (MAX_TOKENS, &["prompt_logprobs"]))?;
        fields.refuse(
            "prompt_logprobs",
            "use `echo` and `logprobs` for log-probabilities of the prompt",
        )?;
        let sampling = task.request.sampling_mut();
        if only_prompt {
            (sampling.max_tokens, sampling.min_tokens) = (1, 0);
        }
        let logprobs = sampling.logprobs;
        sampling.prompt_logprobs = logprobs.filter(|_| echo);
        task.decoding.continues = true;
        let (stream, stream_options) = stream(fields)?;
        let mut writer = Writer {
            id: identifiers::identifier("cmpl-"),
            model_name: name,
            n: task.n(),
            echo,
            only_prompt,
            logprobs: logprobs.is_some(),
            names_as_ids: fields.flag("return_tokens_as_token_ids")?,
            token_ids: fields.flag("return_token_ids")?,
            origins: task.take_origins(fields)?,
            stream_options,
            model: model.shared(),
            created: identifiers::unix_time(),
            prompts: Vec::new(),
            prompt_tokens: 0,
            resumed: Resumed::default(),
        };
        let special = fields.take("add_special_tokens")?.unwrap_or(true);
        let form = FormatFields::take(fields)?.form()?;
        for (index, prompt) in prompts.into_iter().enumerate() {
            let (tokens, text) =
                understand(model, index, prompt, (special, echo && task.truncate.is_none()))?;
            let tokens = task.add_prompt(tokens);
            let text = match task.truncate {
                Some(_) if echo => model.decode(&tokens, false),
                _ => text,
            };
            writer.add_prompt(tokens, text);
        }
        writer.resumed = task.take_continuation(model, fields)?;
        Ok(Understood {
            task,
            wanted: form.map(Wanted::from),
            writer,
            stream,
        })
    }
}

/// Tokens of a prompt and its text, the latter if it is to be echoed.
fn understand(
    model: &Preparing<'_>,
    index: usize,
    prompt: Prompt,
    (special, echo): (bool, bool),
) -> Result<(Vec<TokenId>, String), ApiError> {
    let (tokens, text) = match prompt {
        Prompt::Text(text) => (model.encode("prompt", &text, special)?, text),
        Prompt::Tokens(tokens) => {
            let text = if echo {
                model.decode(&tokens, false)
            } else {
                String::new()
            };
            (tokens, text)
        }
    };
    if tokens.is_empty() {
        let message = format!("`prompt`: number {index} has no tokens; it must have at least one");
        return Err(ApiError::field("prompt", message));
    }
    Ok((tokens, text))
}
