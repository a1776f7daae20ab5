//! The caches against a naive model: what every block and every saved state really holds, and which texts have
//! been published.

use paceline_cache::{Blocks, CacheConfig, Caches, Chain, Hit, Reservation, Restore, SnapshotPool};
use paceline_types::TokenId;
use proptest::prelude::*;
use std::collections::HashSet;

const BLOCK: usize = 2;

/// A text behind a salt.
type Content = (u64, Vec<TokenId>);

#[derive(Clone, Debug)]
enum Op {
    /// A request starts with this text.
    Start {
        text: Vec<TokenId>,
        salt: u64,
        limit: usize,
    },
    /// A request publishes its next block.
    Publish(usize),
    /// A request saves a state at the end of its n-th published block; `written` as the device would say.
    Save {
        request: usize,
        block: usize,
        written: bool,
    },
    /// A place is reserved and held.
    Hold,
    /// The oldest held place, or the state a request starts from, goes.
    LetGo,
    Unpin(usize),
    End(usize),
    Forget,
}

fn op() -> impl Strategy<Value = Op> {
    let text = prop::collection::vec(0..2u32, 1..13);
    let limit = prop_oneof![3 => Just(usize::MAX), 1 => 0..8usize];
    prop_oneof![
        4 => (text, 0..2u64, limit).prop_map(|(text, salt, limit)| Op::Start { text, salt, limit }),
        8 => (0..8usize).prop_map(Op::Publish),
        4 => (0..8usize, 0..6usize, prop::bool::weighted(0.8))
            .prop_map(|(request, block, written)| Op::Save { request, block, written }),
        1 => Just(Op::Hold),
        1 => Just(Op::LetGo),
        2 => (0..8usize).prop_map(Op::Unpin),
        3 => (0..8usize).prop_map(Op::End),
        1 => Just(Op::Forget),
    ]
}

struct Request {
    text: Vec<TokenId>,
    salt: u64,
    blocks: Blocks,
    chain: Chain,
    restore: Option<Restore>,
}

struct Model {
    caches: Caches,
    recurrent: bool,
    /// So large that nothing is ever evicted: then a look-up must find all there is.
    ample: bool,
    requests: Vec<Request>,
    held: Vec<Reservation>,
    blocks: Vec<Option<Content>>,
    states: Vec<Option<Content>>,
    published: HashSet<Content>,
    saved: HashSet<Content>,
}

impl Model {
    fn new(blocks: usize, snapshots: Option<usize>, ample: bool) -> Self {
        let config = CacheConfig {
            block_size: BLOCK,
            num_blocks: blocks,
            snapshots,
        };
        Self {
            caches: Caches::new(config),
            recurrent: snapshots.is_some(),
            ample,
            requests: Vec::new(),
            held: Vec::new(),
            blocks: vec![None; blocks],
            states: vec![None; snapshots.unwrap_or(0)],
            published: HashSet::new(),
            saved: HashSet::new(),
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Start { text, salt, limit } => self.start(text, salt, limit),
            Op::Publish(request) => self.publish(request),
            Op::Save {
                request,
                block,
                written,
            } => self.save(request, block, written),
            Op::Hold => self.held.extend(self.caches.reserve_snapshot()),
            Op::LetGo => drop((!self.held.is_empty()).then(|| self.held.remove(0))),
            Op::Unpin(request) => {
                if let Some(request) = self.pick(request) {
                    self.requests[request].restore = None;
                }
            }
            Op::End(request) => {
                if let Some(request) = self.pick(request) {
                    self.requests.remove(request);
                }
            }
            // What is forgotten is not modelled where a look-up has to find all there is.
            Op::Forget if !self.ample => {
                self.caches.forget();
                assert_eq!(self.caches.usage().cached_free_blocks, 0);
            }
            Op::Forget => {}
        }
        self.caches.check_integrity();
        // Whatever was evicted meanwhile, what is held is untouched.
        for request in &self.requests {
            for (index, block) in request.blocks.iter().enumerate() {
                let end = ((index + 1) * BLOCK).min(request.text.len());
                let expected = (request.salt, request.text[..end].to_vec());
                let held = self.blocks[block.0 as usize].as_ref();
                assert_eq!(
                    held.map(|(salt, text)| (*salt, text[..end].to_vec())),
                    Some(expected)
                );
            }
        }
    }

    fn pick(&self, index: usize) -> Option<usize> {
        (!self.requests.is_empty()).then(|| index % self.requests.len())
    }

