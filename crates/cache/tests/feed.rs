//! What a feed tells of the index: each change once, with what a reader needs to follow, and a call when there is something
//! to take.

use paceline_cache::{Blocks, CacheConfig, CacheFeed, Caches, Chain, Change, Changes, FeedLayout, Hit};
use paceline_types::TokenId;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const BLOCK: usize = 2;

/// Caches with a feed, and how often it has called.
fn told(num_blocks: usize, snapshots: Option<usize>) -> (Caches, CacheFeed, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let feed = {
        let calls = Arc::clone(&calls);
        CacheFeed::new(move || {
            calls.fetch_add(1, Ordering::Relaxed);
        })
    };
    assert_eq!(feed.layout(), None);
    let caches = Caches::new(CacheConfig {
        block_size: BLOCK,
        num_blocks,
        snapshots,
    });
    caches.tell(feed.clone());
    (caches, feed, calls)
}

/// Runs a text and publishes all of its blocks.
fn fill(caches: &Caches, text: &[TokenId]) -> (Blocks, Chain) {
    let Hit {
        mut blocks,
        mut chain,
        ..
    } = caches.lookup(text.into(), 0, usize::MAX);
    assert!(caches.extend(&mut blocks, text.len() / BLOCK - chain.len()));
    for index in chain.len()..text.len() / BLOCK {
        caches.publish(
            &mut chain,
            &text[index * BLOCK..(index + 1) * BLOCK],
            blocks[index],
        );
    }
    (blocks, chain)
}

fn take(feed: &CacheFeed) -> Vec<(Change, Vec<TokenId>)> {
    let mut changes = Changes::default();
    feed.take(&mut changes);
    let listed: Vec<_> = changes
        .iter(BLOCK)
        .map(|(change, tokens)| (change, tokens.to_vec()))
        .collect();
    assert_eq!(
        (listed.len(), listed.is_empty()),
        (changes.len(), changes.is_empty())
    );
    listed
}

fn hash_of(change: &Change) -> u64 {
    match *change {
        Change::Stored { hash, .. }
        | Change::Removed { hash }
        | Change::Saved { hash }
        | Change::Dropped { hash } => hash,
        Change::Cleared => panic!("it is about no block"),
    }
}

#[test]
fn every_change_of_the_index_is_told_once_and_in_order() {
    let (caches, feed, _) = told(3, Some(1));
    let layout = FeedLayout {
        block_size: BLOCK,
        recurrent: true,
    };
    assert_eq!(feed.layout(), Some(layout));
    let (blocks, chain) = fill(&caches, &[1, 2, 3, 4]);
    let stored = take(&feed);
    let [first, second] = [&stored[0], &stored[1]].map(|(change, _)| hash_of(change));
    assert_ne!(first, second);
    let expected = [
        (
            Change::Stored {
                hash: first,
                parent: None,
            },
            vec![1, 2],
        ),
        (
            Change::Stored {
                hash: second,
                parent: Some(first),
            },
            vec![3, 4],
        ),
    ];
    assert_eq!(stored, expected);
    // What is there already is no news.
    drop(fill(&caches, &[1, 2]));
    assert_eq!(take(&feed), []);
    // The only place for a state goes from the second block to the first.
    let save = |blocks| {
        let place = caches.reserve_snapshot().expect("a state can make way");
        let node = chain.node(blocks).expect("it is published");
        assert!(caches.publish_snapshot(place, node));
        take(&feed)
    };
    assert_eq!(save(2), [(Change::Saved { hash: second }, vec![])]);
    let moved = [
        (Change::Dropped { hash: second }, vec![]),
        (Change::Saved { hash: first }, vec![]),
    ];
    assert_eq!(save(1), moved);
    // The end of a text is evicted before its start, and takes no state with it that it does not have.
    drop(blocks);
    let other = fill(&caches, &[5, 6, 7, 8]);
    let evicting: Vec<Change> = take(&feed).into_iter().map(|(change, _)| change).collect();
    assert_eq!(evicting[0], Change::Removed { hash: second });
    assert_eq!(evicting.len(), 3);
    // All that nobody holds.
    drop(other);
    caches.forget();
    let mut forgotten: Vec<u64> = take(&feed).iter().map(|(change, _)| hash_of(change)).collect();
    let mut held = vec![first, hash_of(&evicting[1]), hash_of(&evicting[2])];
    forgotten.sort_unstable();
    held.sort_unstable();
    assert_eq!(forgotten, held);
}

/// A thread that is woken for every change would have the engine pay for it, and one that is not woken tells nobody.
#[test]
fn a_reader_is_called_once_for_all_that_it_has_not_taken() {
    let (caches, feed, calls) = told(8, None);
    let mut changes = Changes::default();
    for round in 0..3 {
        assert_eq!(calls.load(Ordering::Relaxed), round);
        drop(fill(&caches, &[10 + round as TokenId; 4 * BLOCK]));
        drop(fill(&caches, &[20 + round as TokenId; 2 * BLOCK]));
        assert_eq!(calls.load(Ordering::Relaxed), round + 1);
        feed.take(&mut changes);
        let stored = changes
            .iter(BLOCK)
            .filter(|(change, _)| matches!(change, Change::Stored { .. }));
        assert_eq!(stored.count(), 6);
        assert_eq!(take(&feed), []);
    }
}

/// A text comes and goes, all in one block, until the feed is full; returns the changes that this took.
fn come_and_go(caches: &Caches, calls: &AtomicUsize) -> usize {
    let (before, mut changes) = (calls.load(Ordering::Relaxed), 0);
    while calls.load(Ordering::Relaxed) == before {
        drop(fill(caches, &[9, 9]));
        caches.forget();
        changes += 2;
        assert!(changes <= 1 << 18, "a feed that nobody reads has no bound");
    }
    changes
}

/// A short one would be described all the time, and a long one is memory that nobody asked for.
#[test]
fn a_feed_has_room_for_four_times_the_index() {
    for (num_blocks, snapshots, room) in [(3, 1, 1 << 16), (10_000, 7_000, 4 * 17_001)] {
        let (caches, _, calls) = told(num_blocks, Some(snapshots));
        let (_blocks, _chain) = fill(&caches, &[1, 2]);
        let changes = 1 + come_and_go(&caches, &calls);
        assert!((room..room + 4).contains(&changes), "{changes} instead of {room}");
    }
}

/// What nobody takes is replaced by the whole index, as it is then, and its reader is called.
#[test]
fn a_feed_that_is_full_describes_the_whole_index() {
    let (caches, feed, calls) = told(3, Some(1));
    let (blocks, chain) = fill(&caches, &[1, 2, 3, 4]);
    let place = caches.reserve_snapshot().expect("it is free");
    let node = chain.node(2).expect("it is published");
    assert!(caches.publish_snapshot(place, node));
    come_and_go(&caches, &calls);
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    let whole = take(&feed);
    let [first, second] = [&whole[1], &whole[2]].map(|(change, _)| hash_of(change));
    let expected = [
        (Change::Cleared, vec![]),
        (
            Change::Stored {
                hash: first,
                parent: None,
            },
            vec![1, 2],
        ),
        (
            Change::Stored {
                hash: second,
                parent: Some(first),
            },
            vec![3, 4],
        ),
        (Change::Saved { hash: second }, vec![]),
    ];
    assert_eq!(whole[..4], expected);
    assert!(whole.len() <= 6, "what was replaced is told all the same");
    drop(blocks);
}
