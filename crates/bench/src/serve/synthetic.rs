//! Prompts of random words, as long as is asked for in the server's tokens.

use crate::load::Random;

/// Short words that most tokenizers know as one token.
const WORDS: &str = "time year people way day man thing woman life child world school state family student group country \
    problem hand part place case week company system program question work government number night point home water room \
    mother area money story fact month lot right study book eye job word business issue side kind head house service \
    friend father power hour game line end member law car city name team minute idea body back parent face others level \
    office door health person art war history party result change morning reason research girl guy moment air teacher \
    force education foot boy age policy process music market sense nation plan college interest death experience effect \
    use class control care field development role effort rate heart drug show leader light voice wife whole police mind \
    price report decision son view relationship town road arm difference value building action model season society tax \
    director position player record paper space ground form event matter center couple site project activity star table \
    need court oil situation cost industry figure street image phone data picture practice piece land product doctor wall";

/// Where prompts come from: the same number gives the same words.
#[derive(Clone, Debug)]
pub(super) struct Synthetic {
    seed: u64,
    words: Vec<&'static str>,
}

/// How words become tokens: a share for each, and those of the template around them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scale {
    per_word: f64,
    around: f64,
}

impl Default for Scale {
    /// What English usually has.
    fn default() -> Self {
        Self {
            per_word: 1.3,
            around: 0.0,
        }
    }
}

impl Scale {
    /// From two prompts of which words and tokens are known. None if they contradict sense.
    pub(super) fn between(one: (usize, u64), two: (usize, u64)) -> Option<Self> {
        let tokens = two.1.checked_sub(one.1).filter(|tokens| *tokens > 0)?;
        let words = two.0.checked_sub(one.0).filter(|words| *words > 0)?;
        let per_word = tokens as f64 / words as f64;
        Some(Self {
            per_word,
            around: one.1 as f64 - one.0 as f64 * per_word,
        })
    }

    /// Words of a prompt of about `tokens` tokens; at least one.
    pub(super) fn words(self, tokens: usize) -> usize {
        let words = (tokens as f64 - self.around) / self.per_word;
        words.round().max(1.0) as usize
    }

    /// Words that add about `tokens` tokens.
    pub(super) fn more_words(self, tokens: usize) -> usize {
        (tokens as f64 / self.per_word).round() as usize
    }
}

impl Synthetic {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            seed,
            words: WORDS.split_whitespace().collect(),
        }
    }

    /// `count` words; each `stream` has its own.
    pub(super) fn text(&self, stream: Stream, count: usize) -> String {
        let number = match stream {
            Stream::Prefix => 1,
            Stream::Scale(index) => 1_u64 << 61 | index as u64,
            Stream::WarmUp(index) => 1_u64 << 62 | index as u64,
            Stream::Prompt(index) => 1_u64 << 63 | index as u64,
        };
        let mut random = Random(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ Random(number).next());
        let word = |number: u64| self.words[(number % self.words.len() as u64) as usize];
        let words: Vec<&str> = (0..count).map(|_| word(random.next())).collect();
        words.join(" ")
    }
}

/// What words are for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stream {
    /// The start of all prompts.
    Prefix,
    /// Finding out how many tokens words have.
    Scale(usize),
    /// Before the measurement.
    WarmUp(usize),
    /// The prompt of the request with this number.
    Prompt(usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_many_and_different() {
        let mut words = Synthetic::new(0).words;
        let count = words.len();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), count);
        assert!(count > 150);
    }

    #[test]
    fn equal_numbers_give_equal_prompts_and_others_different_ones() {
        let words = Synthetic::new(1);
        let text = |stream| words.text(stream, 20);
        assert_eq!(text(Stream::Prompt(3)), text(Stream::Prompt(3)));
        assert_ne!(text(Stream::Prompt(3)), text(Stream::Prompt(4)));
        assert_ne!(text(Stream::Prompt(3)), text(Stream::WarmUp(3)));
        assert_ne!(
            text(Stream::Prompt(3)),
            Synthetic::new(2).text(Stream::Prompt(3), 20)
        );
        assert_eq!(text(Stream::Prefix).split(' ').count(), 20);
    }

    #[test]
    fn lengths_follow_from_two_prompts() {
        let scale = Scale::between((10, 25), (50, 105)).unwrap();
        assert_eq!(scale.words(105), 50);
        assert_eq!(scale.words(5), 1);
        assert_eq!(scale.words(1), 1);
        assert_eq!(scale.more_words(20), 10);
        assert_eq!(Scale::between((10, 25), (50, 25)), None);
    }
}