    fn start(&mut self, text: Vec<TokenId>, salt: u64, limit: usize) {
        let free = self.caches.free_blocks();
        let hit = self.caches.lookup(text.as_slice().into(), salt, limit);
        self.check_hit(&hit, &text, salt, limit);
        let Hit {
            mut blocks,
            chain,
            restore,
            ..
        } = hit;
        let fresh = text.len().div_ceil(BLOCK) - blocks.len();
        if !self.caches.extend(&mut blocks, fresh) {
            assert!(self.caches.free_blocks() < fresh);
            drop((blocks, restore));
            assert_eq!(self.caches.free_blocks(), free, "a failed start keeps blocks");
            return;
        }
        for (index, block) in blocks.iter().enumerate().skip(chain.len()) {
            let end = ((index + 1) * BLOCK).min(text.len());
            self.blocks[block.0 as usize] = Some((salt, text[..end].to_vec()));
        }
        self.requests.push(Request {
            text,
            salt,
            blocks,
            chain,
            restore,
        });
    }

    fn check_hit(&self, hit: &Hit, text: &[TokenId], salt: u64, limit: usize) {
        let content = |blocks: usize| (salt, text[..blocks * BLOCK].to_vec());
        assert_eq!(hit.cached_tokens, hit.blocks.len() * BLOCK);
        assert_eq!(hit.chain.len(), hit.blocks.len());
        assert!(hit.cached_tokens < text.len() && hit.cached_tokens <= limit);
        for (index, block) in hit.blocks.iter().enumerate() {
            assert_eq!(
                self.blocks[block.0 as usize],
                Some(content(index + 1)),
                "a block of another text"
            );
        }
        match &hit.restore {
            Some(restore) => {
                let state = self.states[restore.id().0 as usize].clone();
                assert_eq!(state, Some(content(hit.blocks.len())), "a state of another text");
                assert!(hit.cached_tokens > 0);
            }
            None => assert!(
                !self.recurrent || hit.cached_tokens == 0,
                "blocks without their state"
            ),
        }
        let most = limit.min(text.len() - 1) / BLOCK;
        assert!(
            hit.branch_point
                .is_none_or(|end| self.recurrent && hit.cached_tokens < end && end <= most * BLOCK)
        );
        if self.ample {
            let chain = (1..=most)
                .take_while(|blocks| self.published.contains(&content(*blocks)))
                .count();
            let saved = (1..=chain)
                .rev()
                .find(|blocks| self.saved.contains(&content(*blocks)));
            let expected = if self.recurrent { saved.unwrap_or(0) } else { chain };
            assert_eq!(hit.blocks.len(), expected, "the longest cached start");
            assert_eq!(hit.branch_point, (chain > expected).then_some(chain * BLOCK));
        }
    }

    fn publish(&mut self, request: usize) {
        let Some(request) = self.pick(request) else { return };
        let request = &mut self.requests[request];
        let index = request.chain.len();
        let Some(tokens) = request.text.get(index * BLOCK..(index + 1) * BLOCK) else {
            return;
        };
        self.caches
            .publish(&mut request.chain, tokens, request.blocks[index]);
        assert!(
            !self.ample || !request.chain.is_broken(),
            "a chain breaks only where something is evicted"
        );
        if !request.chain.is_broken() {
            self.published
                .insert((request.salt, request.text[..(index + 1) * BLOCK].to_vec()));
        }
    }

    fn save(&mut self, request: usize, block: usize, written: bool) {
        let Some(request) = self.pick(request) else { return };
        let request = &self.requests[request];
        let Some(place) = self.caches.reserve_snapshot() else {
            assert!(!self.ample || !self.recurrent);
            return;
        };
        let restored = self
            .requests
            .iter()
            .filter_map(|request| request.restore.as_ref());
        assert!(
            restored.map(Restore::id).all(|id| id != place.id()),
            "a pinned state was given away"
        );
        let content = (
            request.salt,
            request.text[..(block * BLOCK).min(request.text.len())].to_vec(),
        );
        if let Some(node) = request.chain.node(block)
            && written
        {
            self.states[place.id().0 as usize] = Some(content.clone());
            if self.caches.publish_snapshot(place, node) {
                self.saved.insert(content);
            }
        }
    }

