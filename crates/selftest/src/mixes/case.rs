//! Random mixes of requests: what the identity matrix is made of.

use super::{Asked, Bench, Devices, Drafter, Script, Setup, Whimsy};
use paceline_runner::RowsRead;
use paceline_schedule::Counters;
use paceline_testkit::Random;
use paceline_types::{DType, SamplingParams, TokenId};

/// Models with recurrent layers of every kind, two dense ones, and the default model.
const MODELS: [&str; 10] = [
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_next",
    "granite_h",
    "nemotron_h",
    "falcon_h1",
    "bamba",
    "llama",
    "qwen3",
    "storyteller",
];

const DRAFTERS: [Drafter; 7] = [
    Drafter::Off,
    Drafter::Ngram,
    Drafter::Mtp,
    Drafter::Eagle3,
    Drafter::Itself,
    Drafter::Other,
    Drafter::Chain,
];

/// Rows of output matrices that drafts come from: one, a panel and one more, and most of those that texts have.
const PARTS: [usize; 4] = [1, 17, 128, 240];

/// Some requests and a way to run them.
#[derive(Clone, Debug)]
pub struct Mix {
    /// The way.
    pub setup: Setup,
    /// The requests.
    pub requests: Vec<Asked>,
}

impl Mix {
    /// A mix at random. With `scripts`, drafters may know the future and lie about it.
    pub fn random(random: &mut Random, scripts: bool) -> Self {
        let setup = setup(random, scripts);
        let shared = tokens(random, 0..120);
        let count = 1 + random.below(6);
        let requests = (0..count).map(|index| request(random, index as u64, &shared, setup.block_size));
        Self {
            requests: requests.collect(),
            setup,
        }
    }

    /// Mixes with a part of this one left out or made plain.
    fn simpler(&self) -> Vec<Self> {
        let mut simpler = Vec::new();
        for index in 0..self.requests.len() {
            let mut requests = self.requests.clone();
            requests.remove(index);
            simpler.push(requests);
            for change in SIMPLER_REQUESTS {
                let mut requests = self.requests.clone();
                change(&mut requests[index]);
                simpler.push(requests);
            }
        }
        let fewer = simpler.into_iter().map(|requests| Self {
            requests,
            setup: self.setup.clone(),
        });
        let plainer = SIMPLER_SETUPS.iter().map(|change| {
            let mut mix = self.clone();
            change(&mut mix.setup);
            mix
        });
        let same = format!("{self:?}");
        fewer
            .chain(plainer)
            .filter(|mix| !mix.requests.is_empty() && format!("{mix:?}") != same)
            .collect()
    }
}

const SIMPLER_SETUPS: [fn(&mut Setup); 9] = [
    |setup| setup.rows_read = RowsRead::Whole,
    |setup| setup.depth = 1,
    |setup| setup.depth_control = false,
    |setup| setup.spare_blocks = None,
    |setup| setup.caching = false,
    |setup| (setup.drafter, setup.drafts) = (Drafter::Off, 0),
    |setup| setup.drafts = setup.drafts.min(1),
    |setup| setup.batch = 1,
    |setup| setup.budget = 512,
];

const SIMPLER_REQUESTS: [fn(&mut Asked); 6] = [
    |request| request.cancelled = None,
    |request| request.arrives = 0,
    |request| request.constraint = None,
    |request| request.params.max_tokens = (request.params.max_tokens / 2).max(1),
    |request| request.prompt.truncate((request.prompt.len() / 2).max(1)),
    |request| {
        request.params = SamplingParams {
            temperature: request.params.temperature,
            seed: request.params.seed,
            max_tokens: request.params.max_tokens,
            ..SamplingParams::default()
        };
    },
];

/// Mixes that are tried while a failing one is made smaller.
const ATTEMPTS: usize = 200;

/// The smallest mix that still fails, starting from one that does.
pub fn smallest(mix: Mix, mut fails: impl FnMut(&Mix) -> bool) -> Mix {
    let mut smallest = mix;
    let mut attempts = 0;
    'smaller: loop {
        for simpler in smallest.simpler() {
            attempts += 1;
            if attempts > ATTEMPTS {
                return smallest;
            }
            if fails(&simpler) {
                smallest = simpler;
                continue 'smaller;
            }
        }
        return smallest;
    }
}

/// Runs a mix and compares each request with itself alone. What differs is said in words.
pub fn check<D: Devices>(bench: &Bench<D>, seen: &mut Seen, mix: &Mix) -> Result<(), String> {
    let outcome = bench.run(&mix.setup, &mix.requests);
    seen.add(mix, &outcome.counters);
    for (index, (request, found)) in mix.requests.iter().zip(&outcome.given).enumerate() {
        let alone = bench.alone_as((mix.setup.model, mix.setup.dtype), request);
        if let Some(difference) = found.differs_from(&alone) {
            return Err(format!("request {index}: {difference}"));
        }
    }
    Ok(())
}

