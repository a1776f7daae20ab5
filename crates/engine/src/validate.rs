//! Checks of what callers ask for, before anything runs.

use crate::EngineError;
use paceline_device::MAX_LOGPROBS;
use paceline_types::{SamplingParams, TokenId};

/// Checks sampling parameters against their bounds.
pub(crate) fn sampling(params: &SamplingParams) -> Result<(), EngineError> {
    let check = |field, ok: bool, value: String, bound: &str| {
        if ok {
            Ok(())
        } else {
            Err(EngineError::Parameter {
                field,
                value,
                bound: bound.to_owned(),
            })
        }
    };
    let SamplingParams {
        temperature,
        top_p,
        min_p,
        max_tokens,
        logprobs,
        ..
    } = params;
    let finite = temperature.is_finite() && *temperature >= 0.0;
    check(
        "temperature",
        finite,
        temperature.to_string(),
        "a number of at least 0",
    )?;
    check(
        "top_p",
        *top_p > 0.0 && *top_p <= 1.0,
        top_p.to_string(),
        "above 0 and at most 1",
    )?;
    check(
        "min_p",
        (0.0..=1.0).contains(min_p),
        min_p.to_string(),
        "within 0..=1",
    )?;
    check(
        "max_tokens",
        *max_tokens > 0,
        max_tokens.to_string(),
        "at least 1",
    )?;
    let count = logprobs.unwrap_or(0);
    check(
        "logprobs",
        count <= MAX_LOGPROBS,
        count.to_string(),
        &format!("at most {MAX_LOGPROBS}"),
    )
}

/// Checks that a prompt can be run and leaves room for a token.
pub(crate) fn prompt(tokens: &[TokenId], vocabulary: usize, context: usize) -> Result<(), EngineError> {
    if tokens.is_empty() {
        return Err(EngineError::EmptyPrompt);
    }
    if tokens.len() >= context {
        return Err(EngineError::PromptTooLong {
            tokens: tokens.len(),
            limit: context,
        });
    }
    match tokens.iter().position(|id| *id as usize >= vocabulary) {
        Some(index) => Err(EngineError::TokenOutsideVocabulary {
            index,
            id: tokens[index],
            last: vocabulary - 1,
        }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_outside_their_bounds_are_named() {
        let base = SamplingParams::default();
        let cases = [
            (
                SamplingParams {
                    temperature: -1.0,
                    ..base.clone()
                },
                "temperature",
            ),
            (
                SamplingParams {
                    temperature: f32::NAN,
                    ..base.clone()
                },
                "temperature",
            ),
            (
                SamplingParams {
                    top_p: 0.0,
                    ..base.clone()
                },
                "top_p",
            ),
            (
                SamplingParams {
                    top_p: 1.5,
                    ..base.clone()
                },
                "top_p",
            ),
            (
                SamplingParams {
                    min_p: -0.1,
                    ..base.clone()
                },
                "min_p",
            ),
            (
                SamplingParams {
                    max_tokens: 0,
                    ..base.clone()
                },
                "max_tokens",
            ),
            (
                SamplingParams {
                    logprobs: Some(21),
                    ..base.clone()
                },
                "logprobs",
            ),
        ];
        for (params, field) in cases {
            let message = sampling(&params).unwrap_err().to_string();
            assert!(message.contains(field), "{message}");
        }
        assert!(sampling(&base).is_ok());
    }

    #[test]
    fn prompts_that_cannot_run_are_refused() {
        assert!(matches!(prompt(&[], 10, 10), Err(EngineError::EmptyPrompt)));
        assert!(matches!(
            prompt(&[1; 10], 10, 10),
            Err(EngineError::PromptTooLong {
                tokens: 10,
                limit: 10
            })
        ));
        let outside = prompt(&[1, 10], 10, 10);
        assert!(matches!(
            outside,
            Err(EngineError::TokenOutsideVocabulary {
                index: 1,
                id: 10,
                last: 9
            })
        ));
        assert!(prompt(&[1; 9], 10, 10).is_ok());
    }
}
