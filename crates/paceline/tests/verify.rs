//! Windows of drafts through scheduler, pipeline and device: whatever is drafted, tokens and log-probabilities are
//! those of a run without drafts, to the last bit.

use paceline_device_cpu::{Cpu, CpuOptions, Instructions};
use paceline_runner::{DeviceRunner, InFlight, RunnerConfig};
use paceline_schedule::{
    Counters, Delivery, NewRequest, Pipeline, RealClock, RecurrentConfig, RequestId, RunnerFault, Scheduler,
    SchedulerConfig, StepRunner,
};
use paceline_testkit::{Fixture, storyteller};
use paceline_types::{Admission, PlanRow, SamplingParams, StepOutput, StepPlan, TokenId, Work};
use paceline_weights::Checkpoint;
use std::sync::Arc;

/// Every reference model with recurrent layers, two without, and the default model.
const MODELS: [&str; 13] = [
    "bamba",
    "falcon_h1",
    "falcon_h1_norm",
    "granite_h",
    "granite_h_moe",
    "nemotron_h",
    "nemotron_h_moe",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_next",
    "llama",
    "qwen3",
    "storyteller",
];
const WINDOWS: [usize; 6] = [1, 2, 3, 5, 8, 15];
const BLOCK: usize = 8;
/// Turns of the loop after which a run counts as stuck.
const TURNS: usize = 5_000;

/// How drafts are made from the text that is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drafter {
    Right,
    Wrong,
    /// Each draft is right with one chance in two, as the position has it.
    Random,
    /// A right window, then one that is wrong from its middle on.
    Alternating,
}

impl Drafter {
    const ALL: [Self; 4] = [Self::Right, Self::Wrong, Self::Random, Self::Alternating];

    /// Up to `most` drafts behind `generated` tokens of a text.
    fn drafts(self, text: &[TokenId], generated: usize, most: usize) -> Vec<TokenId> {
        let drafts = (0..most).map(|place| {
            let position = generated + place;
            let holds = match self {
                Self::Right => true,
                Self::Wrong => false,
                Self::Random => (position as u32).wrapping_mul(2_654_435_761) >> 31 == 0,
                Self::Alternating => generated.is_multiple_of(2) || place < most / 2,
            };
            let next = text.get(position).copied().unwrap_or(3);
            if holds { next } else { (next + 1) % 200 }
        });
        drafts.collect()
    }
}

/// A request of the test; its seed is its name.
#[derive(Clone)]
struct Asked {
    prompt: Vec<TokenId>,
    params: SamplingParams,
    arrives: usize,
}

/// What a request gave.
#[derive(Clone, Default, PartialEq, Debug)]
struct Given {
    tokens: Vec<TokenId>,
    /// Chosen and alternatives, by their bits.
    logprobs: Vec<u32>,
}

fn requests() -> Vec<Asked> {
    let shared: Vec<TokenId> = (0..40).map(|i| (i * 37 + 11) % 200).collect();
    let prompts = [
        shared[..1].to_vec(),
        [&shared[..32], &[5, 6, 7]].concat(),
        shared[3..20].to_vec(),
        [&shared[..32], &[9; 9]].concat(),
    ];
    let arrivals = [0, 0, 1, 5];
    let rows = prompts.into_iter().zip(arrivals).enumerate();
    rows.map(|(seed, (prompt, arrives))| {
        let odd = seed % 2 == 1;
        Asked {
            prompt,
            arrives,
            params: SamplingParams {
                temperature: if odd { 0.9 } else { 0.0 },
                top_k: if odd { 40 } else { 0 },
                frequency_penalty: if seed == 3 { 0.4 } else { 0.0 },
                stop_tokens: if seed == 2 { vec![17, 70, 120] } else { Vec::new() },
                seed: seed as u64,
                max_tokens: 21 + 3 * seed,
                logprobs: Some(2),
                ..SamplingParams::default()
            },
        }
    })
    .collect()
}

/// A way to run the requests.
#[derive(Clone, Copy, Debug)]
struct Case {
    window: usize,
    drafter: Drafter,
    depth: usize,
    batch: usize,
    caching: bool,
    /// Pages for less than all requests at a time.
    tight: bool,
}

/// The device with a drafter in front of it that knows how the texts go on. It drafts before every step; since it
/// knows what will be accepted, it can do so with any number of steps in flight.
struct Scripted {
    inner: DeviceRunner<Cpu>,
    drafter: Drafter,
    texts: Vec<Vec<TokenId>>,
    slots: Vec<Option<Place>>,
}

