//! `paceline bench quality`, as users run it.

use crate::common::{expect_failure, repository, succeed};
use serde_json::Value;

fn quality(arguments: &[&str]) -> Value {
    let text = repository("CONTRIBUTING.md");
    let fixed = [
        "bench",
        "quality",
        "--json",
        "--tokens",
        "600",
        "--text",
        text.to_str().unwrap(),
    ];
    serde_json::from_str(&succeed(&[&fixed[..], arguments].concat())).unwrap()
}

/// The built-in model is stored as bf16, whose products are those of f32.
#[test]
fn a_model_does_not_diverge_from_itself() {
    let report = quality(&[]);
    assert_eq!(report["tokens"], 600);
    assert_eq!(
        (report["kl_max"].as_f64(), report["same_top"].as_f64()),
        (Some(0.0), Some(1.0))
    );
    let perplexity = report["perplexity"].as_f64().unwrap();
    assert_eq!(report["reference_perplexity"].as_f64(), Some(perplexity));
    // It knows stories, not English about software; but it is no random guess among its tokens either.
    assert!((2.0..1e5).contains(&perplexity), "{perplexity}");
}

/// A divergence grows with the square of the weights' relative error, which the device's tests bound for either type. This
/// model's is about six times that square with eight bits and four times with four, whose embeddings keep eight.
#[test]
fn quantised_weights_stay_close_to_the_values_they_are_made_of() {
    for (bits, error, same) in [("q8", 0.0055, 0.97), ("q4", 0.0715, 0.85)] {
        let report = quality(&["--quantize", bits]);
        let [divergence, top] = ["kl_mean", "same_top"].map(|figure| report[figure].as_f64().unwrap());
        let bound = 10.0 * error * error;
        assert!(divergence > 0.0 && divergence < bound, "{bits}: {divergence}");
        assert!(top > same, "{bits}: {top}");
    }
}

#[test]
fn what_cannot_be_compared_is_said() {
    let text = repository("CONTRIBUTING.md");
    let text = text.to_str().unwrap();
    let fixture = repository("fixtures/llama");
    let fixture = fixture.to_str().unwrap();
    expect_failure(
        &["bench", "quality", "--text", text, "--reference", fixture],
        &["cannot be compared", "256 tokens"],
    );
    expect_failure(&["bench", "quality", "--text", "/nonexistent"], &["/nonexistent"]);
}
