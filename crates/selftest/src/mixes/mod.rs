//! Requests through scheduler, pipeline and any device, with any drafter: what tests of identity are made of.

mod case;
mod devices;
mod engine;
mod programs;
mod scripted;
mod whimsy;

pub use case::{Mix, Seen, check, smallest};
pub use devices::{CheckedCpu, Devices, Opened};
pub use programs::{Programs, Said};
pub use scripted::{Script, Texts};
pub use whimsy::Whimsy;

use engine::{Engine, budget, drive, runner_config, watch};
use paceline_device::Backend;
use paceline_runner::RowsRead;
use paceline_schedule::{Counters, PipelineTotals, StepRecord};
use paceline_testkit::{Fixture, repository, storyteller_in};
use paceline_types::{Constraint, DType, SamplingParams, TokenId, TokenLogprobs};
use paceline_weights::Checkpoint;
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

/// The drafter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drafter {
    /// None.
    Off,
    /// The text itself.
    Ngram,
    /// The model's own head, if it has one, else none.
    Mtp,
    /// A head of random weights: mostly wrong, and right by chance.
    Eagle3,
    /// The model itself: right as long as it sees what the model sees.
    Itself,
    /// Another model with the same vocabulary, recurrent if the model is not.
    Other,
    /// n-gram, then the model's own head or the random one.
    Chain,
    /// One that knows the future.
    Scripted(Script),
}

/// A way to run requests.
#[derive(Clone, Debug)]
pub struct Setup {
    /// A reference model by its folder's name, or `storyteller`.
    pub model: &'static str,
    /// The type that its weights are converted to, if any.
    pub dtype: Option<DType>,
    /// Whose drafts are verified.
    pub drafter: Drafter,
    /// Most drafts per plan row.
    pub drafts: usize,
    /// What a neural drafter reads of its output matrix.
    pub rows_read: RowsRead,
    /// Whether their number is measured and chosen.
    pub depth_control: bool,
    /// Steps in flight.
    pub depth: usize,
    /// Requests at a time.
    pub batch: usize,
    /// Tokens of a step.
    pub budget: usize,
    /// Tokens of a block.
    pub block_size: usize,
    /// Of a CPU.
    pub threads: usize,
    /// Whether prefixes are found again.
    pub caching: bool,
    /// Blocks beyond what the longest request needs, or plenty.
    pub spare_blocks: Option<usize>,
    /// Saved recurrent states.
    pub snapshots: usize,
}

impl Setup {
    /// One request at a time, one step in flight, no drafts, no cache.
    pub fn plain(model: &'static str) -> Self {
        Self {
            model,
            dtype: None,
            drafter: Drafter::Off,
            drafts: 0,
            rows_read: RowsRead::Whole,
            depth_control: false,
            depth: 1,
            batch: 1,
            budget: 512,
            block_size: 16,
            threads: 1,
            caching: false,
            spare_blocks: None,
            snapshots: 0,
        }
    }
}

/// A request.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Known tokens.
    pub prompt: Vec<TokenId>,
    /// How its tokens are chosen.
    pub params: SamplingParams,
    /// Lower is sooner.
    pub priority: i32,
    /// Turn of the loop it arrives at.
    pub arrives: usize,
    /// Turns after its arrival that it is cancelled at.
    pub cancelled: Option<usize>,
    /// A member of a group with this name.
    pub group: Option<u64>,
    /// What its text must follow, and a name for it.
    pub constraint: Option<(String, Arc<dyn Constraint>)>,
    /// Takes no drafts, whoever drafts for the others.
    pub undrafted: bool,
}

