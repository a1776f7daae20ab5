//! Stop strings in streamed text.

/// What became certain by one more piece of text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopOutcome {
    /// Text that belongs to the answer.
    pub text: String,
    /// Which stop string ended the answer; the text ends before it.
    pub matched: Option<usize>,
}

/// Finds the leftmost of several stop strings in text that arrives in pieces.
///
/// Text that may be the start of a stop string is held back. The result does not depend on how the text is cut
/// into pieces. Of stop strings that begin at the same place, the shortest counts.
#[derive(Clone, Debug)]
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
    matched: Option<usize>,
}

impl StopStrings {
    /// Watches for `stops`; empty strings never match.
    pub fn new(stops: Vec<String>) -> Self {
        Self {
            stops,
            held: String::new(),
            matched: None,
        }
    }

    /// Takes the next piece. After a match, everything is dropped and the match is reported again.
    pub fn push(&mut self, piece: &str) -> StopOutcome {
        if self.matched.is_none() {
            self.held.push_str(piece);
        }
        self.scan(false)
    }

    /// What is held back: it may be the start of a stop string.
    pub fn held(&self) -> &str {
        &self.held
    }

    /// Ends the text: what was held back comes out, up to a stop string that begins in it.
    pub fn finish(mut self) -> StopOutcome {
        self.scan(true)
    }

    /// Emits `held` up to the first position where a stop string begins or, unless `at_end`, could begin.
    fn scan(&mut self, at_end: bool) -> StopOutcome {
        let mut keep_from = self.held.len();
        for (position, _) in self.held.char_indices() {
            let rest = &self.held[position..];
            self.matched = self.shortest_prefix_of(rest);
            if self.matched.is_some() || (!at_end && self.may_begin(rest)) {
                keep_from = position;
                break;
            }
        }
        let rest = self.held.split_off(keep_from);
        let text = std::mem::take(&mut self.held);
        if self.matched.is_none() {
            self.held = rest;
        }
        StopOutcome {
            text,
            matched: self.matched,
        }
    }

    fn shortest_prefix_of(&self, text: &str) -> Option<usize> {
        let matching = self.stops.iter().enumerate();
        matching
            .filter(|(_, stop)| !stop.is_empty() && text.starts_with(stop.as_str()))
            .min_by_key(|(_, stop)| stop.len())
            .map(|(index, _)| index)
    }

    fn may_begin(&self, text: &str) -> bool {
        self.stops.iter().any(|stop| stop.starts_with(text))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The specification: look at the whole text.
    fn naive(stops: &[String], text: &str) -> (String, Option<usize>) {
        for position in (0..text.len()).filter(|&position| text.is_char_boundary(position)) {
            let here = stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty());
            let here = here.filter(|(_, stop)| text[position..].starts_with(stop.as_str()));
            if let Some((index, _)) = here.min_by_key(|(_, stop)| stop.len()) {
                return (text[..position].to_owned(), Some(index));
            }
        }
        (text.to_owned(), None)
    }

    fn stream(stops: &[String], pieces: &[String]) -> (String, Option<usize>) {
        let mut matcher = StopStrings::new(stops.to_vec());
        let mut text = String::new();
        for piece in pieces {
            let outcome = matcher.push(piece);
            text.push_str(&outcome.text);
            if outcome.matched.is_some() {
                assert_eq!(
                    matcher.push("more"),
                    StopOutcome {
                        text: String::new(),
                        ..outcome
                    }
                );
                return (text, outcome.matched);
            }
        }
        let last = matcher.finish();
        (text + &last.text, last.matched)
    }

    fn strings(list: &[&str]) -> Vec<String> {
        list.iter().map(|&text| text.to_owned()).collect()
    }

    #[test]
    fn a_stop_string_across_pieces_cuts_the_text_before_it() {
        let stops = strings(&["<|end|>", "\n\n"]);
        let pieces = strings(&["Hello <", "|en", "d|> rest"]);
        assert_eq!(stream(&stops, &pieces), ("Hello ".to_owned(), Some(0)));
        assert_eq!(
            stream(&stops, &strings(&["a\n", "\nb"])),
            ("a".to_owned(), Some(1))
        );
    }

    #[test]
    fn a_start_that_comes_to_nothing_is_released() {
        let mut matcher = StopStrings::new(strings(&["###"]));
        assert_eq!(matcher.push("a##").text, "a");
        assert_eq!(matcher.push("b#").text, "##b");
        assert_eq!(matcher.finish().text, "#");
    }

    #[test]
    fn a_stop_string_inside_an_unfinished_longer_one_is_found_at_the_end() {
        let stops = strings(&["abcd", "bc"]);
        assert_eq!(stream(&stops, &strings(&["xabc"])), ("xa".to_owned(), Some(1)));
        assert_eq!(
            stream(&stops, &strings(&["xabc", "d"])),
            ("x".to_owned(), Some(0))
        );
    }

    #[test]
    fn no_stop_strings_hold_nothing_back() {
        let mut matcher = StopStrings::new(vec![String::new()]);
        assert_eq!(
            matcher.push("text"),
            StopOutcome {
                text: "text".to_owned(),
                matched: None
            }
        );
    }

    proptest! {
        #[test]
        fn streaming_agrees_with_a_search_of_the_whole_text(
            stops in prop::collection::vec("[abé😀]{0,4}", 0..4),
            pieces in prop::collection::vec("[abcé😀]{0,5}", 0..12),
        ) {
            prop_assert_eq!(stream(&stops, &pieces), naive(&stops, &pieces.concat()));
        }
    }
}