    fn finish(mut self) {
        self.requests.clear();
        self.held.clear();
        self.caches.check_integrity();
        let usage = self.caches.usage();
        assert_eq!(usage.free_blocks, self.blocks.len());
        assert_eq!(usage.reserved_snapshots, 0);
        // With nobody left, every state can make way.
        let places: Vec<_> = self
            .states
            .iter()
            .map_while(|_| self.caches.reserve_snapshot())
            .collect();
        assert_eq!(places.len(), self.states.len(), "a state is held for nobody");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_hit_is_always_the_requests_own_text(
        blocks in 1..14usize,
        snapshots in prop::option::of(0..5usize),
        ops in prop::collection::vec(op(), 0..120),
    ) {
        let mut model = Model::new(blocks, snapshots, false);
        for op in ops {
            model.apply(op);
        }
        model.finish();
    }

    #[test]
    fn with_room_for_everything_nothing_is_forgotten(
        recurrent: bool,
        ops in prop::collection::vec(op(), 0..120),
    ) {
        let mut model = Model::new(1000, recurrent.then_some(1000), true);
        for op in ops {
            model.apply(op);
        }
        model.finish();
    }
}

#[test]
fn the_least_recently_used_is_evicted_first_and_the_end_of_a_text_before_its_start() {
    let caches = Caches::new(CacheConfig {
        block_size: 1,
        num_blocks: 4,
        snapshots: None,
    });
    let cached = |text: &[TokenId]| caches.lookup(text.into(), 0, usize::MAX).cached_tokens;
    let fill = |text: &[TokenId]| {
        let Hit {
            mut blocks,
            mut chain,
            ..
        } = caches.lookup(text.into(), 0, usize::MAX);
        let fresh = text.len() - blocks.len();
        assert!(caches.extend(&mut blocks, fresh));
        for index in chain.len()..text.len() {
            caches.publish(&mut chain, &text[index..=index], blocks[index]);
        }
    };
    fill(&[1, 2]);
    fill(&[3, 4]);
    assert_eq!((cached(&[1, 2, 9]), cached(&[3, 4, 9])), (2, 2));
    // [1, 2] was looked at before [3, 4]: its end goes first.
    fill(&[5]);
    assert_eq!((cached(&[3, 4, 9]), cached(&[1, 2, 9])), (2, 1));
    fill(&[6]);
    fill(&[7]);
    assert_eq!((cached(&[1, 2, 9]), cached(&[3, 4, 9])), (1, 1));
}

/// A model with recurrent state cannot start from blocks beyond the last saved state, but a text that was looked up is
/// wanted: its blocks stay longer than others, so that a state at their end finds them.
#[test]
fn blocks_beyond_the_last_state_count_as_used() {
    let caches = Caches::new(CacheConfig {
        block_size: 1,
        num_blocks: 4,
        snapshots: Some(1),
    });
    let fill = |text: &[TokenId]| {
        let mut hit = caches.lookup(text.into(), 0, 0);
        assert!(caches.extend(&mut hit.blocks, text.len()));
        for index in 0..text.len() {
            caches.publish(&mut hit.chain, &text[index..=index], hit.blocks[index]);
        }
    };
    let found = |text: &[TokenId]| caches.lookup(text.into(), 0, usize::MAX).branch_point;
    fill(&[1, 2]);
    fill(&[3, 4]);
    assert_eq!(found(&[1, 2, 9]), Some(2));
    fill(&[5, 6]);
    assert_eq!(found(&[1, 2, 9]), Some(2));
    assert_eq!(found(&[3, 4, 9]), None);
}

/// Two requests computed the same text side by side. The block in use stands for it from then on, and the other one is
/// free for new content before anything that is worth keeping is evicted.
#[test]
fn a_block_in_use_takes_over_from_one_that_is_not() {
    let caches = Caches::new(CacheConfig {
        block_size: 1,
        num_blocks: 4,
        snapshots: None,
    });
    let start = || {
        let mut hit = caches.lookup([7].as_slice().into(), 0, 0);
        assert!(caches.extend(&mut hit.blocks, 1));
        hit
    };
    let (mut first, mut second) = (start(), start());
    caches.publish(&mut first.chain, &[7], first.blocks[0]);
    drop(first);
    assert_eq!(caches.usage().cached_free_blocks, 1);
    caches.publish(&mut second.chain, &[7], second.blocks[0]);
    assert_eq!(caches.usage().cached_free_blocks, 0);
    let hit = caches.lookup([7, 8].as_slice().into(), 0, usize::MAX);
    assert_eq!(hit.blocks[0], second.blocks[0]);
}

/// Of two blocks with one text that are both in use, the one that was there first stays: what is published next to it changes
/// nothing for those that share it.
#[test]
fn a_block_in_use_is_not_taken_over_from() {
    let caches = Caches::new(CacheConfig {
        block_size: 1,
        num_blocks: 4,
        snapshots: None,
    });
    let start = || {
        let mut hit = caches.lookup([7].as_slice().into(), 0, 0);
        assert!(caches.extend(&mut hit.blocks, 1));
        hit
    };
    let (mut first, mut second) = (start(), start());
    caches.publish(&mut first.chain, &[7], first.blocks[0]);
    caches.publish(&mut second.chain, &[7], second.blocks[0]);
    assert_eq!(first.chain.node(1), second.chain.node(1));
    let hit = caches.lookup([7, 8].as_slice().into(), 0, usize::MAX);
    assert_eq!(hit.blocks[0], first.blocks[0]);
    // The private one is of no use to anybody when its request is gone.
    drop(second);
    assert_eq!(caches.usage().cached_free_blocks, 0);
}

/// The only place for a state holds the one that a request starts from, until that has run; then it can make way.
#[test]
fn a_state_makes_way_again_when_nobody_starts_from_it_any_more() {
    let caches = Caches::new(CacheConfig {
        block_size: 1,
        num_blocks: 4,
        snapshots: Some(1),
    });
    let mut hit = caches.lookup([7].as_slice().into(), 0, 0);
    assert!(caches.extend(&mut hit.blocks, 1));
    assert_eq!(caches.free_blocks(), 3);
    caches.publish(&mut hit.chain, &[7], hit.blocks[0]);
    let node = hit.chain.node(1).expect("it is published");
    let save = || {
        caches
            .reserve_snapshot()
            .is_some_and(|place| caches.publish_snapshot(place, node))
    };
    assert!(save());
    for _ in 0..3 {
        let starting = caches.lookup([7, 8].as_slice().into(), 0, usize::MAX);
        assert_eq!(starting.cached_tokens, 1);
        assert!(starting.restore.is_some());
        assert!(!save(), "a state that a request starts from is overwritten");
        drop(starting);
        assert!(save(), "a state that nobody starts from keeps its place");
    }
}

/// A step reads the state that it starts from when it runs, which may be after its request has gone, with all its blocks.
#[test]
fn a_state_stays_for_those_who_start_from_it_when_its_text_is_gone() {
    let caches = Caches::new(CacheConfig {
        block_size: 1,
        num_blocks: 4,
        snapshots: Some(1),
    });
    let mut hit = caches.lookup([7].as_slice().into(), 0, 0);
    assert!(caches.extend(&mut hit.blocks, 1));
    caches.publish(&mut hit.chain, &[7], hit.blocks[0]);
    let node = hit.chain.node(1).expect("it is published");
    let place = caches.reserve_snapshot().expect("it is free");
    assert!(caches.publish_snapshot(place, node));
    drop(hit);
    let Hit { blocks, restore, .. } = caches.lookup([7, 8].as_slice().into(), 0, usize::MAX);
    drop(blocks);
    caches.forget();
    caches.check_integrity();
    assert!(caches.reserve_snapshot().is_none());
    drop(restore);
    caches.check_integrity();
    assert!(caches.reserve_snapshot().is_some());
}

#[test]
fn places_for_states_are_free_reserved_or_taken() {
    let caches = Caches::new(CacheConfig {
        block_size: 1,
        num_blocks: 1,
        snapshots: Some(3),
    });
    let places = || {
        let usage = caches.usage();
        (usage.free_snapshots, usage.reserved_snapshots)
    };
    assert_eq!(places(), (3, 0));
    let mut hit = caches.lookup([7].as_slice().into(), 0, 0);
    assert!(caches.extend(&mut hit.blocks, 1));
    caches.publish(&mut hit.chain, &[7], hit.blocks[0]);
    let node = hit.chain.node(1).expect("it is published");
    let [first, second] = [(); 2].map(|()| caches.reserve_snapshot().expect("it is free"));
    assert_eq!(places(), (1, 2));
    assert!(caches.publish_snapshot(first, node));
    assert_eq!(places(), (1, 1));
    drop(second);
    assert_eq!(places(), (2, 0));
    // With its text, a state goes too.
    drop(hit);
    caches.forget();
    assert_eq!(places(), (3, 0));
}

#[test]
fn there_are_as_many_places_for_states_as_fit_the_budget() {
    let places = [0, 29, 30, 100].map(|budget| SnapshotPool::places(budget, 30));
    assert_eq!(places, [0, 0, 1, 3]);
}
