//! What a simulated case looks like, drawn from a seed, and how a failing one is made simpler.

use super::rng::Rng;
use paceline_schedule::{RecurrentConfig, SchedulerConfig};

/// How many drafts rows have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// As many as there may be.
    Fixed,
    /// Any number.
    Any,
    /// As many as pay.
    Controlled,
}

/// A case: the engine's configuration and the ways of its callers.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub steps: u64,
    pub config: SchedulerConfig,
    pub depth: usize,
    pub policy: Policy,
    /// Percent of turns with an arrival.
    pub arrivals: usize,
    /// Percent of turns in which somebody is cancelled, or stopped by the host.
    pub cancels: usize,
    pub stops: usize,
    /// Percent of turns in which the host is held up for longer than a step takes.
    pub pauses: usize,
    /// Percent of requests with a deadline, in a group, with a priority, with prompt log-probabilities.
    pub deadlines: usize,
    pub groups: usize,
    pub priorities: usize,
    pub scores: usize,
    /// Percent of requests that are confined, and of those that are to become vectors.
    pub confined: usize,
    pub embeds: usize,
    /// Percent of prompts that continue an earlier text.
    pub continues: usize,
    /// Longest prompt and text.
    pub longest: usize,
    /// Tenants that requests are of.
    pub tenants: u32,
}

impl Scenario {
    pub fn draw(seed: u64, steps: u64) -> Self {
        let mut rng = Rng::new(seed);
        let block_size = rng.pick(&[1, 2, 4, 8, 16, 24, 32]);
        let longest: usize = rng.pick(&[20, 60, 200]).max(block_size * 2);
        let widest = longest.div_ceil(block_size);
        let slots = rng.pick(&[1, 3, 5, 8, 8]);
        // From barely enough for one request to plenty.
        let num_blocks = widest * rng.pick(&[1, 1, 1, 2, 6]) + rng.below(widest.max(2));
        let recurrent = rng.chance(60).then(|| RecurrentConfig {
            snapshots: rng.pick(&[0, 1, 2, 4, 16]),
            interval: rng.pick(&[1, 7, 16, 40, 48, 100, 1600]),
        });
        let max_batched_tokens = rng.pick(&[1, 4, 8, 16, 64, 64, 512]);
        Self {
            seed,
            steps,
            config: SchedulerConfig {
                slots,
                max_batched_tokens,
                // The device takes 10 to 15 microseconds, and 0.1 per token.
                max_step_ns: rng.pick(&[None, Some(1), Some(13_000), Some(20_000)]),
                max_samples: rng.pick(&[1, 4, max_batched_tokens, max_batched_tokens]),
                max_masks: rng.pick(&[1, 2, 5, 64]),
                block_size,
                num_blocks,
                blocks_per_request: widest + rng.below(2),
                max_waiting: rng.pick(&[2, 8, 30]),
                drafts: rng.pick(&[0, 0, 1, 3, 7, 15]),
                recurrent,
                prefix_caching: rng.chance(75),
            },
            depth: rng.within(1, 4),
            policy: rng.pick(&[Policy::Fixed, Policy::Fixed, Policy::Any, Policy::Controlled]),
            arrivals: rng.pick(&[5, 20, 50, 90]),
            cancels: rng.pick(&[0, 1, 5]),
            stops: rng.pick(&[0, 1, 5]),
            pauses: rng.pick(&[0, 5]),
            deadlines: rng.pick(&[0, 0, 20]),
            groups: rng.pick(&[0, 20, 60]),
            priorities: rng.pick(&[0, 0, 40]),
            scores: rng.pick(&[0, 15]),
            continues: rng.pick(&[0, 50, 90]),
            confined: rng.pick(&[0, 0, 30, 90]),
            embeds: rng.pick(&[0, 0, 20, 80]),
            longest,
            tenants: rng.pick(&[1, 1, 2, 5]),
        }
    }

    /// A case in which nothing happens but what the test does.
    pub fn quiet(seed: u64, config: SchedulerConfig, depth: usize) -> Self {
        Self {
            seed,
            steps: 0,
            config,
            depth,
            policy: Policy::Fixed,
            arrivals: 0,
            cancels: 0,
            stops: 0,
            pauses: 0,
            deadlines: 0,
            groups: 0,
            priorities: 0,
            scores: 0,
            confined: 0,
            embeds: 0,
            continues: 0,
            longest: 0,
            tenants: 1,
        }
    }

    /// The same case without one of its complications, one for each.
    pub fn simpler(&self) -> Vec<Self> {
        let changes: [fn(&mut Self); 18] = [
            |s| s.steps /= 2,
            |s| s.steps -= s.steps / 8,
            |s| s.cancels = 0,
            |s| s.stops = 0,
            |s| s.deadlines = 0,
            |s| s.pauses = 0,
            |s| s.groups = 0,
            |s| s.priorities = 0,
            |s| s.scores = 0,
            |s| s.confined = 0,
            |s| s.embeds = 0,
            |s| s.continues = 0,
            |s| s.tenants = 1,
            |s| s.config.drafts = 0,
            |s| s.config.recurrent = None,
            |s| s.depth = 1,
            |s| s.config.slots = 1,
            |s| s.config.prefix_caching = false,
        ];
        let mut simpler = Vec::new();
        for change in changes {
            let mut scenario = self.clone();
            change(&mut scenario);
            if format!("{scenario:?}") != format!("{self:?}") {
                simpler.push(scenario);
            }
        }
        simpler
    }
}
