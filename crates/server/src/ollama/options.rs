//! The field `options`: the options of the table, some under other names.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::GenerationTask;
use crate::preparation::Preparing;

/// Ollama's names and those of the table.
const NAMES: &[(&str, &str)] = &[
    ("num_predict", "max_tokens"),
    ("repeat_penalty", "repetition_penalty"),
];

/// What is decided when the server starts, or does not exist here and is harmless to leave out.
const WITHOUT_EFFECT: &[&str] = &[
    "num_ctx",
    "num_keep",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "num_thread",
    "numa",
    "use_mmap",
    "use_mlock",
    "low_vram",
    "vocab_only",
    "f16_kv",
    "repeat_last_n",
    "penalize_newline",
    "typical_p",
    "tfs_z",
    "mirostat",
    "mirostat_eta",
    "mirostat_tau",
];

/// A task without prompts. What is not said is as people expect it, which is what Ollama documents.
pub(super) fn task(model: &Preparing<'_>, fields: &mut Fields<'_>) -> Result<GenerationTask, ApiError> {
    let mut options = fields.nested("options")?;
    options.rename(NAMES);
    options.ignore(WITHOUT_EFFECT);
    // As long as the context lasts, and a seed of our own.
    options.take_negative("max_tokens");
    options.take_negative("seed");
    let own = &["n", "logprobs", "prompt_logprobs"];
    let task = GenerationTask::take_or(
        model,
        &mut options,
        &model.page_defaults,
        (model.max_model_len, own),
    )?;
    options.leave(fields.unknown());
    Ok(task)
}
