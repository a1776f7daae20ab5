//! How far apart two ways of running a model are: the distributions of the next token at every position of a text.

use crate::Results;
use crate::error::BenchError;
use crate::format::{Facts, grouped};
use crate::load::percentile;
use crate::progress::{Progress, Unit};
use crate::subject::SubjectError;
use paceline_types::TokenId;
use serde::Serialize;
use std::io::{self, Write};

/// A model that runs over a given text.
pub trait ForcedModel {
    /// Name in the results.
    fn name(&self) -> String;

    /// Tokens there are.
    fn vocabulary(&self) -> usize;

    /// Logits behind every token of a text, position by position.
    fn logits(&mut self, text: &[TokenId]) -> Result<Vec<f32>, SubjectError>;
}

/// What came of it. Divergences are in nats, of the model from the reference.
#[derive(Debug, Serialize)]
pub struct Quality {
    model: String,
    reference: String,
    tokens: usize,
    window: usize,
    kl_mean: f64,
    kl_p99: f64,
    kl_max: f64,
    /// Share of the positions at which both prefer the same token.
    same_top: f64,
    perplexity: f64,
    reference_perplexity: f64,
}

/// Compares a model with a reference over a text, which is cut into windows that know nothing of each other.
pub fn run(
    (model, reference): (&mut dyn ForcedModel, &mut dyn ForcedModel),
    text: &[TokenId],
    window: usize,
    progress: &dyn Progress,
) -> Result<Quality, BenchError> {
    let vocabulary = model.vocabulary();
    if vocabulary != reference.vocabulary() {
        let problem = format!(
            "it has {} tokens, {} has {vocabulary}: they cannot be compared",
            reference.vocabulary(),
            model.name()
        );
        return Err(BenchError::input(&reference.name(), &problem));
    }
    let windows = text.chunks(window);
    let bar = progress.bar(windows.len() as u64, Unit::Tasks);
    let mut sums = Sums::default();
    for tokens in windows {
        let (found, expected) = (model.logits(tokens)?, reference.logits(tokens)?);
        let rows = found.chunks(vocabulary).zip(expected.chunks(vocabulary));
        for (position, (found, expected)) in rows.enumerate() {
            sums.add(found, expected, tokens.get(position + 1).copied());
        }
        bar.advance(1);
    }
    Ok(sums.quality((model.name(), reference.name()), window))
}

#[derive(Default)]
struct Sums {
    divergences: Vec<f64>,
    same_top: usize,
    /// Negated log-probabilities of the tokens that follow in the text.
    surprise: f64,
    reference_surprise: f64,
    followed: usize,
}

impl Sums {
    /// A position: logits of both, and the token that follows in the text.
    fn add(&mut self, found: &[f32], expected: &[f32], next: Option<TokenId>) {
        let (found_total, expected_total) = (log_sum(found), log_sum(expected));
        let divergence = found.iter().zip(expected).map(|(found, expected)| {
            let (found, expected) = (
                f64::from(*found) - found_total,
                f64::from(*expected) - expected_total,
            );
            expected.exp() * (expected - found)
        });
        // What is left of the sum's rounding is no divergence.
        self.divergences.push(divergence.sum::<f64>().max(0.0));
        self.same_top += usize::from(top(found) == top(expected));
        if let Some(next) = next {
            let next = next as usize;
            self.surprise += found_total - f64::from(found[next]);
            self.reference_surprise += expected_total - f64::from(expected[next]);
            self.followed += 1;
        }
    }

    fn quality(mut self, (model, reference): (String, String), window: usize) -> Quality {
        let tokens = self.divergences.len();
        let per_token = |sum: f64| (sum / self.followed.max(1) as f64).exp();
        let (perplexity, reference_perplexity) =
            (per_token(self.surprise), per_token(self.reference_surprise));
        Quality {
            model,
            reference,
            tokens,
            window,
            kl_mean: self.divergences.iter().sum::<f64>() / tokens.max(1) as f64,
            kl_p99: percentile(&mut self.divergences, 0.99),
            kl_max: percentile(&mut self.divergences, 1.0),
            same_top: self.same_top as f64 / tokens.max(1) as f64,
            perplexity,
            reference_perplexity,
        }
    }
}

