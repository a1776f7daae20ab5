//! Grammars that were compiled, the last ones asked for.

use std::collections::VecDeque;

/// What a grammar was made of, hashed.
pub(super) type Key = [u8; 32];

/// Values by their keys, within a number and a size of what they were made of. The one that was not asked for the
/// longest goes first.
#[derive(Debug)]
pub(super) struct Cache<T> {
    /// The last one asked for is at the end. Few enough to look through.
    entries: VecDeque<Entry<T>>,
    size: usize,
    most: usize,
    most_size: usize,
}

#[derive(Debug)]
struct Entry<T> {
    key: Key,
    value: T,
    size: usize,
}

impl<T: Clone> Cache<T> {
    pub(super) fn new(most: usize, most_size: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            size: 0,
            most,
            most_size,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get(&mut self, key: &Key) -> Option<T> {
        let place = self.entries.iter().position(|entry| entry.key == *key)?;
        let entry = self.entries.remove(place)?;
        let value = entry.value.clone();
        self.entries.push_back(entry);
        Some(value)
    }

    /// Keeps a value made of `size` bytes, unless it is there or too large for any room.
    pub(super) fn insert(&mut self, key: Key, value: T, size: usize) {
        if size > self.most_size || self.entries.iter().any(|entry| entry.key == key) {
            return;
        }
        while self.entries.len() >= self.most || self.size + size > self.most_size {
            let Some(oldest) = self.entries.pop_front() else {
                return;
            };
            self.size -= oldest.size;
        }
        self.size += size;
        self.entries.push_back(Entry { key, value, size });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8) -> Key {
        [number; 32]
    }

    #[test]
    fn the_one_not_asked_for_the_longest_goes_first() {
        let mut cache = Cache::new(2, 100);
        cache.insert(key(1), "one", 1);
        cache.insert(key(2), "two", 1);
        assert_eq!(cache.get(&key(1)), Some("one"));
        cache.insert(key(3), "three", 1);
        assert_eq!(cache.get(&key(2)), None);
        assert_eq!(
            (cache.get(&key(1)), cache.get(&key(3))),
            (Some("one"), Some("three"))
        );
        assert_eq!(cache.len(), 2);
    }

    #[test]
    fn size_is_bounded_too() {
        let mut cache = Cache::new(10, 100);
        for number in 0..5 {
            cache.insert(key(number), number, 30);
            cache.insert(key(number), 99, 30);
        }
        assert_eq!((cache.len(), cache.size), (3, 90));
        cache.insert(key(9), 9, 101);
        assert_eq!((cache.get(&key(9)), cache.get(&key(4))), (None, Some(4)));
        cache.insert(key(9), 9, 100);
        assert_eq!((cache.len(), cache.get(&key(9))), (1, Some(9)));
    }
}
