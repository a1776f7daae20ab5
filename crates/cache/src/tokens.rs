//! A request's tokens without copying them together: the prompt and what was generated behind it.

use paceline_types::TokenId;
use std::ops::Range;

/// Two consecutive runs of tokens, read as one.
#[derive(Clone, Copy, Debug)]
pub struct TokenList<'a> {
    head: &'a [TokenId],
    tail: &'a [TokenId],
}

impl<'a> TokenList<'a> {
    /// The two runs.
    pub fn new(head: &'a [TokenId], tail: &'a [TokenId]) -> Self {
        Self { head, tail }
    }

    /// Tokens in all.
    pub fn len(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The token at a position.
    pub fn get(&self, position: usize) -> Option<TokenId> {
        let behind = || self.tail.get(position - self.head.len());
        self.head.get(position).or_else(behind).copied()
    }

    /// Appends a range of them to `out`. Cost: the length of the range.
    pub fn append_to(&self, range: Range<usize>, out: &mut Vec<TokenId>) {
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "{range:?} of {}",
            self.len()
        );
        let split = self.head.len();
        if range.start < split {
            out.extend_from_slice(&self.head[range.start..range.end.min(split)]);
        }
        if range.end > split {
            out.extend_from_slice(&self.tail[range.start.max(split) - split..range.end - split]);
        }
    }
}

impl<'a> From<&'a [TokenId]> for TokenList<'a> {
    fn from(tokens: &'a [TokenId]) -> Self {
        Self::new(tokens, &[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_across_the_seam_reads_as_one_list() {
        let list = TokenList::new(&[0, 1, 2], &[3, 4]);
        assert_eq!(
            (0..6).map_while(|i| list.get(i)).collect::<Vec<_>>(),
            [0, 1, 2, 3, 4]
        );
        for start in 0..=5 {
            for end in start..=5 {
                let mut out = Vec::new();
                list.append_to(start..end, &mut out);
                assert_eq!(out, (start as u32..end as u32).collect::<Vec<_>>());
            }
        }
    }
}
