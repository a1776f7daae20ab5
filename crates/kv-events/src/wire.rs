//! Batches of events as MessagePack, in vLLM's positional form.

use crate::event::{Event, Kind};
use bytes::Bytes;
use paceline_types::TokenId;
use rmp::encode::{write_array_len, write_f64, write_nil, write_str, write_uint};

/// Where blocks are, as routers call it: in reach of the device, whichever that is.
const MEDIUM: &str = "GPU";

/// The group of saved states, behind the group of attention blocks, which is 0.
const STATES: u64 = 1;

/// What vLLM calls recurrent layers of any kind.
const STATES_KIND: &str = "mamba";

/// The number of the replica within a server; there is one.
const DATA_PARALLEL_RANK: u64 = 0;

/// A batch: `[seconds, [event, ...], rank]`.
pub fn encode(events: &[Event], block_size: usize, seconds: f64) -> Bytes {
    let mut batch = Batch(Vec::with_capacity(64 + 128 * events.len()));
    batch.array(3);
    // Writing to memory cannot fail.
    let _ = write_f64(&mut batch.0, seconds);
    batch.array(events.len());
    for event in events {
        batch.event(event, block_size);
    }
    batch.uint(DATA_PARALLEL_RANK);
    batch.0.into()
}

struct Batch(Vec<u8>);

impl Batch {
    fn event(&mut self, event: &Event, block_size: usize) {
        match event {
            Event::Cleared => {
                self.array(1);
                self.text("AllBlocksCleared");
            }
            Event::Stored {
                kind,
                hashes,
                parent,
                tokens,
            } => {
                self.array(if *kind == Kind::State { 11 } else { 8 });
                self.text("BlockStored");
                self.hashes(hashes);
                self.uint_or_nil(*parent);
                self.tokens(tokens);
                self.uint(block_size as u64);
                self.uint_or_nil(None);
                self.text(MEDIUM);
                self.uint_or_nil(None);
                if *kind == Kind::State {
                    self.uint_or_nil(None);
                    self.state_group();
                }
            }
            Event::Removed { kind, hashes } => {
                self.array(if *kind == Kind::State { 5 } else { 3 });
                self.text("BlockRemoved");
                self.hashes(hashes);
                self.text(MEDIUM);
                if *kind == Kind::State {
                    self.state_group();
                }
            }
        }
    }

    fn state_group(&mut self) {
        self.uint(STATES);
        self.text(STATES_KIND);
    }

    fn hashes(&mut self, hashes: &[u64]) {
        self.array(hashes.len());
        for hash in hashes {
            self.uint(*hash);
        }
    }

    fn tokens(&mut self, tokens: &[TokenId]) {
        self.array(tokens.len());
        for token in tokens {
            self.uint(u64::from(*token));
        }
    }

    fn array(&mut self, len: usize) {
        let _ = write_array_len(&mut self.0, len as u32);
    }

    fn uint(&mut self, value: u64) {
        let _ = write_uint(&mut self.0, value);
    }

    fn uint_or_nil(&mut self, value: Option<u64>) {
        match value {
            Some(value) => self.uint(value),
            None => drop(write_nil(&mut self.0)),
        }
    }

    fn text(&mut self, text: &str) {
        let _ = write_str(&mut self.0, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event as a reader of positions sees it.
    type Stored = (
        String,
        Vec<u64>,
        Option<u64>,
        Vec<u32>,
        usize,
        (),
        String,
        Option<String>,
    );

    #[test]
    fn a_batch_reads_as_vllm_writes_it() {
        let events = [
            Event::Stored {
                kind: Kind::Attention,
                hashes: vec![u64::MAX, 7],
                parent: None,
                tokens: vec![1, 2, 300, 70_000],
            },
            Event::Stored {
                kind: Kind::Attention,
                hashes: vec![8],
                parent: Some(7),
                tokens: vec![3, 4],
            },
        ];
        let bytes = encode(&events, 2, 1.5);
        let batch: (f64, Vec<Stored>, Option<u64>) = rmp_serde::from_slice(&bytes).unwrap();
        let stored = |hashes: Vec<u64>, parent, tokens: Vec<u32>| {
            let (name, medium) = ("BlockStored".to_owned(), "GPU".to_owned());
            (name, hashes, parent, tokens, 2, (), medium, None)
        };
        let expected = vec![
            stored(vec![u64::MAX, 7], None, vec![1, 2, 300, 70_000]),
            stored(vec![8], Some(7), vec![3, 4]),
        ];
        assert_eq!(batch, (1.5, expected, Some(0)));
    }

    #[test]
    fn states_are_a_group_of_their_own() {
        let events = [
            Event::Cleared,
            Event::Stored {
                kind: Kind::State,
                hashes: vec![9],
                parent: Some(8),
                tokens: vec![5, 6],
            },
            Event::Removed {
                kind: Kind::Attention,
                hashes: vec![3, 2],
            },
            Event::Removed {
                kind: Kind::State,
                hashes: vec![9],
            },
        ];
        let bytes = encode(&events, 2, 0.0);
        let batch: (f64, serde_json::Value, u64) = rmp_serde::from_slice(&bytes).unwrap();
        let expected = serde_json::json!([
            ["AllBlocksCleared"],
            [
                "BlockStored",
                [9],
                8,
                [5, 6],
                2,
                null,
                "GPU",
                null,
                null,
                1,
                "mamba"
            ],
            ["BlockRemoved", [3, 2], "GPU"],
            ["BlockRemoved", [9], "GPU", 1, "mamba"],
        ]);
        assert_eq!(batch.1, expected);
    }
}
