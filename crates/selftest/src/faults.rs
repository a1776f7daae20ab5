//! Faults on purpose in a running engine: each ends every reply, and says what it was.

use crate::judge::{Outcome, Yardstick, guarded};
use crate::models::ModelsConfig;
use paceline::{
    EngineConfig, EngineParts, Event, Generation, Openers, Request, SpeculationConfig, SpeculationMethod,
};
use paceline_device::Backend;
use paceline_schedule::{RunnerFault, StepRunner};
use paceline_testkit::{overflowing_model, storyteller_in};
use paceline_types::{
    BlockId, DType, PlanRow, SamplingParams, SnapshotId, SnapshotPlan, StepOutput, StepPlan, Work,
    on_state_grid,
};
use paceline_weights::Checkpoint;

/// Requests at a time.
const SLOTS: usize = 2;
/// Tokens of each reply. The first ends soon, and the prompt of the third comes while the second streams: that is when
/// something goes wrong.
const REPLIES: [usize; 3] = [30, 800, 800];
/// The prompts of the first two are through with this step.
const STEP: u64 = 10;
/// Tokens of a prompt, and of a step.
const PROMPT: usize = 150;
const BUDGET: usize = 64;

/// A fault on purpose.
struct Plant<B: Backend> {
    name: &'static str,
    fault: Fault<B>,
    /// What the cause of it must have in it.
    word: &'static str,
}

/// What is done to the engine when the third prompt comes.
enum Fault<B: Backend> {
    /// Nothing: the model's own logits are at fault, from the first prompt on.
    Logits,
    /// A change of its plan row, as a defect of the scheduler would make.
    Row(fn(&mut PlanRow)),
    /// Something that the device does not survive.
    Device(fn(&B)),
}

impl<B: Backend> Plant<B> {
    fn new(name: &'static str, fault: Fault<B>, word: &'static str) -> Self {
        Self { name, fault, word }
    }

    /// All of them. The one that the device does not survive comes last: nothing can be done with it afterwards.
    fn all(openers: &Openers<B>) -> impl Iterator<Item = Self> {
        let lose = openers.lose.map(Fault::Device);
        [
            Self::new("planted: a bad block", Fault::Row(bad_block), "block"),
            Self::new("planted: a bad snapshot", Fault::Row(bad_snapshot), "snapshot"),
            Self::new("planted: a bad token", Fault::Row(bad_token), "token"),
            Self::new("planted: logits that are NaN", Fault::Logits, "not finite"),
        ]
        .into_iter()
        .chain(lose.map(|lose| Self::new("lost device", lose, "CUDA_ERROR")))
    }

    /// What is wrong with the end of a reply.
    fn complaint(&self, reply: usize, cause: Option<&str>) -> Option<String> {
        let fails = reply > 0 || matches!(self.fault, Fault::Logits);
        match cause {
            Some(cause) if !fails => Some(format!("it failed before anything was wrong: {cause}")),
            Some(cause) if !cause.contains(self.word) => Some(format!("the cause is `{cause}`")),
            None if fails => Some("it ended as if nothing were wrong".to_owned()),
            _ => None,
        }
    }
}

/// Plants each fault in an engine of its own and reads what its replies say. `report` is told how each did as soon as it is
/// through.
pub fn faults<B: Backend>(
    openers: &Openers<B>,
    config: &ModelsConfig,
    report: &mut dyn FnMut(&Outcome),
) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for plant in Plant::all(openers) {
        if config
            .only
            .as_ref()
            .is_some_and(|only| !plant.name.contains(only))
        {
            continue;
        }
        let mut outcome = Outcome::new(plant.name, Yardstick::Law);
        match guarded(|| causes(openers, config, &plant.fault)) {
            Ok(causes) => {
                outcome.cases = causes.len();
                for (reply, cause) in causes.iter().enumerate() {
                    if let Some(why) = plant.complaint(reply, cause.as_deref()) {
                        outcome.miss(&format!("reply {reply}"), &why);
                    }
                }
            }
            Err(why) => outcome.miss("all of it", &why),
        }
        report(&outcome);
        outcomes.push(outcome);
    }
    outcomes
}

