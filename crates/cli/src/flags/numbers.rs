//! Bounds of the numbers users give, for flags and for lines of a prompts file alike.

use paceline_device::MAX_LOGPROBS;
use paceline_types::TokenId;
use std::str::FromStr;

/// A temperature.
pub(crate) fn temperature(value: f32) -> Result<f32, String> {
    bounded(value, value.is_finite() && value >= 0.0, "a number of at least 0")
}

/// A share of the probability to keep.
pub(crate) fn top_p(value: f32) -> Result<f32, String> {
    bounded(value, value > 0.0 && value <= 1.0, "above 0 and at most 1")
}

/// A share of the best token's probability.
pub(crate) fn min_p(value: f32) -> Result<f32, String> {
    bounded(value, (0.0..=1.0).contains(&value), "from 0 to 1")
}

/// How many alternatives to report.
pub(crate) fn logprobs(value: usize) -> Result<usize, String> {
    bounded(value, value <= MAX_LOGPROBS, &format!("from 0 to {MAX_LOGPROBS}"))
}

/// A count of at least one.
pub(crate) fn at_least_one(value: usize) -> Result<usize, String> {
    bounded(value, value > 0, "at least 1")
}

fn bounded<T: ToString>(value: T, within: bool, bound: &str) -> Result<T, String> {
    if within {
        Ok(value)
    } else {
        Err(format!("{} must be {bound}", value.to_string()))
    }
}

/// A flag's text as a number within bounds.
pub(super) fn parsed<T: FromStr>(
    check: fn(T) -> Result<T, String>,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        text.parse::<T>()
            .map_err(|_| "not a number of the right kind".to_owned())
            .and_then(check)
    }
}

/// Token ids as typed: `1,2,3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenIds(pub(crate) Vec<TokenId>);

impl FromStr for TokenIds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let id = |part: &str| {
            let part = part.trim();
            part.parse::<TokenId>()
                .map_err(|_| format!("`{part}` is not a token id; ids look like 1,2,3"))
        };
        text.split(',').map(id).collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_separated_by_commas() {
        assert_eq!("1, 2,3".parse(), Ok(TokenIds(vec![1, 2, 3])));
        assert!("".parse::<TokenIds>().is_err());
        assert!("1,,2".parse::<TokenIds>().unwrap_err().contains("not a token id"));
        assert!("1,-2".parse::<TokenIds>().unwrap_err().contains("`-2`"));
    }

    #[test]
    fn numbers_outside_their_bounds_are_refused_with_the_bound() {
        assert!(temperature(-0.5).unwrap_err().contains("at least 0"));
        assert!(temperature(f32::NAN).is_err());
        assert!(top_p(0.0).is_err() && top_p(1.0).is_ok());
        assert!(min_p(1.5).is_err() && min_p(0.0).is_ok());
        assert!(logprobs(21).unwrap_err().contains("20"));
        assert!(at_least_one(0).is_err());
    }
}
