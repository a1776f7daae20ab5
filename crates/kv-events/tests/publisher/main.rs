//! What a subscriber makes of the events, against the caches that they are about: a random load with evictions, gaps in the
//! numbers, gaps that are too old, and a feed that nobody empties.

#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

mod load;
mod reader;

use load::{BLOCK, Load};
use paceline_cache::{CacheFeed, Changes};
use paceline_kv_events::{Events, KvEventsConfig, Publisher, UsableBlocks, encode};
use reader::Reader;
use std::time::Duration;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

/// Places for states: none for a model with attention alone.
const KINDS: [Option<usize>; 3] = [None, Some(6), Some(0)];

#[test]
fn events_tell_what_a_hit_can_use() {
    for (seed, snapshots) in (0..60u64).flat_map(|seed| KINDS.map(|kind| (seed, kind))) {
        let feed = CacheFeed::new(|| {});
        let mut load = Load::new(seed, snapshots, &feed);
        let mut usable = UsableBlocks::new(feed.layout().unwrap());
        let (mut reader, mut changes) = (Reader::default(), Changes::default());
        for round in 0..60 {
            load.run(5);
            feed.take(&mut changes);
            let mut events = Events::default();
            for (change, tokens) in changes.iter(BLOCK) {
                usable.apply(change, tokens, &mut events);
            }
            reader.read(&encode(events.as_slice(), BLOCK, 0.0));
            load.compare(&reader, &format!("seed {seed}, {snapshots:?}, round {round}"));
        }
        // The whole, told to one that knows nothing and to one that knows something else.
        let mut whole = Events::default();
        usable.describe(&mut whole);
        for mut reader in [Reader::default(), reader] {
            reader.read(&encode(whole.as_slice(), BLOCK, 0.0));
            load.compare(&reader, &format!("seed {seed}, {snapshots:?}, described"));
        }
    }
}

#[test]
fn a_feed_that_nobody_empties_stays_bounded_and_true() {
    for snapshots in [None, Some(6)] {
        let feed = CacheFeed::new(|| {});
        let mut load = Load::new(1, snapshots, &feed);
        let (mut changes, mut reader) = (Changes::default(), Reader::default());
        let mut usable = UsableBlocks::new(feed.layout().unwrap());
        for _ in 0..2 {
            // Several times what fits.
            load.run(60_000);
            feed.take(&mut changes);
            assert!(changes.len() <= 1 << 16, "{} changes", changes.len());
            let mut events = Events::default();
            for (change, tokens) in changes.iter(BLOCK) {
                usable.apply(change, tokens, &mut events);
            }
            reader.read(&encode(events.as_slice(), BLOCK, 0.0));
            load.compare(&reader, &format!("{snapshots:?}"));
        }
    }
}

/// A subscriber with its two sockets.
struct Subscriber {
    events: SubSocket,
    missed: DealerSocket,
    reader: Reader,
    next: u64,
    /// Batches that were lost on the way.
    lost: usize,
}

impl Subscriber {
    async fn connect(publisher: &Publisher) -> Self {
        let (mut events, mut missed) = (SubSocket::new(), DealerSocket::new());
        events
            .connect(&format!("tcp://{}", publisher.endpoint()))
            .await
            .unwrap();
        events.subscribe("kv@").await.unwrap();
        let replay = publisher.replay_endpoint().unwrap();
        missed.connect(&format!("tcp://{replay}")).await.unwrap();
        Self {
            events,
            missed,
            reader: Reader::default(),
            next: 0,
            lost: 0,
        }
    }

    /// Reads until all is known that a load has done; every `lose`-th batch is lost on the way.
    async fn follow(&mut self, lose: u64, load: &mut Load, when: &str) {
        for _ in 0..400 {
            self.read_all(lose).await;
            if load.is_known(&self.reader) {
                break;
            }
        }
        load.compare(&self.reader, when);
    }

    async fn read_all(&mut self, lose: u64) {
        while let Ok(message) = tokio::time::timeout(Duration::from_millis(50), self.events.recv()).await {
            let (number, batch) = numbered(&message.unwrap());
            if lose > 0 && number % lose == lose - 1 {
                self.lost += 1;
                continue;
            }
            if number > self.next {
                self.ask().await;
            }
            if number == self.next {
                self.reader.read(&batch);
                self.next += 1;
            }
        }
        // What was lost last shows in no gap.
        self.ask().await;
    }

