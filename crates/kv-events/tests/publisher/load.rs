//! A random load on caches, and what they hold by their own account.

use crate::reader::Reader;
use paceline_cache::{Blocks, CacheConfig, CacheFeed, Caches, Chain, Change};
use paceline_types::TokenId;
use std::collections::{HashMap, HashSet};

/// Tokens of a block.
pub(crate) const BLOCK: usize = 4;

const BLOCKS: usize = 48;

struct Request {
    text: Vec<TokenId>,
    blocks: Blocks,
    chain: Chain,
}

pub(crate) struct Load {
    caches: Caches,
    recurrent: bool,
    requests: Vec<Request>,
    random: u64,
}

impl Load {
    pub(crate) fn new(seed: u64, snapshots: Option<usize>, feed: &CacheFeed) -> Self {
        let caches = Caches::new(CacheConfig {
            block_size: BLOCK,
            num_blocks: BLOCKS,
            snapshots,
        });
        caches.tell(feed.clone());
        Self {
            caches,
            recurrent: snapshots.is_some(),
            requests: Vec::new(),
            random: seed * 2 + 1,
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % bound
    }

    /// A text of a few: they share beginnings.
    fn text(&mut self) -> Vec<TokenId> {
        let len = 1 + self.below(40);
        let mut text = vec![];
        while text.len() < len {
            let kind = self.below(8).saturating_sub(5) as TokenId;
            text.extend([kind; BLOCK]);
        }
        text.truncate(len);
        text
    }

    pub(crate) fn run(&mut self, operations: usize) {
        for _ in 0..operations {
            match self.below(8) {
                0 | 1 => self.start(),
                2 if !self.requests.is_empty() => {
                    let request = self.below(self.requests.len());
                    self.requests.remove(request);
                }
                _ if !self.requests.is_empty() => {
                    let request = self.below(self.requests.len());
                    self.publish(request);
                }
                _ => {}
            }
        }
        self.caches.check_integrity();
    }

    fn start(&mut self) {
        let text = self.text();
        let hit = self.caches.lookup((&text[..]).into(), 7, usize::MAX);
        let mut blocks = hit.blocks;
        let fresh = text.len().div_ceil(BLOCK) - blocks.len();
        if self.caches.extend(&mut blocks, fresh) {
            self.requests.push(Request {
                text,
                blocks,
                chain: hit.chain,
            });
        }
    }

    /// The next block of a request, now and then with a state at its end.
    fn publish(&mut self, index: usize) {
        let save = self.below(4) == 0;
        let request = &mut self.requests[index];
        let at = request.chain.len();
        let Some(tokens) = request.text.chunks_exact(BLOCK).nth(at) else {
            return;
        };
        self.caches
            .publish(&mut request.chain, tokens, request.blocks[at]);
        if save
            && let Some(node) = request.chain.node(at + 1)
            && let Some(place) = self.caches.reserve_snapshot()
        {
            self.caches.publish_snapshot(place, node);
        }
    }

    /// Whether a subscriber knows what a hit can use.
    pub(crate) fn is_known(&self, reader: &Reader) -> bool {
        let (blocks, states) = self.usable();
        reader.blocks().collect::<HashSet<u64>>() == blocks && (!self.recurrent || *reader.states() == states)
    }

    /// Expects a subscriber to know exactly what a hit can use, and to say of texts what the caches say.
    pub(crate) fn compare(&mut self, reader: &Reader, when: &str) {
        let (blocks, states) = self.usable();
        let known: HashSet<u64> = reader.blocks().collect();
        assert_eq!(known, blocks, "{when}");
        if self.recurrent {
            assert_eq!(*reader.states(), states, "{when}");
        }
        for _ in 0..10 {
            let text = self.text();
            let whole = &text[..(text.len() - 1) / BLOCK * BLOCK];
            let hit = self.caches.lookup((&text[..]).into(), 7, usize::MAX);
            let predicted = reader.predict(whole, BLOCK, self.recurrent);
            assert_eq!(predicted, hit.cached_tokens, "{when}: {text:?}");
        }
    }

    /// By the definition: every block that is found, and where there are states, every one on the way to a state.
    fn usable(&self) -> (HashSet<u64>, HashSet<u64>) {
        let mut parents = HashMap::new();
        let mut states = HashSet::new();
        for (change, _) in self.caches.describe().iter(BLOCK) {
            match change {
                Change::Stored { hash, parent } => drop(parents.insert(hash, parent)),
                Change::Saved { hash } => drop(states.insert(hash)),
                other => assert_eq!(other, Change::Cleared),
            }
        }
        if !self.recurrent {
            return (parents.into_keys().collect(), states);
        }
        let mut usable = HashSet::new();
        for state in &states {
            let mut next = Some(*state);
            while let Some(hash) = next {
                usable.insert(hash);
                next = parents[&hash];
            }
        }
        (usable, states)
    }
}