/// What the replies of an engine end with.
fn causes<B: Backend>(
    openers: &Openers<B>,
    config: &ModelsConfig,
    fault: &Fault<B>,
) -> Result<Vec<Option<String>>, String> {
    let stories = storyteller_in(&config.root);
    let (checkpoint, plant) = match *fault {
        Fault::Logits => (overflowing_model(&stories, config.seed), Fault::Logits),
        Fault::Row(change) => (stories, Fault::Row(change)),
        Fault::Device(lose) => (stories, Fault::Device(lose)),
    };
    let device = (openers.open)(DType::BF16).map_err(|error| error.to_string())?;
    let parts = load(device.clone(), &checkpoint)?;
    let around = |runner| Meddled {
        runner,
        device,
        fault: plant,
    };
    let handle = parts.start_around(around).map_err(|error| error.to_string())?;
    let ask = |(seed, tokens)| handle.generate(request(seed, tokens));
    let replies: Result<Vec<Generation>, _> = REPLIES.into_iter().enumerate().map(ask).collect();
    let replies = replies.map_err(|error| error.to_string())?;
    Ok(replies.into_iter().map(cause).collect())
}

fn load<B: Backend>(device: B, checkpoint: &Checkpoint) -> Result<EngineParts<B>, String> {
    let config = EngineConfig {
        max_num_seqs: SLOTS,
        max_num_batched_tokens: BUDGET,
        max_model_len: Some(1024),
        kv_cache_memory: Some(64 << 20),
        constraints: false,
        speculation: SpeculationConfig {
            method: SpeculationMethod::Off,
            ..SpeculationConfig::default()
        },
        ..EngineConfig::default()
    };
    EngineParts::load(device, checkpoint, config, &|_| {}).map_err(|error| error.to_string())
}

fn request(seed: usize, max_tokens: usize) -> Request {
    Request {
        prompt: (0..PROMPT).map(|at| ((at * 7 + seed) % 250) as u32).collect(),
        sampling: SamplingParams {
            max_tokens,
            ignore_eos: true,
            ..SamplingParams::default()
        }
        .into(),
        ..Request::default()
    }
}

/// Why a reply ended early.
fn cause(mut reply: Generation) -> Option<String> {
    let mut cause = None;
    while let Some(event) = reply.next_blocking() {
        if let Event::Failed(failure) = event {
            cause = Some(failure.to_string());
        }
    }
    cause
}

/// A runner with a fault in front of it.
struct Meddled<R, B: Backend> {
    runner: R,
    device: B,
    fault: Fault<B>,
}

impl<R: StepRunner, B: Backend> StepRunner for Meddled<R, B> {
    type InFlight = R::InFlight;

    fn submit(&mut self, plan: &StepPlan) -> Result<R::InFlight, RunnerFault> {
        let mut plan = plan.clone();
        let prompt = |row: &&mut PlanRow| matches!(row.work, Work::Prefill { .. });
        if plan.step > STEP
            && let Some(row) = plan.rows.iter_mut().find(prompt)
        {
            match self.fault {
                Fault::Logits => {}
                Fault::Row(change) => change(row),
                Fault::Device(lose) => lose(&self.device),
            }
        }
        self.runner.submit(&plan)
    }

    fn collect(&mut self, flight: R::InFlight) -> Result<StepOutput, RunnerFault> {
        self.runner.collect(flight)
    }

    fn host_waits(&self) -> u64 {
        self.runner.host_waits()
    }
}

fn bad_block(row: &mut PlanRow) {
    row.new_blocks.push((0, BlockId(u32::MAX / 2)));
}

/// Where the row's tokens are sure to come by.
fn bad_snapshot(row: &mut PlanRow) {
    if let Work::Prefill { start, tokens, .. } = &row.work {
        row.snapshot = Some(SnapshotPlan {
            position: on_state_grid(start + tokens.len()),
            id: SnapshotId(u32::MAX / 2),
        });
    }
}

fn bad_token(row: &mut PlanRow) {
    if let Work::Prefill { tokens, .. } = &mut row.work {
        tokens[0] = u32::MAX / 2;
    }
}
