//! The table.

use super::{NumberBound, OptionKind, RequestOption};
use crate::request::{MAX_CHOICES, MAX_DEADLINE};
use paceline_device::abi::MAX_LOGPROBS;
use std::time::Duration;

/// A number in a field of the sampling parameters, from `low` (or above it) to `high`.
macro_rules! number {
    ($field:ident, $low:expr, $above:expr, $high:expr) => {
        OptionKind::Number {
            bound: NumberBound {
                low: $low,
                above: $above,
                high: $high,
            },
            get: |params| params.$field,
            set: |params, value| params.$field = value,
        }
    };
}

/// Any whole number that a count can be; larger ones mean: as many as there is room for.
const MOST: i128 = u64::MAX as i128;

/// A count, as large as the machine has them.
fn count(value: i128) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// How many alternatives to report, and where.
macro_rules! alternatives {
    ($field:ident) => {
        OptionKind::Integer {
            low: 0,
            high: MAX_LOGPROBS as i128,
            get: |request| request.sampling.$field.map(|count| count as i128),
            set: |request, value| request.sampling_mut().$field = Some(count(value)),
        }
    };
}

const fn option(name: &'static str, help: &'static str, kind: OptionKind) -> RequestOption {
    RequestOption {
        name,
        single: None,
        aliases: &[],
        help,
        kind,
    }
}

/// Every option of a request, in the order in which they are shown.
pub const OPTIONS: &[RequestOption] = &[
    RequestOption {
        aliases: &["max_completion_tokens", "max_output_tokens"],
        ..option(
            "max_tokens",
            "Most tokens to generate",
            OptionKind::Integer {
                low: 1,
                high: MOST,
                get: |request| Some(request.sampling.max_tokens as i128),
                set: |request, value| request.sampling_mut().max_tokens = count(value),
            },
        )
    },
    option(
        "temperature",
        "Randomness; 0 takes the most likely token",
        number!(temperature, 0.0, false, f32::INFINITY),
    ),
    option(
        "top_p",
        "Keep the most likely tokens that together reach this probability",
        number!(top_p, 0.0, true, 1.0),
    ),
    option(
        "top_k",
        "Keep this many of the most likely tokens; 0 or -1 keeps all",
        OptionKind::Integer {
            low: -1,
            high: u32::MAX as i128,
            get: |_| None,
            // -1 is how many clients write "all".
            set: |request, value| request.sampling_mut().top_k = u32::try_from(value).unwrap_or(0),
        },
    ),
    option(
        "min_p",
        "Drop tokens less likely than this share of the most likely one",
        number!(min_p, 0.0, false, 1.0),
    ),
    option(
        "seed",
        "Equal seeds give equal texts",
        OptionKind::Integer {
            low: i64::MIN as i128,
            high: MOST,
            get: |_| None,
            // Negative ones are as good as others.
            set: |request, value| request.sampling_mut().seed = value as u64,
        },
    ),
    option(
        "n",
        "Continuations of every prompt; they share the work on it",
        OptionKind::Integer {
            low: 1,
            high: MAX_CHOICES as i128,
            get: |request| request.n.map(|n| n as i128),
            set: |request, value| request.n = Some(count(value)),
        },
    ),
    option(
        "repetition_penalty",
        "Divide the logits of tokens that occurred, in prompt or text, by this (multiply negative ones)",
        number!(repetition_penalty, 0.0, true, f32::INFINITY),
    ),
    option(
        "presence_penalty",
        "Subtract this from the logits of tokens that occurred in the text",
        number!(presence_penalty, -2.0, false, 2.0),
    ),
    option(
        "frequency_penalty",
        "Subtract this once per occurrence in the text",
        number!(frequency_penalty, -2.0, false, 2.0),
    ),
    option(
        "logit_bias",
        "Add BIAS to the logit of token ID",
        OptionKind::Biases {
            set: |params, biases| params.logit_bias = biases,
        },
    ),
    RequestOption {
        single: Some("bad_word"),
        ..option(
            "bad_words",
            "Text that must not come up, as it is or after a space",
            OptionKind::Texts,
        )
    },
    option(
        "min_tokens",
        "Fewest tokens to generate: no stop token is chosen before",
        OptionKind::Integer {
            low: 0,
            high: MOST,
            get: |_| None,
            set: |request, value| request.sampling_mut().min_tokens = count(value),
        },
    ),
    RequestOption {
        aliases: &["stop_sequences"],
        ..option("stop", "End before this text", OptionKind::Texts)
    },
    RequestOption {
        single: Some("stop_token"),
        ..option(
            "stop_token_ids",
            "End at this token",
            OptionKind::Tokens {
                set: |params, tokens| params.stop_tokens = tokens,
            },
        )
    },
    option(
        "ignore_eos",
        "Go on past the model's end-of-text tokens",
        OptionKind::Flag {
            set: |params, value| params.ignore_eos = value,
        },
    ),
    option(
        "logprobs",
        "Report the log-probability of each token and of the N most likely ones",
        alternatives!(logprobs),
    ),
    option(
        "prompt_logprobs",
        "Report the same for the tokens of the prompt",
        alternatives!(prompt_logprobs),
    ),
    option(
        "priority",
        "Requests of lower priority numbers run first",
        OptionKind::Integer {
            low: i32::MIN as i128,
            high: i32::MAX as i128,
            get: |_| None,
            set: |request, value| request.priority = value as i32,
        },
    ),
    option(
        "deadline_ms",
        "Give a request up after this many milliseconds, finished or not",
        OptionKind::Integer {
            low: 1,
            high: MAX_DEADLINE.as_millis() as i128,
            get: |_| None,
            set: |request, value| request.deadline = Some(Duration::from_millis(value as u64)),
        },
    ),
];
