//! Waiting is shared between tenants, in virtual time, on the scripted device.

use crate::sim::scenario::Scenario;
use crate::sim::text::Limits;
use crate::sim::world::World;
use paceline_schedule::{RequestId, RequestOutput, SchedulerConfig};
use paceline_types::TokenId;
use std::collections::HashMap;

fn config() -> SchedulerConfig {
    SchedulerConfig {
        slots: 4,
        max_batched_tokens: 64,
        max_step_ns: None,
        max_samples: 64,
        max_masks: 64,
        block_size: 16,
        num_blocks: 300,
        blocks_per_request: 200,
        max_waiting: 2_000,
        drafts: 0,
        recurrent: None,
        prefix_caching: false,
    }
}

fn world(config: SchedulerConfig) -> World {
    World::new(Scenario::quiet(1, config, 2))
}

fn text(kind: u32, len: usize) -> Vec<TokenId> {
    (0..len as u32).map(|i| (i * 7 + kind * 3 + i / 5) % 20).collect()
}

/// Hands in a request of a tenant.
fn ask(world: &mut World, tenant: u32, (prompt, output): (usize, usize), priority: i32) -> RequestId {
    let limits = Limits::length(prompt + output);
    let asked = world.add(&text(tenant, prompt), limits, priority, |new, _| {
        new.tenant = tenant;
    });
    asked.expect("room in the queue")
}

fn ended(outputs: &[RequestOutput]) -> impl Iterator<Item = RequestId> {
    let ended = outputs.iter().filter(|output| output.finish.is_some());
    ended.map(|output| output.id)
}

#[test]
fn one_tenants_many_requests_do_not_hold_up_anothers_first() {
    let mut world = world(config());
    let many: Vec<u64> = (0..500).map(|_| ask(&mut world, 1, (20, 50), 0).0).collect();
    // Somewhere in the middle of it.
    let mut left = 100;
    while left > 0 {
        left -= ended(&world.turn().request_outputs).count().min(left);
    }
    let admitted_before = world.pipeline.runner().admitted.len();
    let other = ask(&mut world, 2, (20, 50), 0);
    while !world.pipeline.runner().admitted.contains(&other.0) {
        world.turn();
    }
    let admitted = &world.pipeline.runner().admitted[admitted_before..];
    let overtaking = admitted.iter().take_while(|name| **name != other.0).count();
    println!("{overtaking} of the {} were let in before it", many.len());
    // The plan that was made when it came may have been submitted with one.
    assert!(overtaking <= 1, "{overtaking} were let in before it");
    world.drain();
    let first: Vec<u64> = world
        .pipeline
        .runner()
        .admitted
        .iter()
        .copied()
        .filter(|name| many.contains(name))
        .collect();
    assert_eq!(first, many, "in order of arrival among themselves");
}

/// What tenants have had: prompts of the requests admitted, and tokens delivered.
#[derive(Default)]
struct Ledger {
    tenant_of: HashMap<u64, (u32, usize)>,
    served: HashMap<u32, usize>,
    seen: usize,
}

impl Ledger {
    fn add(&mut self, id: RequestId, tenant: u32, prompt: usize) {
        self.tenant_of.insert(id.0, (tenant, prompt));
        self.served.entry(tenant).or_default();
    }

    fn note(&mut self, world: &World, outputs: &[RequestOutput]) {
        for name in &world.pipeline.runner().admitted[self.seen..] {
            let (tenant, prompt) = self.tenant_of[name];
            *self.served.entry(tenant).or_default() += prompt;
        }
        self.seen = world.pipeline.runner().admitted.len();
        for output in outputs {
            let (tenant, _) = self.tenant_of[&output.id.0];
            *self.served.entry(tenant).or_default() += output.tokens.len();
        }
    }

    fn apart(&self) -> usize {
        let most = self.served.values().max().copied().unwrap_or(0);
        most - self.served.values().min().copied().unwrap_or(0)
    }
}

#[test]
fn tenants_get_the_same_number_of_tokens_however_they_ask() {
    // Few long prompts; long texts; many small requests.
    let sizes = [(1, (160, 4)), (2, (8, 100)), (3, (10, 10))];
    let mut world = world(config());
    let mut ledger = Ledger::default();
    for (tenant, size) in sizes {
        for _ in 0..8_000 / (size.0 + size.1) {
            let id = ask(&mut world, tenant, size, 0);
            ledger.add(id, tenant, size.0);
        }
    }
    let mut waiting: HashMap<u32, usize> = sizes
        .iter()
        .map(|(tenant, (p, o))| (*tenant, 8_000 / (p + o)))
        .collect();
    // What four requests have yet to pay, and one that was admitted.
    let bound = 5 * 164;
    let mut apart = 0;
    loop {
        let outputs = world.turn().request_outputs;
        ledger.note(&world, &outputs);
        for id in ended(&outputs) {
            *waiting.get_mut(&ledger.tenant_of[&id.0].0).expect("a tenant") -= 1;
        }
        // Until the first has nothing left that waits.
        if waiting.values().any(|left| *left <= 4) {
            break;
        }
        apart = apart.max(ledger.apart());
        assert!(apart <= bound, "{:?}", ledger.served);
    }
    println!("{:?}, at most {apart} apart", ledger.served);
    assert!(
        ledger.served.values().all(|served| *served > 6_000),
        "{:?}",
        ledger.served
    );
    world.drain();
}

#[test]
fn an_urgent_request_comes_before_every_tenant() {
    let mut world = world(SchedulerConfig { slots: 1, ..config() });
    for tenant in [1, 2] {
        for _ in 0..5 {
            ask(&mut world, tenant, (20, 10), 0);
        }
    }
    // The one who has had most by far.
    for _ in 0..20 {
        ask(&mut world, 3, (100, 50), -1);
    }
    let later = ask(&mut world, 4, (20, 10), 1);
    let mut order = Vec::new();
    while !world.pipeline.is_idle() {
        order.extend(ended(&world.turn().request_outputs).map(|id| id.0));
    }
    // The urgent ones, then the two tenants in turns, then the last.
    let mut expected: Vec<u64> = (10..30).collect();
    expected.extend((0..5).flat_map(|turn| [turn, turn + 5]));
    expected.push(later.0);
    assert_eq!(order, expected);
}

#[test]
fn short_memory_pushes_out_nobody_for_ever() {
    // Room for two texts at their full length: the four that run push each other out.
    for depth in 1..=3 {
        let tight = SchedulerConfig {
            num_blocks: 22,
            ..config()
        };
        let mut world = World::new(Scenario::quiet(3, tight, depth));
        for _ in 0..60 {
            ask(&mut world, 1, (20, 150), 0);
        }
        for _ in 0..40 {
            world.turn();
        }
        let other = ask(&mut world, 2, (20, 150), 0);
        let (mut before, mut over) = (0, false);
        while !over {
            for id in ended(&world.turn().request_outputs) {
                over |= id == other;
                before += usize::from(!over);
            }
            world.pipeline.scheduler().check_integrity();
        }
        assert!(world.pipeline.scheduler().counters().preemptions > 0);
        // Those that ran when it came, and those that shared the slots with it.
        println!("depth {depth}: {before} ended before it");
        assert!(before <= 8, "depth {depth}: {before} ended before it");
        world.drain();
    }
}
