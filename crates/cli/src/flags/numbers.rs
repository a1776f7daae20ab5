//! Bounds of the numbers that flags take; those of requests' options are in the engine's table of them.

use paceline::RequestOption;
use paceline_device::{NgramIndex, Recorder};
use paceline_types::{MAX_DRAFTS, TokenId};
use std::str::FromStr;

/// Most tokens of an n-gram that can be looked up.
pub(crate) const NGRAM_LONGEST: usize = NgramIndex::<Recorder>::LONGEST;

/// A temperature, within the bounds of that of requests.
pub(crate) fn temperature(value: f32) -> Result<f32, String> {
    match RequestOption::named("temperature") {
        Some(option) => super::sampling::within(option, &value.into()).map(|()| value),
        None => Ok(value),
    }
}

/// A count of at least one.
pub(crate) fn at_least_one(value: usize) -> Result<usize, String> {
    bounded(value, value > 0, "at least 1")
}

/// Threads to compute on.
pub(crate) fn threads(value: usize) -> Result<usize, String> {
    within(value, 1, 1024)
}

/// Requests that run at a time.
pub(crate) fn max_num_seqs(value: usize) -> Result<usize, String> {
    within(value, 1, 4096)
}

/// Tokens of a step.
pub(crate) fn max_num_batched_tokens(value: usize) -> Result<usize, String> {
    within(value, 1, 1 << 16)
}

/// Tokens of a sequence: one to continue and one to generate.
pub(crate) fn max_model_len(value: usize) -> Result<usize, String> {
    bounded(value, value >= 2, "at least 2")
}

/// Tokens of a block.
pub(crate) fn block_size(value: usize) -> Result<usize, String> {
    within(value, 1, 1024)
}

/// Steps in flight.
pub(crate) fn pipeline_depth(value: usize) -> Result<usize, String> {
    within(value, 1, 4)
}

/// Drafts verified per request and step.
pub(crate) fn draft_tokens(value: usize) -> Result<usize, String> {
    within(value, 0, MAX_DRAFTS)
}

/// Tokens of an n-gram.
pub(crate) fn ngram_length(value: usize) -> Result<usize, String> {
    within(value, 1, NGRAM_LONGEST)
}

/// A share that is not nothing.
pub(crate) fn share(value: f64) -> Result<f64, String> {
    bounded(value, value > 0.0 && value <= 1.0, "above 0 and at most 1")
}

/// A difference for one token.
pub(crate) fn bias(value: f32) -> Result<f32, String> {
    bounded(value, value.is_finite(), "a number")
}

/// Requests per second.
pub(crate) fn rate(value: f64) -> Result<f64, String> {
    bounded(value, value.is_finite() && value > 0.0, "a number above 0")
}

/// Requests per second, or all at once.
pub(crate) fn rate_or_infinity(value: f64) -> Result<f64, String> {
    bounded(value, value > 0.0, "a number above 0, or inf")
}

/// A time: at most a year, so that sums of times stay in bounds.
pub(crate) fn seconds(value: f64) -> Result<f64, String> {
    bounded(
        value,
        value > 0.0 && value <= 31_536_000.0,
        "above 0 and at most a year",
    )
}

fn within(value: usize, low: usize, high: usize) -> Result<usize, String> {
    bounded(
        value,
        (low..=high).contains(&value),
        &format!("from {low} to {high}"),
    )
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

/// The same for a number of tokens, which may end in `k`, `K`, `m` or `M`: thousands, 1024s, and so on.
pub(super) fn counted(
    check: fn(usize) -> Result<usize, String>,
) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| count(text).and_then(check)
}

fn count(text: &str) -> Result<usize, String> {
    let unit = match text.chars().last() {
        Some('k') => 1_000,
        Some('K') => 1 << 10,
        Some('m') => 1_000_000,
        Some('M') => 1 << 20,
        _ => 1,
    };
    let digits = if unit == 1 { text } else { &text[..text.len() - 1] };
    let number = digits.parse::<usize>().ok();
    let number = number.and_then(|number| number.checked_mul(unit));
    number.ok_or_else(|| format!("`{text}` is not a number of tokens such as 4096 or 4k"))
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

/// A bias as typed: `ID:BIAS`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TokenBias(pub(crate) TokenId, pub(crate) f32);

impl FromStr for TokenBias {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || format!("`{text}` is not a token id and a number; a bias looks like 42:-1.5");
        let (id, value) = text.split_once(':').ok_or_else(malformed)?;
        let id = id.trim().parse().map_err(|_| malformed())?;
        let value = value.trim().parse().map_err(|_| malformed())?;
        Ok(Self(id, bias(value)?))
    }
}

/// A number of bytes as typed: `68719476736`, `64G` or `64GiB` (powers of 1024).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteSize(pub(crate) u64);

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || format!("`{text}` is not a size; sizes look like 64G, 1.5T or 68719476736");
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = text[digits.len()..].to_ascii_lowercase();
        let power = match unit
            .strip_suffix("ib")
            .or(unit.strip_suffix('b'))
            .unwrap_or(&unit)
        {
            "" => 0,
            "k" => 1,
            "m" => 2,
            "g" => 3,
            "t" => 4,
            _ => return Err(malformed()),
        };
        let value: f64 = digits.trim().parse().map_err(|_| malformed())?;
        let bytes = value * 1024_f64.powi(power);
        if bytes >= 1.0 && bytes < u64::MAX as f64 {
            Ok(Self(bytes as u64))
        } else {
            Err(malformed())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_counted_in_thousands_and_in_1024s() {
        let parse = counted(max_model_len);
        for (text, tokens) in [
            ("4096", 4096),
            ("4k", 4000),
            ("4K", 4096),
            ("1m", 1_000_000),
            ("1M", 1 << 20),
        ] {
            assert_eq!(parse(text), Ok(tokens));
        }
        for text in [
            "",
            "k",
            "4kk",
            "-1k",
            "4.5k",
            "99999999999999999999",
            "99999999999999M",
            "ß",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse("1").is_err_and(|message| message.contains("at least 2")));
    }

    #[test]
    fn ids_are_separated_by_commas() {
        assert_eq!("1, 2,3".parse(), Ok(TokenIds(vec![1, 2, 3])));
        assert!("".parse::<TokenIds>().is_err());
        assert!("1,,2".parse::<TokenIds>().unwrap_err().contains("not a token id"));
        assert!("1,-2".parse::<TokenIds>().unwrap_err().contains("`-2`"));
    }

    #[test]
    fn numbers_outside_their_bounds_are_refused_with_the_bound() {
        assert!(share(0.0).is_err() && share(1.0).is_ok());
        assert!(block_size(1025).unwrap_err().contains("1024"));
        assert!(at_least_one(0).is_err());
    }

    #[test]
    fn a_bias_is_a_token_and_a_number() {
        assert_eq!("42:-1.5".parse(), Ok(TokenBias(42, -1.5)));
        for text in ["42", "42:", ":1", "x:1", "1:NaN", "1:inf", "-1:2"] {
            assert!(text.parse::<TokenBias>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_have_units_of_1024() {
        assert_eq!("1000".parse(), Ok(ByteSize(1000)));
        assert_eq!("64G".parse(), Ok(ByteSize(64 << 30)));
        assert_eq!("1.5 TiB".parse(), Ok(ByteSize(3 << 39)));
        assert_eq!("2mb".parse(), Ok(ByteSize(2 << 20)));
        for text in ["", "G", "x", "0", "-1", "1X", "1e40"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }
}