    /// Asks for what comes next by the replay socket.
    async fn ask(&mut self) {
        let mut request = ZmqMessage::from(bytes::Bytes::new());
        request.push_back(self.next.to_be_bytes().to_vec().into());
        self.missed.send(request).await.unwrap();
        let mut begun = false;
        loop {
            let reply = self.missed.recv().await.unwrap();
            assert!(reply.get(0).unwrap().is_empty());
            let (number, batch) = numbered(&reply.into_vec().split_off(1).try_into().unwrap());
            if number == u64::MAX {
                return;
            }
            assert!(number == self.next || !begun, "{number} behind {}", self.next);
            begun = true;
            self.reader.read(&batch);
            self.next = number + 1;
        }
    }
}

fn numbered(message: &ZmqMessage) -> (u64, Vec<u8>) {
    let frame = |index: usize| message.get(index).unwrap();
    assert_eq!(message.len(), 3);
    let number = u64::from_be_bytes(frame(1).as_ref().try_into().unwrap());
    let topic: &[u8] = if number == u64::MAX { b"" } else { b"kv@here@model" };
    assert_eq!(frame(0).as_ref(), topic);
    (number, frame(2).to_vec())
}

fn start(buffer_steps: usize) -> Publisher {
    let config = KvEventsConfig {
        endpoint: ([127, 0, 0, 1], 0).into(),
        replay_endpoint: Some(([127, 0, 0, 1], 0).into()),
        topic: "kv@here@model".to_owned(),
        buffer_steps,
    };
    Publisher::start(&config).unwrap()
}

#[tokio::test]
async fn gaps_are_filled_by_a_replay() {
    for snapshots in [None, Some(6)] {
        let publisher = start(10_000);
        let mut load = Load::new(3, snapshots, publisher.feed());
        let mut steady = Subscriber::connect(&publisher).await;
        let mut lossy = Subscriber::connect(&publisher).await;
        for round in 0..20 {
            load.run(40);
            let when = format!("{snapshots:?}, round {round}");
            steady.follow(0, &mut load, &when).await;
            lossy.follow(2, &mut load, &format!("{when}, lossy")).await;
        }
        // Every round has a batch or more, and of what comes by itself every other one is lost.
        assert!(lossy.lost >= 5, "{} batches were lost", lossy.lost);
        // One that comes late.
        let mut late = Subscriber::connect(&publisher).await;
        late.follow(0, &mut load, "late").await;
        assert_eq!(late.next, lossy.next);
    }
}

#[tokio::test]
async fn a_gap_that_is_too_old_ends_in_a_fresh_start() {
    for snapshots in [None, Some(6)] {
        let publisher = start(3);
        let mut load = Load::new(4, snapshots, publisher.feed());
        let mut steady = Subscriber::connect(&publisher).await;
        for _ in 0..10 {
            load.run(40);
            steady.follow(0, &mut load, "steady").await;
        }
        let told = steady.next;
        assert!(told > 6, "{told}");
        let mut late = Subscriber::connect(&publisher).await;
        late.ask().await;
        assert!(late.next > told, "nothing was told anew");
        load.compare(&late.reader, "late");
        // The others follow, and a second one finds the same fresh start.
        while steady.next < late.next {
            steady.follow(0, &mut load, "steady again").await;
        }
        let mut second = Subscriber::connect(&publisher).await;
        second.ask().await;
        assert_eq!((late.next, steady.next), (second.next, second.next));
        load.compare(&second.reader, "second");
        // One that knows numbers of an earlier process.
        second.next = 1_000_000;
        second.ask().await;
        assert_eq!(second.next, late.next);
    }
}

#[test]
fn an_address_that_is_taken_is_an_error() {
    let publisher = start(1);
    let config = KvEventsConfig {
        endpoint: publisher.endpoint(),
        replay_endpoint: None,
        topic: String::new(),
        buffer_steps: 1,
    };
    let error = Publisher::start(&config).unwrap_err().to_string();
    assert!(error.contains(&publisher.endpoint().to_string()), "{error}");
}
