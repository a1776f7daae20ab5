//! Comparisons of results.

/// Norm of the difference over the norm of the expected values.
pub fn relative_error(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len(), "lengths differ");
    let square = |x: f64| x * x;
    let difference: f64 = found
        .iter()
        .zip(expected)
        .map(|(a, b)| square(f64::from(*a) - f64::from(*b)))
        .sum();
    let norm: f64 = expected.iter().map(|b| square(f64::from(*b))).sum();
    (difference / norm).sqrt()
}

/// Panics at the first element whose bits differ.
pub fn assert_same_bits(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: lengths differ");
    for (index, (a, b)) in found.iter().zip(expected).enumerate() {
        assert_eq!(
            a.to_bits(),
            b.to_bits(),
            "{what}: element {index} is {a}, expected {b}"
        );
    }
}