/// Where a slot's request is once all submitted steps have run.
#[derive(Clone)]
struct Place {
    generation: u32,
    request: usize,
    prompt: usize,
    max_length: usize,
    generated: usize,
}

impl Scripted {
    fn admit(&mut self, admission: &Admission) {
        self.slots[admission.slot.0 as usize] = Some(Place {
            generation: admission.generation,
            request: admission.params.seed as usize,
            prompt: admission.prompt_tokens,
            max_length: admission.max_length,
            generated: 0,
        });
    }

    /// Drafts for a row and returns how many tokens it will yield.
    fn foresee(&mut self, row: &PlanRow) -> Option<usize> {
        let place = self.slots[row.slot.0 as usize].as_mut()?;
        if place.generation != row.generation {
            return None;
        }
        let text = self.texts.get(place.request)?;
        match &row.work {
            Work::Prefill { last: false, .. } => Some(0),
            Work::Prefill { start, tokens, .. } => {
                place.generated = start + tokens.len() - place.prompt + 1;
                Some(1)
            }
            Work::Verify { drafts: planned } => {
                // One more than planned: the device cuts what the plan has no room for.
                let drafts = self.drafter.drafts(text, place.generated, (planned + 1).min(15));
                self.inner.write_drafts(row.slot, &drafts);
                let rest = &text[place.generated.min(text.len())..];
                let room = (place.max_length - place.prompt - place.generated).saturating_sub(1);
                let run = drafts.iter().take((*planned).min(room));
                let accepted = run.zip(rest).take_while(|(draft, next)| draft == next).count();
                let count = (accepted + 1).min(rest.len());
                place.generated += count;
                Some(count)
            }
        }
    }
}

impl StepRunner for Scripted {
    type InFlight = (InFlight<Cpu>, Vec<Option<usize>>);

    fn submit(&mut self, plan: &StepPlan) -> Result<Self::InFlight, RunnerFault> {
        for admission in &plan.admissions {
            self.admit(admission);
        }
        let foreseen = plan.rows.iter().map(|row| self.foresee(row)).collect();
        Ok((self.inner.submit(plan)?, foreseen))
    }

    fn collect(&mut self, (step, foreseen): Self::InFlight) -> Result<StepOutput, RunnerFault> {
        let output = self.inner.collect(step)?;
        for (row, count) in output.rows.iter().zip(foreseen) {
            if let Some(count) = count {
                assert_eq!(row.tokens.len(), count, "step {}", output.step);
            }
        }
        Ok(output)
    }
}

fn pipeline(checkpoint: &Checkpoint, case: Case, texts: Vec<Vec<TokenId>>) -> Pipeline<Scripted, RealClock> {
    let backend = Cpu::new(CpuOptions {
        threads: 1,
        instructions: Instructions::detect(),
    });
    let model = paceline_models::load(&backend, checkpoint, None, &|_| {}).expect("the fixture loads");
    let blocks_per_slot = 80_usize.div_ceil(BLOCK);
    let blocks = if case.tight {
        blocks_per_slot + 2
    } else {
        8 * blocks_per_slot
    };
    let recurrent = !model.state_shapes(1).is_empty();
    let snapshots = if recurrent { 6 } else { 0 };
    let budget = 64;
    let config = RunnerConfig {
        slots: case.batch,
        tokens: budget,
        samples: budget,
        blocks,
        blocks_per_slot,
        block_size: BLOCK,
        snapshots,
        drafts: case.window,
    };
    let scheduler = Scheduler::new(SchedulerConfig {
        slots: case.batch,
        max_batched_tokens: budget,
        max_samples: budget,
        block_size: BLOCK,
        num_blocks: blocks,
        blocks_per_request: blocks_per_slot,
        max_waiting: 16,
        drafts: case.window,
        recurrent: recurrent.then_some(RecurrentConfig {
            snapshots,
            interval: 2 * BLOCK,
        }),
        prefix_caching: case.caching,
    });
    let clock = RealClock::since(backend.started());
    let runner = Scripted {
        inner: DeviceRunner::new(backend, model, config).expect("memory for a small model"),
        drafter: case.drafter,
        texts,
        slots: vec![None; case.batch],
    };
    Pipeline::new(scheduler, runner, clock, case.depth)
}