impl Asked {
    /// A request that arrives first and stays to its end.
    pub fn new(prompt: Vec<TokenId>, params: SamplingParams) -> Self {
        Self {
            prompt,
            params,
            priority: 0,
            arrives: 0,
            cancelled: None,
            group: None,
            constraint: None,
            undrafted: false,
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By itself.
    Finished,
    /// It was cancelled.
    Cancelled,
    /// Its constraint left nothing.
    DeadEnd,
}

/// What a request gave.
#[derive(Clone, Debug)]
pub struct Given {
    /// Its text.
    pub tokens: Vec<TokenId>,
    /// What was reported about it.
    pub logprobs: Vec<TokenLogprobs>,
    /// How it ended.
    pub ending: Ending,
}

impl Given {
    fn empty() -> Self {
        Self {
            tokens: Vec::new(),
            logprobs: Vec::new(),
            ending: Ending::Cancelled,
        }
    }

    /// Every log-probability of the first tokens by its bits.
    pub fn bits(&self, tokens: usize) -> Vec<u32> {
        let rows = self.logprobs.iter().take(tokens);
        rows.flat_map(|row| {
            let top = row
                .top
                .iter()
                .flat_map(|(token, value)| [*token, value.to_bits()]);
            std::iter::once(row.chosen.to_bits())
                .chain(top)
                .collect::<Vec<_>>()
        })
        .collect()
    }

    /// What is wrong with it, if it should be what `alone` gave, or a beginning of it for a cancelled request.
    pub fn differs_from(&self, alone: &Self) -> Option<String> {
        let length = self.tokens.len();
        let complete = self.ending != Ending::Finished || length == alone.tokens.len();
        let beginning = length <= alone.tokens.len() && self.tokens == alone.tokens[..length];
        let bits = self.bits(length) == alone.bits(length);
        if complete && beginning && bits {
            return None;
        }
        Some(format!(
            "{:?} {:?}\n  alone: {:?}\n  log-probabilities equal: {bits}",
            self.ending, self.tokens, alone.tokens
        ))
    }
}

/// What a run did.
pub struct Outcome {
    /// Per request.
    pub given: Vec<Given>,
    /// Of the scheduler.
    pub counters: Counters,
    /// Of the step loop.
    pub totals: PipelineTotals,
}

/// A model as it is loaded.
type Loaded = (&'static str, Option<DType>);

/// Engines that run one request after the other, by model and longest text.
type PlainEngines<B> = HashMap<(Loaded, usize), Engine<B>>;

/// Checkpoints, plain engines and solo runs on some devices, shared by many runs.
pub struct Bench<D: Devices> {
    devices: D,
    /// The repository that models come from.
    root: PathBuf,
    checkpoints: RefCell<HashMap<String, Rc<Checkpoint>>>,
    plain: RefCell<PlainEngines<D::Device>>,
    solo: RefCell<HashMap<String, Rc<Given>>>,
}

/// What tests run on: the CPU, with an eye on what is asked of it.
pub type CpuBench = Bench<CheckedCpu>;

impl Default for CpuBench {
    fn default() -> Self {
        Self::new(CheckedCpu::default(), repository())
    }
}

impl CpuBench {
    /// A bench whose keys and values are all stored in one type.
    pub fn with_kv(kv: DType) -> Self {
        Self::new(CheckedCpu { kv: Some(kv) }, repository())
    }
}

impl<D: Devices> Bench<D> {
    /// A bench on these devices, with the models of the repository at `root`.
    pub fn new(devices: D, root: PathBuf) -> Self {
        Self {
            devices,
            root,
            checkpoints: RefCell::default(),
            plain: RefCell::default(),
            solo: RefCell::default(),
        }
    }

    fn checkpoint(&self, model: &str) -> Rc<Checkpoint> {
        let open = || match model {
            "storyteller" => Rc::new(storyteller_in(&self.root)),
            name => Rc::new(Fixture::read_in(&self.root, name).checkpoint()),
        };
        let mut checkpoints = self.checkpoints.borrow_mut();
        Rc::clone(checkpoints.entry(model.to_owned()).or_insert_with(open))
    }

    /// Runs requests together.
    pub fn run(&self, setup: &Setup, requests: &[Asked]) -> Outcome {
        let texts = match setup.drafter {
            Drafter::Scripted(_) => self.texts((setup.model, setup.dtype), requests),
            _ => Texts::new(),
        };
        let mut engine = Engine::new(self, setup, runner_config(setup, requests), texts);
        let given = drive(&mut engine.pipeline, requests, budget(setup));
        let (counters, totals) = (engine.pipeline.scheduler().counters(), engine.pipeline.totals());
        // Whatever the requests ask for: log-probabilities and drafts under a grammar are in the record, too.
        let waits = totals.waits;
        assert_eq!(
            (waits.collect, waits.elsewhere),
            (totals.steps, 0),
            "one wait per step"
        );
        assert_eq!(
            engine.device.host_waits(),
            engine.waits_before + totals.steps,
            "and none before the first"
        );
        Outcome {
            given,
            counters,
            totals,
        }
    }

    /// The times of every step of a run.
    pub fn steps(&self, setup: &Setup, requests: &[Asked]) -> Vec<StepRecord> {
        let mut engine = Engine::new(self, setup, runner_config(setup, requests), Texts::new());
        let mut steps = Vec::new();
        watch(&mut engine.pipeline, requests, budget(setup), &mut |record| {
            steps.push(record);
        });
        steps
    }

    /// What a request gives alone in a plain loop.
    pub fn alone(&self, model: &'static str, request: &Asked) -> Rc<Given> {
        self.alone_as((model, None), request)
    }

    /// The same with a model whose weights are converted.
    pub fn alone_as(&self, model: Loaded, request: &Asked) -> Rc<Given> {
        let name = request.constraint.as_ref().map(|(name, _)| name);
        let key = format!("{model:?} {:?} {:?} {name:?}", request.prompt, request.params);
        if let Some(known) = self.solo.borrow().get(&key) {
            return Rc::clone(known);
        }
        let request = Asked {
            constraint: request.constraint.clone(),
            ..Asked::new(request.prompt.clone(), request.params.clone())
        };
        let longest = (request.prompt.len() + request.params.max_tokens).next_power_of_two();
        let place = (model, longest.max(128));
        let setup = Setup {
            dtype: model.1,
            ..Setup::plain(model.0)
        };
        // One that fails is not kept.
        let known = self.plain.borrow_mut().remove(&place);
        let mut engine = known.unwrap_or_else(|| Engine::plain(self, &setup, place.1));
        let mut given = drive(&mut engine.pipeline, &[request], budget(&setup));
        self.plain.borrow_mut().insert(place, engine);
        let given = Rc::new(given.pop().expect("one request"));
        self.solo.borrow_mut().insert(key, Rc::clone(&given));
        given
    }

    /// The whole texts of requests.
    fn texts(&self, model: Loaded, requests: &[Asked]) -> Texts {
        let text = |request: &Asked| {
            let given = self.alone_as(model, request);
            let name = (request.params.seed, request.prompt.len());
            (name, [request.prompt.as_slice(), &given.tokens].concat())
        };
        requests.iter().map(text).collect()
    }
}
