//! The last batches, by number.

use bytes::Bytes;
use std::collections::VecDeque;

/// Bytes of batches that are kept for subscribers that missed some.
const MAX_BYTES: usize = 64 << 20;

/// Numbered batches, the newest ones of which are kept.
#[derive(Debug)]
pub struct Log {
    batches: VecDeque<Bytes>,
    /// The number of the first one kept.
    first: u64,
    bytes: usize,
    max_batches: usize,
    max_bytes: usize,
    /// The last batch that clears everything: a reader from there on needs nothing older.
    fresh_start: u64,
}

impl Log {
    /// An empty log. Its first batch has to be one that clears everything.
    pub fn new(max_batches: usize) -> Self {
        Self {
            batches: VecDeque::new(),
            first: 0,
            bytes: 0,
            max_batches,
            max_bytes: MAX_BYTES,
            fresh_start: 0,
        }
    }

    /// Appends a batch and returns its number. The oldest ones go if there are too many.
    pub fn push(&mut self, batch: Bytes) -> u64 {
        self.bytes += batch.len();
        self.batches.push_back(batch);
        while self.batches.len() > self.max_batches || self.bytes > self.max_bytes {
            let Some(oldest) = self.batches.pop_front() else {
                break;
            };
            self.bytes -= oldest.len();
            self.first += 1;
        }
        self.next() - 1
    }

    /// Appends batches that clear everything and describe the whole cache, and returns the number of the first. They are
    /// kept together, whatever their number and size, until the next batch comes.
    pub fn push_fresh_start(&mut self, batches: Vec<Bytes>) -> u64 {
        self.fresh_start = self.next();
        self.bytes += batches.iter().map(Bytes::len).sum::<usize>();
        self.batches.extend(batches);
        self.fresh_start
    }

    /// The batches from a number on, with their numbers. If some of them are gone, or the number is one that was never
    /// given: those from the last fresh start on, or `None` if that is gone too.
    pub fn since(&self, number: u64) -> Option<Vec<(u64, Bytes)>> {
        let known = |number: u64| (self.first..=self.next()).contains(&number);
        let start = [number, self.fresh_start]
            .into_iter()
            .find(|number| known(*number))?;
        let skipped = usize::try_from(start - self.first).unwrap_or(usize::MAX);
        Some(
            (start..)
                .zip(self.batches.iter().skip(skipped).cloned())
                .collect(),
        )
    }

    /// The number of the next batch.
    pub fn next(&self) -> u64 {
        self.first + self.batches.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    fn numbers(log: &Log, from: u64) -> Option<Vec<u64>> {
        let since = log.since(from)?;
        Some(since.into_iter().map(|(number, _)| number).collect())
    }

    #[test]
    fn what_is_gone_is_made_up_for_by_a_fresh_start() {
        let mut log = Log::new(3);
        for number in 0..3 {
            assert_eq!(log.push(batch("x")), number);
        }
        assert_eq!(numbers(&log, 1), Some(vec![1, 2]));
        assert_eq!(numbers(&log, 3), Some(vec![]));
        // From another process: the whole is told again.
        assert_eq!(numbers(&log, 900), Some(vec![0, 1, 2]));
        log.push(batch("x"));
        assert_eq!(numbers(&log, 0), None);
        assert_eq!(numbers(&log, 900), None);
        assert_eq!(log.push_fresh_start(vec![batch("c"); 5]), 4);
        assert_eq!(numbers(&log, 0), Some(vec![4, 5, 6, 7, 8]));
        assert_eq!(numbers(&log, 3), Some(vec![3, 4, 5, 6, 7, 8]));
        log.push(batch("x"));
        assert_eq!(numbers(&log, 0), None);
        assert_eq!(numbers(&log, 8), Some(vec![8, 9]));
    }

    #[test]
    fn bytes_are_bounded_too() {
        let mut log = Log::new(100);
        log.max_bytes = 10;
        for _ in 0..20 {
            log.push(batch("1234"));
            assert!(log.bytes <= 10);
        }
        assert_eq!(numbers(&log, 18), Some(vec![18, 19]));
    }
}
