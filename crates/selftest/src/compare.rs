//! What is read back from a device, and how far two such things are apart.

use half::{bf16, f16};
use paceline_types::DType;
use std::fmt;

/// How far a device may be from the reference.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Limit {
    /// Not at all: the same bits.
    #[default]
    Exact,
    /// The largest difference, relative to the expected value or to the root mean square of all of them, whichever is
    /// larger.
    Within(f64),
    /// The largest norm of a row's difference, relative to the norm of the row that is expected. Of a row that was
    /// rounded on the way this says more than its single elements do.
    Rows {
        /// Elements of a row.
        columns: usize,
        /// How far a row may be off.
        tolerance: f64,
    },
}

impl Limit {
    /// The largest error that it lets pass.
    pub fn tolerance(self) -> f64 {
        match self {
            Self::Exact => 0.0,
            Self::Within(tolerance) | Self::Rows { tolerance, .. } => tolerance,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact => f.write_str("exact"),
            Self::Within(tolerance) | Self::Rows { tolerance, .. } => write!(f, "{tolerance:.1e}"),
        }
    }
}

/// Something that a case has read back.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    pub(crate) what: String,
    pub(crate) values: Values,
    pub(crate) limit: Limit,
}

#[derive(Clone, Debug)]
pub(crate) enum Values {
    Words(Vec<i32>),
    Numbers(Vec<f32>),
}

impl Output {
    pub(crate) fn words(what: impl Into<String>, words: Vec<i32>) -> Self {
        Self {
            what: what.into(),
            values: Values::Words(words),
            limit: Limit::Exact,
        }
    }

    pub(crate) fn numbers(what: impl Into<String>, numbers: Vec<f32>, limit: Limit) -> Self {
        Self {
            what: what.into(),
            values: Values::Numbers(numbers),
            limit,
        }
    }

    /// The same, held to the last bit.
    pub(crate) fn exact(mut self) -> Self {
        self.limit = Limit::Exact;
        self
    }
}

/// A number as an element of a type.
pub(crate) fn rounded(number: f32, dtype: DType) -> f32 {
    match dtype {
        DType::BF16 => bf16::from_f32(number).to_f32(),
        DType::F16 => f16::from_f32(number).to_f32(),
        _ => number,
    }
}

/// How large the step between two neighbouring numbers of a type is, relative to them.
pub(crate) fn grain(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 1.0 / 128.0,
        DType::F16 => 1.0 / 1024.0,
        _ => f64::from(f32::EPSILON),
    }
}

/// The largest error, or what is wrong with the first element that is further away than its limit. An exact number may
/// have been rounded to `stored`, which is how the device keeps what layers pass on.
pub(crate) fn difference(found: &Output, expected: &Output, stored: DType) -> Result<f64, String> {
    let what = &expected.what;
    match (&found.values, &expected.values) {
        (Values::Words(found), Values::Words(expected)) => {
            first_miss(what, found, expected, |a, b| a == b).map(|()| 0.0)
        }
        (Values::Numbers(found), Values::Numbers(expected_numbers)) => match expected.limit {
            Limit::Exact => {
                let same = |a: &f32, b: &f32| {
                    a.to_bits() == b.to_bits() || a.to_bits() == rounded(*b, stored).to_bits()
                };
                first_miss(what, found, expected_numbers, same).map(|()| 0.0)
            }
            Limit::Within(tolerance) => {
                let scale = root_mean_square(expected_numbers);
                let error = |a: &f32, b: &f32| relative_error(*a, *b, scale);
                first_miss(what, found, expected_numbers, |a, b| error(a, b) <= tolerance)?;
                let errors = found.iter().zip(expected_numbers).map(|(a, b)| error(a, b));
                Ok(errors.fold(0.0, f64::max))
            }
            Limit::Rows { columns, tolerance } => {
                row_errors(what, (found, expected_numbers), columns, tolerance)
            }
        },
        _ => Err(format!("{what} is of another kind")),
    }
}

/// The largest error of a row, or the first row whose error is larger than `tolerance`.
fn row_errors(
    what: &str,
    (found, expected): (&[f32], &[f32]),
    columns: usize,
    tolerance: f64,
) -> Result<f64, String> {
    if found.len() != expected.len() {
        let (found, expected) = (found.len(), expected.len());
        return Err(format!("{what} has {found} elements, not {expected}"));
    }
    let mut worst = 0.0;
    let rows = found.chunks(columns.max(1)).zip(expected.chunks(columns.max(1)));
    for (row, (found, expected)) in rows.enumerate() {
        let difference: Vec<f32> = found.iter().zip(expected).map(|(a, b)| a - b).collect();
        let error = relative_error_of_norms(&difference, expected);
        if error > tolerance {
            let furthest = difference
                .iter()
                .map(|x| if x.is_nan() { f32::INFINITY } else { x.abs() });
            let column = furthest
                .enumerate()
                .max_by(|a, b| a.1.total_cmp(&b.1))
                .map_or(0, |(column, _)| column);
            let (found, expected) = (found[column], expected[column]);
            let index = row * columns + column;
            return Err(format!(
                "{what}[{index}] is {found}, not {expected}; row {row} is off by {error:.1e} of its norm"
            ));
        }
        worst = f64::max(worst, error);
    }
    Ok(worst)
}