/// The logarithm of the sum of exponentials.
fn log_sum(logits: &[f32]) -> f64 {
    let most = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - most).exp()).sum();
    most + sum.ln()
}

/// The first of the likeliest tokens.
fn top(logits: &[f32]) -> usize {
    let best = (0..logits.len())
        .rev()
        .max_by(|one, other| logits[*one].total_cmp(&logits[*other]));
    best.unwrap_or(0)
}

impl Results for Quality {
    fn write(&self, mut out: &mut dyn Write) -> io::Result<()> {
        let mut facts = Facts::default();
        facts.add("model", self.model.as_str());
        facts.add("reference", self.reference.as_str());
        let (tokens, window) = (grouped(self.tokens as u64), self.window);
        facts.add("text", format!("{tokens} tokens, in windows of {window}"));
        let (mean, p99, max) = (self.kl_mean, self.kl_p99, self.kl_max);
        facts.add(
            "KL divergence",
            format!("mean {mean:.3e}, p99 {p99:.3e}, most {max:.3e} nats"),
        );
        facts.add("same first choice", format!("{:.3} %", 100.0 * self.same_top));
        let (own, reference) = (self.perplexity, self.reference_perplexity);
        facts.add("perplexity", format!("{own:.4}, the reference's {reference:.4}"));
        facts.write(&mut out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Silent;

    /// Says the same behind every token, whatever it is.
    struct Stubborn(Vec<f32>);

    impl ForcedModel for Stubborn {
        fn name(&self) -> String {
            "stubborn".to_owned()
        }
        fn vocabulary(&self) -> usize {
            self.0.len()
        }
        fn logits(&mut self, text: &[TokenId]) -> Result<Vec<f32>, SubjectError> {
            Ok(self.0.repeat(text.len()))
        }
    }

    fn compared(model: &[f32], reference: &[f32]) -> Quality {
        let (mut model, mut reference) = (Stubborn(model.to_vec()), Stubborn(reference.to_vec()));
        run((&mut model, &mut reference), &[0, 1, 0, 1, 0], 2, &Silent).unwrap()
    }

    #[test]
    fn equal_logits_do_not_diverge() {
        let quality = compared(&[3.0, -1.0, 0.5], &[3.0, -1.0, 0.5]);
        assert_eq!((quality.tokens, quality.kl_mean, quality.kl_max), (5, 0.0, 0.0));
        let exact = (quality.same_top, quality.perplexity);
        assert_eq!(exact, (1.0, quality.reference_perplexity));
    }

    #[test]
    fn the_divergence_is_of_the_reference_from_the_model() {
        // Three quarters and one quarter, where the reference says one half each.
        let quality = compared(&[3.0_f32.ln() + 7.0, 7.0], &[-2.0, -2.0]);
        let expected = 0.5 * (0.5_f64 / 0.75).ln() + 0.5 * (0.5_f64 / 0.25).ln();
        assert!((quality.kl_mean - expected).abs() < 1e-6, "{quality:?}");
        assert!((quality.reference_perplexity - 2.0).abs() < 1e-9, "{quality:?}");
        // Token 1 follows token 0 in both whole windows; the last one has nothing behind it.
        assert!((quality.perplexity - 4.0).abs() < 1e-5, "{quality:?}");
    }

    #[test]
    fn other_first_choices_are_counted_and_other_vocabularies_refused() {
        let quality = compared(&[0.0, 1.0], &[1.0, 0.0]);
        assert_eq!((quality.tokens, quality.same_top), (5, 0.0));
        let (mut two, mut three) = (Stubborn(vec![0.0; 2]), Stubborn(vec![0.0; 3]));
        let error = run((&mut two, &mut three), &[0, 1], 2, &Silent).unwrap_err();
        assert!(
            error.to_string().contains("it has 3 tokens, stubborn has 2"),
            "{error}"
        );
    }
}