/// What mixes were made of: a matrix in which nothing is ever accepted or pushed out proves little.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Requests.
    pub requests: usize,
    /// Drafts that were verified.
    pub drafted: u64,
    /// And those that held.
    pub accepted: u64,
    /// Requests that were pushed out and came back.
    pub preemptions: u64,
    /// Prompts that were found in the cache.
    pub hits: u64,
    /// Recurrent states that were found there.
    pub restored: u64,
    /// Drafters with accepted drafts.
    pub useful: Vec<Drafter>,
}

impl Seen {
    fn add(&mut self, mix: &Mix, counters: &Counters) {
        self.requests += mix.requests.len();
        self.drafted += counters.drafts_verified;
        self.accepted += counters.drafts_accepted;
        self.preemptions += counters.preemptions;
        self.hits += counters.prefix_hits;
        self.restored += counters.snapshots_used;
        let drafter = mix.setup.drafter;
        if counters.drafts_accepted > 0 && !self.useful.contains(&drafter) {
            self.useful.push(drafter);
        }
    }
}

fn setup(random: &mut Random, scripts: bool) -> Setup {
    let model = *random.pick(&MODELS);
    let drafter = if scripts && random.once_in(3) {
        Drafter::Scripted(*random.pick(&Script::ALL))
    } else {
        *random.pick(&DRAFTERS)
    };
    let drafts = *random.pick(&[1, 2, 3, 5, 7, 8, 15]);
    let dtype = random.once_in(3).then_some(DType::BF16);
    Setup {
        model,
        dtype: dtype.filter(|_| model != "storyteller"),
        drafter,
        drafts: if drafter == Drafter::Off { 0 } else { drafts },
        rows_read: match random.below(4) {
            0 => RowsRead::Part(*random.pick(&PARTS)),
            1 => RowsRead::PartWhereItFits(*random.pick(&PARTS)),
            _ => RowsRead::Whole,
        },
        depth_control: random.once_in(2),
        depth: 1 + random.below(4),
        batch: *random.pick(&[1, 3, 16]),
        budget: *random.pick(&[8, 64, 512]),
        block_size: *random.pick(&[1, 4, 8, 16, 24, 32]),
        threads: 1 + random.below(2),
        caching: random.once_in(2),
        spare_blocks: if random.once_in(2) {
            Some(random.below(12))
        } else {
            None
        },
        snapshots: random.below(12),
    }
}

/// Prompts share a beginning, repeat themselves, or have a length just around the block size.
fn request(random: &mut Random, index: u64, shared: &[TokenId], block_size: usize) -> Asked {
    let own = match random.below(5) {
        0 => tokens(random, 1..2),
        1 => tokens(random, 100..180),
        _ => tokens(random, 1..40),
    };
    let mut prompt = if random.once_in(2) {
        shared.to_vec()
    } else {
        Vec::new()
    };
    prompt.extend(&own);
    if random.once_in(2) {
        prompt.extend(&own);
    }
    if random.once_in(5) {
        prompt.resize((block_size + random.below(3)).saturating_sub(1).max(1), 7);
    }
    Asked {
        prompt,
        params: params(random),
        priority: random.below(3) as i32 - 1,
        arrives: random.below(20),
        cancelled: if random.once_in(6) {
            Some(random.below(12))
        } else {
            None
        },
        group: random.once_in(7).then_some(index),
        constraint: random.once_in(4).then(|| Whimsy::named(index)),
        undrafted: random.once_in(7),
    }
}

fn params(random: &mut Random) -> SamplingParams {
    let between = |random: &mut Random, low: f32, high: f32| low + (high - low) * (0.5 + random.number(0.5));
    let max_tokens = 1 + random.below(39);
    let mut params = SamplingParams {
        temperature: 0.0,
        seed: random.bits(),
        max_tokens,
        min_tokens: random.below(6).min(max_tokens),
        stop_tokens: tokens(random, 0..3),
        logprobs: if random.once_in(2) {
            Some(random.below(4))
        } else {
            None
        },
        ..SamplingParams::default()
    };
    if random.once_in(2) {
        params.temperature = between(random, 0.2, 1.8);
    }
    if random.once_in(2) {
        params.top_p = between(random, 0.3, 1.0);
    }
    if random.once_in(2) {
        params.top_k = 1 + random.below(59) as u32;
    }
    if random.once_in(2) {
        params.min_p = between(random, 0.0, 0.3);
    }
    if random.once_in(3) {
        params.repetition_penalty = between(random, 0.7, 1.5);
        params.presence_penalty = between(random, -1.0, 1.0);
        params.frequency_penalty = between(random, -1.0, 1.0);
    }
    let biased = tokens(random, 0..3).into_iter();
    params.logit_bias = biased.map(|token| (token, random.number(5.0))).collect();
    params.bad_words = (0..random.below(3)).map(|_| tokens(random, 1..3)).collect();
    params
}

/// A random number of tokens that every model knows.
fn tokens(random: &mut Random, count: std::ops::Range<usize>) -> Vec<TokenId> {
    let count = count.start + random.below(count.len());
    (0..count).map(|_| random.below(250) as TokenId).collect()
}