fn relative_error_of_norms(difference: &[f32], expected: &[f32]) -> f64 {
    let (difference, expected) = (root_mean_square(difference), root_mean_square(expected));
    if difference == 0.0 {
        return 0.0;
    }
    let error = difference / expected;
    if error.is_nan() { f64::INFINITY } else { error }
}

fn relative_error(found: f32, expected: f32, scale: f64) -> f64 {
    if found.to_bits() == expected.to_bits() {
        return 0.0;
    }
    let (found, expected) = (f64::from(found), f64::from(expected));
    let error = (found - expected).abs() / expected.abs().max(scale);
    // Also where there is nothing to measure by: a number that is not finite, or zeros alone.
    if error.is_nan() { f64::INFINITY } else { error }
}

fn root_mean_square(numbers: &[f32]) -> f64 {
    let sum: f64 = numbers.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    (sum / numbers.len().max(1) as f64).sqrt()
}

fn first_miss<T: fmt::Display>(
    what: &str,
    found: &[T],
    expected: &[T],
    same: impl Fn(&T, &T) -> bool,
) -> Result<(), String> {
    let miss = found.iter().zip(expected).position(|(a, b)| !same(a, b));
    if let Some(index) = miss {
        let (found, expected) = (&found[index], &expected[index]);
        return Err(format!("{what}[{index}] is {found}, not {expected}"));
    }
    if found.len() == expected.len() {
        Ok(())
    } else {
        let (found, expected) = (found.len(), expected.len());
        Err(format!("{what} has {found} elements, not {expected}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(found: &[f32], expected: &[f32], limit: Limit, stored: DType) -> Result<f64, String> {
        let output = |numbers: &[f32]| Output::numbers("x", numbers.to_vec(), limit);
        difference(&output(found), &output(expected), stored)
    }

    #[test]
    fn the_first_difference_is_named_with_both_values() {
        let exact = |found: &[f32]| compare(found, &[1.0, 2.0, 3.0], Limit::Exact, DType::F32);
        assert_eq!(exact(&[1.0, 2.0, 3.0]), Ok(0.0));
        assert_eq!(exact(&[1.0, 2.5, 4.0]), Err("x[1] is 2.5, not 2".to_owned()));
        assert_eq!(exact(&[1.0, 2.0]), Err("x has 2 elements, not 3".to_owned()));
        assert!(exact(&[1.0, f32::NAN, 3.0]).is_err());
    }

    #[test]
    fn errors_are_relative_to_what_is_expected_or_to_the_rest_of_it() {
        let near = |found: &[f32]| compare(found, &[1.0, 0.0, 1.0, 0.0], Limit::Within(0.1), DType::F32);
        let error = near(&[1.0, 0.05, 1.0, 0.0]).unwrap();
        assert!((0.06..0.08).contains(&error), "{error}");
        assert!(near(&[1.0, 0.0, 1.2, 0.0]).is_err());
        assert!(near(&[1.0, f32::NAN, 1.0, 0.0]).is_err());
        assert!(near(&[f32::INFINITY, 0.0, 1.0, 0.0]).is_err());
    }

    #[test]
    fn rows_are_measured_by_their_norms() {
        let limit = Limit::Rows {
            columns: 2,
            tolerance: 0.1,
        };
        let near = |found: &[f32]| compare(found, &[3.0, 4.0, 0.3, 0.4], limit, DType::F32);
        assert!((near(&[3.0, 4.2, 0.3, 0.4]).unwrap() - 0.04).abs() < 1e-6);
        let missed = near(&[3.0, 4.0, 0.3, 0.5]).unwrap_err();
        assert_eq!(missed, "x[3] is 0.5, not 0.4; row 1 is off by 2.0e-1 of its norm");
        assert!(near(&[3.0, f32::NAN, 0.3, 0.4]).is_err());
        assert!(near(&[3.0, 4.0]).is_err());
    }

    #[test]
    fn exact_numbers_may_be_rounded_to_what_the_device_stores() {
        let third = 1.0 / 3.0;
        let short = rounded(third, DType::BF16);
        assert!(compare(&[short], &[third], Limit::Exact, DType::BF16).is_ok());
        assert!(compare(&[short], &[third], Limit::Exact, DType::F32).is_err());
        assert!(compare(&[rounded(third, DType::F16)], &[third], Limit::Exact, DType::BF16).is_err());
    }
}
