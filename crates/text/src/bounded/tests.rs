//! Patterns of hostile tokenizers.

use serde_json::json;

use super::*;

fn pattern(pattern: &str) -> std::result::Result<BoundedPattern, String> {
    BoundedPattern::new(&json!({ "Regex": pattern }))
}

fn found(regex: &str, text: &str) -> Vec<(Offsets, bool)> {
    (&pattern(regex).unwrap()).find_matches(text).unwrap()
}

#[test]
fn matches_are_those_of_the_library() {
    let patterns = [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"(?=(\d{3})+(?!\d))",
        r"\p{L}+|\d",
        r"\s+(?!\S)",
        r"x*",
        r"(?<=\d)é",
    ];
    let texts = [
        "",
        "Hello,  world's 12345678é\n\n  \t end  ",
        "1234é5é  xx",
        "   ",
        "ééé",
    ];
    for regex in patterns {
        for text in texts {
            let library = tokenizers::utils::SysRegex::new(regex).unwrap();
            assert_eq!(
                found(regex, text),
                (&library).find_matches(text).unwrap(),
                "{regex} {text:?}"
            );
        }
    }
}

#[test]
fn patterns_that_can_take_forever_are_refused() {
    for bad in [
        r"(?:(?!.*b)a)+",
        r"(a+)\1",
        r"(?:(?=a*)a){0,1000}",
        &"a".repeat(MAX_PATTERN + 1),
    ] {
        assert!(pattern(bad).is_err(), "{bad}");
    }
}

#[test]
fn going_back_too_often_is_an_error_and_not_another_split() {
    let hostile = pattern(r"(?:a|a)+(?!c)b").unwrap();
    assert!((&hostile).find_matches(&"a".repeat(50)).is_err());
}

#[test]
fn the_time_is_looked_at_between_matches_and_pieces() {
    let letters = pattern(r"[^b]*b|a").unwrap();
    let encode = || (&letters).find_matches("aaaa").map(|found| found.len());
    let past = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
    assert!(until(past, encode).is_err());
    assert_eq!(
        until(Instant::now() + Duration::from_hours(1), encode).unwrap(),
        4
    );
}
