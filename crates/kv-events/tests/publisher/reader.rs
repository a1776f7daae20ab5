//! A subscriber's view, made of batches as they are on the wire.

use paceline_types::TokenId;
use serde_json::Value;
use std::collections::{HashMap, HashSet};

#[derive(Default)]
pub(crate) struct Reader {
    /// By name: the block before, and its own tokens.
    blocks: HashMap<u64, (Option<u64>, Vec<TokenId>)>,
    states: HashSet<u64>,
}

impl Reader {
    pub(crate) fn blocks(&self) -> impl Iterator<Item = u64> {
        self.blocks.keys().copied()
    }

    pub(crate) fn states(&self) -> &HashSet<u64> {
        &self.states
    }

    pub(crate) fn read(&mut self, batch: &[u8]) {
        let (_, events, rank): (f64, Vec<Vec<Value>>, u64) = rmp_serde::from_slice(batch).unwrap();
        assert_eq!(rank, 0);
        for event in events {
            match event[0].as_str().unwrap() {
                "AllBlocksCleared" => *self = Self::default(),
                "BlockStored" => self.stored(&event),
                "BlockRemoved" => self.removed(&event),
                other => panic!("{other}"),
            }
        }
    }

    /// Stored once, behind what is there.
    fn stored(&mut self, event: &[Value]) {
        let hashes = numbers(&event[1]);
        let tokens: Vec<TokenId> = numbers(&event[3]).into_iter().map(|token| token as u32).collect();
        let size = event[4].as_u64().unwrap() as usize;
        assert_eq!(tokens.len(), hashes.len() * size);
        let mut parent = event[2].as_u64();
        for (hash, tokens) in hashes.into_iter().zip(tokens.chunks_exact(size)) {
            assert!(parent.is_none_or(|parent| self.blocks.contains_key(&parent)));
            if event.get(10).is_some_and(|kind| kind == "mamba") {
                assert_eq!(self.blocks[&hash], (parent, tokens.to_vec()));
                assert!(self.states.insert(hash), "a state is stored twice");
            } else {
                let before = self.blocks.insert(hash, (parent, tokens.to_vec()));
                assert!(before.is_none(), "a block is stored twice");
            }
            parent = Some(hash);
        }
    }

    /// Removed once, with nothing left behind it.
    fn removed(&mut self, event: &[Value]) {
        for hash in numbers(&event[1]) {
            if event.get(4).is_some_and(|kind| kind == "mamba") {
                assert!(self.states.remove(&hash), "a state is removed that is not there");
            } else {
                assert!(self.blocks.remove(&hash).is_some(), "a block is removed twice");
                assert!(!self.states.contains(&hash), "a state has lost its block");
                let orphan = self.blocks.values().find(|(parent, _)| *parent == Some(hash));
                assert!(orphan.is_none(), "a block has lost its parent");
            }
        }
    }

    /// How many tokens of a text are cached, by the events.
    pub(crate) fn predict(&self, text: &[TokenId], size: usize, recurrent: bool) -> usize {
        let (mut parent, mut usable) = (None, 0);
        for (index, tokens) in text.chunks_exact(size).enumerate() {
            let is =
                |block: &(&u64, &(Option<u64>, Vec<TokenId>))| block.1.0 == parent && block.1.1 == tokens;
            let Some((hash, _)) = self.blocks.iter().find(is) else {
                break;
            };
            if !recurrent || self.states.contains(hash) {
                usable = (index + 1) * size;
            }
            parent = Some(*hash);
        }
        usable
    }
}

fn numbers(list: &Value) -> Vec<u64> {
    let list = list.as_array().unwrap();
    list.iter().map(|number| number.as_u64().unwrap()).collect()
}
