//! `/v1/completions`: a prompt is continued.

mod reply;
mod stream;

use super::fields::{Prompt, Prompts};
use super::format::FormatFields;
use super::sampling::SamplingFields;
use crate::app::{App, Caller, Checked};
use crate::body::Body;
use crate::constraint::Wanted;
use crate::error::ApiError;
use crate::generation;
use crate::preparation::Preparing;
use crate::{identifiers, sse};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use paceline_types::TokenId;
use reply::Writer;
use serde::Deserialize;

/// Tokens to generate if the request does not say.
const MAX_TOKENS: usize = 16;

/// The fields that only this endpoint has.
#[derive(Debug, Deserialize)]
struct Fields {
    model: Option<String>,
    prompt: Option<Prompts>,
    echo: Option<bool>,
    logprobs: Option<usize>,
    suffix: Option<String>,
    add_special_tokens: Option<bool>,
}

/// `POST /v1/completions`.
pub(crate) async fn create(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Response, ApiError> {
    let shared = app.model.clone();
    let check = move |model: &Preparing<'_>, body: &Body| check(model, body, Writer::new(shared));
    let admitted = app.admit(&caller, body, check).await?;
    let checked = &admitted.checked;
    let stream = checked.stream;
    let prompts = checked.task.prompts.len();
    let sizes = (prompts, prompts * checked.task.n);
    let (outputs, writer) = app.run(&caller, admitted, &super::NAMES).await?;
    if stream {
        return Ok(sse::reply(outputs, stream::Chunks::new(writer)));
    }
    let collected = generation::collect(outputs, sizes).await;
    let collected = collected.map_err(|failure| failure.error())?;
    Ok(Json(writer.whole(collected)).into_response())
}

fn check(model: &Preparing<'_>, body: &Body, mut writer: Writer) -> Result<Checked<Writer>, ApiError> {
    let fields: Fields = body.read()?;
    let mut shared: SamplingFields = body.read()?;
    let name = model.named(fields.model.as_deref())?;
    if fields.suffix.is_some_and(|suffix| !suffix.is_empty()) {
        let message = "`suffix` is not supported: the models here continue text and fill no gaps";
        return Err(ApiError::field("suffix", message));
    }
    let Some(Prompts(prompts)) = fields.prompt else {
        return Err(ApiError::field("prompt", "`prompt` is missing"));
    };
    let echo = fields.echo.unwrap_or(false);
    // Zero tokens after an echo is how a text is scored: nothing is shown of the one that is generated.
    let only_prompt = echo && shared.max_tokens == Some(0);
    if only_prompt {
        shared.max_tokens = Some(1);
        shared.min_tokens = None;
    }
    let mut task = shared.task(model, MAX_TOKENS)?;
    task.continues = true;
    task.sampling.logprobs = fields.logprobs;
    task.sampling.prompt_logprobs = fields.logprobs.filter(|_| echo);
    let special = fields.add_special_tokens.unwrap_or(true);
    for (index, prompt) in prompts.into_iter().enumerate() {
        let (tokens, text) = understand(model, index, prompt, (special, echo))?;
        writer.add_prompt(&tokens, text);
        task.prompts.push(tokens);
    }
    writer.id = identifiers::identifier("cmpl-");
    writer.model_name = name;
    writer.n = task.n;
    writer.echo = echo;
    writer.only_prompt = only_prompt;
    writer.logprobs = fields.logprobs.is_some();
    writer.token_ids = shared.return_token_ids.unwrap_or(false);
    writer.include_usage = shared.include_usage();
    Ok(Checked {
        task,
        wanted: body.read::<FormatFields>()?.form()?.map(Wanted::from),
        writer,
        stream: shared.streams(),
    })
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
