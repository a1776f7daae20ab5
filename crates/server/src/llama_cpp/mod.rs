//! What people miss most of llama-server: `/completion`, `/props`, `/slots` and `/apply-template`.

mod reply;
mod state;

pub(crate) use state::{apply_template, props, slots};

use crate::constraint::Wanted;
use crate::error::ApiError;
use crate::fields::{Fields, Prompt, Prompts};
use crate::generation::GenerationTask;
use crate::interface::{Interface, Understood};
use crate::openai::FormatFields;
use crate::preparation::Preparing;
use reply::Writer;

/// llama-server's names and those of the table.
const NAMES: &[(&str, &str)] = &[
    ("n_predict", "max_tokens"),
    ("repeat_penalty", "repetition_penalty"),
];

/// What is decided when the server starts, is always so, or does not exist here and is harmless to leave out.
const WITHOUT_EFFECT: &[&str] = &[
    "cache_prompt",
    "id_slot",
    "slot_id",
    "n_keep",
    "n_indent",
    "n_discard",
    "min_keep",
    "repeat_last_n",
    "penalize_nl",
    "typical_p",
    "tfs_z",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "dynatemp_range",
    "dynatemp_exponent",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "xtc_probability",
    "xtc_threshold",
    "samplers",
    "timings_per_token",
    "post_sampling_probs",
    "return_progress",
    "return_tokens",
    "response_fields",
    "t_max_predict_ms",
    "lora",
];

/// `POST /completion`.
pub(crate) struct Completion;

impl Interface for Completion {
    const NAMES: &'static [(&'static str, &'static str)] = &[("max_tokens", "n_predict")];
    type Writer = Writer;

    fn check(model: &Preparing<'_>, fields: &mut Fields<'_>) -> Result<Understood<Writer>, ApiError> {
        let name = model.named(fields.take::<String>("model")?.as_deref())?;
        let Prompts(mut prompts) = fields.require("prompt")?;
        if prompts.len() != 1 {
            let value = format!("a list of {}", prompts.len());
            return Err(ApiError::bound(
                "prompt",
                &value,
                "one text, or the tokens of one",
            ));
        }
        fields.rename(NAMES);
        fields.ignore(WITHOUT_EFFECT);
        // As long as the context lasts, and a seed of our own.
        fields.take_negative("max_tokens");
        fields.take_negative("seed");
        if !fields.take_zero("n_probs") {
            fields.refuse("n_probs", "use /v1/completions with `logprobs`")?;
        }
        let own = &["n", "logprobs", "prompt_logprobs"];
        let mut task =
            GenerationTask::take_or(model, fields, &model.page_defaults, (model.max_model_len, own))?;
        task.decoding.continues = true;
        let form = FormatFields::take(fields)?.form()?;
        let stream = fields.flag("stream")?;
        let tokens = match prompts.remove(0) {
            Prompt::Text(text) => model.encode("prompt", &text, true)?,
            Prompt::Tokens(tokens) => tokens,
        };
        let writer = Writer {
            model: name,
            prompt: task.add_prompt(tokens),
            served: model.shared(),
            max_tokens: task.request.sampling.max_tokens,
        };
        Ok(Understood {
            task,
            wanted: form.map(Wanted::from),
            writer,
            stream,
        })
    }
}