fn run(
    checkpoint: &Checkpoint,
    case: Case,
    requests: &[Asked],
    texts: Vec<Vec<TokenId>>,
) -> (Vec<Given>, Counters) {
    let mut pipeline = pipeline(checkpoint, case, texts);
    let mut given = vec![Given::default(); requests.len()];
    let mut ended = 0;
    for turn in 0.. {
        assert!(turn < TURNS, "the loop does not end");
        for (index, request) in requests.iter().enumerate() {
            if request.arrives == turn {
                let new = new_request(index, request);
                pipeline.scheduler_mut().add(new).expect("the request fits");
            }
        }
        for delivery in pipeline.step().expect("the device works").deliveries {
            ended += usize::from(delivery.finish.is_some());
            given[delivery.id.0 as usize].take(delivery);
        }
        pipeline.scheduler().check_integrity();
        if ended == requests.len() && pipeline.is_idle() {
            break;
        }
    }
    (given, pipeline.scheduler().counters())
}

fn new_request(index: usize, request: &Asked) -> NewRequest {
    NewRequest {
        id: RequestId(index as u64),
        prompt: request.prompt.as_slice().into(),
        stop_tokens: request.params.stop_tokens.clone(),
        max_length: request.prompt.len() + request.params.max_tokens,
        params: Arc::new(request.params.clone()),
        // The last to come pushes others out if there is no room.
        priority: -i32::from(index == 3),
        deadline: None,
        salt: 0,
        group: None,
        speculation: NewRequest::ANY_DRAFTS,
    }
}

impl Given {
    fn take(&mut self, delivery: Delivery) {
        self.tokens.extend(delivery.tokens);
        for row in delivery.logprobs {
            self.logprobs.push(row.chosen.to_bits());
            let top = row.top.iter();
            self.logprobs
                .extend(top.flat_map(|(token, value)| [*token, value.to_bits()]));
        }
    }
}

/// What each request gives alone and without drafts.
fn alone(checkpoint: &Checkpoint, requests: &[Asked]) -> Vec<Given> {
    let plain = Case {
        window: 0,
        drafter: Drafter::Wrong,
        depth: 1,
        batch: 1,
        caching: false,
        tight: false,
    };
    let solo = |request: &Asked| {
        let request = Asked {
            arrives: 0,
            ..request.clone()
        };
        run(checkpoint, plain, &[request], Vec::new())
            .0
            .pop()
            .expect("one request")
    };
    requests.iter().map(solo).collect()
}

/// Sums over the cases of a model: what must have happened somewhere for the test to mean anything.
#[derive(Default)]
struct Seen {
    preemptions: u64,
    hits: u64,
    restored: u64,
    accepted: u64,
    rejected: u64,
}

impl Seen {
    fn add(&mut self, drafter: Drafter, counters: &Counters) {
        if drafter == Drafter::Wrong {
            assert_eq!(counters.drafts_accepted, 0);
        }
        self.preemptions += counters.preemptions;
        self.hits += counters.prefix_hits;
        self.restored += counters.snapshots_used;
        self.accepted += counters.drafts_accepted;
        self.rejected += counters.drafts_verified - counters.drafts_accepted;
    }
}

fn prove(model: &str, shift: usize) {
    let checkpoint = match model {
        "storyteller" => storyteller(),
        name => Fixture::read(name).checkpoint(),
    };
    let requests = requests();
    let expected = alone(&checkpoint, &requests);
    let texts: Vec<Vec<TokenId>> = expected.iter().map(|given| given.tokens.clone()).collect();
    let mut seen = Seen::default();
    for (offset, window) in WINDOWS.into_iter().enumerate() {
        for drafter in Drafter::ALL {
            // The plain loop with room for all, and every depth in turn without.
            let deep = 1 + (shift + offset) % 4;
            for (depth, caching, tight) in [(1, true, false), (deep, caching_at(drafter), true)] {
                let case = Case {
                    window,
                    drafter,
                    depth,
                    batch: 3,
                    caching,
                    tight,
                };
                let (given, counters) = run(&checkpoint, case, &requests, texts.clone());
                for (index, (given, expected)) in given.iter().zip(&expected).enumerate() {
                    assert_eq!(given, expected, "{model}, {case:?}, request {index}");
                }
                seen.add(drafter, &counters);
            }
        }
    }
    assert!(seen.preemptions > 0, "{model}");
    assert!(seen.hits > 0, "{model}");
    assert!(seen.accepted > 0 && seen.rejected > 0, "{model}");
    let recurrent = !matches!(model, "llama" | "qwen3");
    assert_eq!(seen.restored > 0, recurrent, "{model}");
}

/// Preempted requests come back from a cache for some drafters and from nothing for others.
fn caching_at(drafter: Drafter) -> bool {
    matches!(drafter, Drafter::Right | Drafter::Random)
}

#[test]
fn whatever_is_drafted_the_text_is_that_of_plain_decoding() {
    for (index, model) in MODELS.into_iter().enumerate() {
        prove(model, index);
    }
}
