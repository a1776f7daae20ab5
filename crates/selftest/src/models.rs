//! Whole models: what reference implementations made of them, and the identity matrix.

use crate::compare::Limit;
use crate::judge::{Outcome, Yardstick, guarded};
use crate::mixes::{Bench, Devices, Mix, Opened, Seen, check, smallest};
use crate::{stories, times};
use paceline::Open;
use paceline_device::Backend;
use paceline_models::{Eagle3, ModelError};
use paceline_testkit::Random;
use paceline_testkit::{
    FIXTURES, Fixture, HEADS, HeadFixture, Solo, greedy_difference, relative_error, storyteller_in,
    storyteller_reference_in,
};
use paceline_types::DType;
use paceline_weights::Checkpoint;
use std::path::{Path, PathBuf};

/// Allowed norm of the difference of logits over their norm.
const TOLERANCE: f64 = 2e-4;

/// Best minus second-best logit below which a rounded model may choose another token.
const UNSURE: f32 = 0.1;
/// Share of chains of drafts that rounding may change.
const FEW: f64 = 0.05;
/// Mixes among which every subject of the matrix turns up: drafts that hold, preemptions, prefix hits, restored states.
const MANY: usize = 100;

/// What to judge.
#[derive(Clone, Debug)]
pub struct ModelsConfig {
    /// The repository that reference models come from.
    pub root: PathBuf,
    /// Names the random mixes.
    pub seed: u64,
    /// Mixes of the identity matrix.
    pub mixes: usize,
    /// Only what has this in its name.
    pub only: Option<String>,
}

/// Runs whole models on a device. `report` is told how each did as soon as it is through.
pub fn models<B: Backend>(
    open: &Open<'_, B>,
    config: &ModelsConfig,
    report: &mut dyn FnMut(&Outcome),
) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for line in Line::all() {
        let name = line.name();
        if config.only.as_ref().is_some_and(|only| !name.contains(only)) {
            continue;
        }
        let mut outcome = Outcome::new(&name, Yardstick::Golden);
        match guarded(|| line.judge(open, config)) {
            Ok(found) => {
                outcome.cases = found.cases;
                outcome.worst = found.worst;
                outcome.limit = found.limit;
                for (case, why) in found.misses {
                    outcome.miss(&case, &why);
                }
                if found.alone {
                    outcome.yardstick = Yardstick::Alone;
                }
            }
            Err(why) => outcome.miss("all of it", &why),
        }
        report(&outcome);
        outcomes.push(outcome);
    }
    outcomes
}

/// A line of the table. Types are those that the default model's weights are converted to, if any.
#[derive(Clone, Copy)]
enum Line {
    Golden(&'static str),
    Head(&'static str),
    Texts(Option<DType>),
    Chains(Option<DType>),
    Drafts,
    Times,
    Mixes,
}

impl Line {
    /// All of them, in order.
    fn all() -> impl Iterator<Item = Self> {
        let default = [
            Self::Texts(Some(DType::F32)),
            Self::Chains(Some(DType::F32)),
            Self::Drafts,
            Self::Texts(None),
            Self::Chains(None),
            Self::Times,
            Self::Mixes,
        ];
        let models = FIXTURES.into_iter().map(Self::Golden);
        models.chain(HEADS.into_iter().map(Self::Head)).chain(default)
    }

    fn name(self) -> String {
        let rounded = |dtype: Option<DType>| if dtype.is_none() { ", rounded" } else { "" };
        match self {
            Self::Golden(name) | Self::Head(name) => format!("golden {name}"),
            Self::Texts(dtype) => format!("storyteller texts{}", rounded(dtype)),
            Self::Chains(dtype) => format!("storyteller chains{}", rounded(dtype)),
            Self::Drafts => "storyteller drafts in the engine".to_owned(),
            Self::Times => "times of steps".to_owned(),
            Self::Mixes => "identity of mixes".to_owned(),
        }
    }

    fn judge<B: Backend>(self, open: &Open<'_, B>, config: &ModelsConfig) -> Result<Findings, ModelError> {
        let root = config.root.as_path();
        match self {
            Self::Golden(name) => golden(open, root, name),
            Self::Head(name) => head(open, root, name),
            Self::Texts(dtype) => texts(open, root, dtype),
            Self::Chains(dtype) => chains(open, root, dtype),
            Self::Drafts => Ok(drafts(open, root)),
            Self::Times => Ok(step_times(open, root)),
            Self::Mixes => Ok(mixes(open, config)),
        }
    }
}

/// What a line of the table is made of.
#[derive(Default)]
struct Findings {
    cases: usize,
    worst: f64,
    limit: Limit,
    misses: Vec<(String, String)>,
    /// Compared with runs of single requests.
    alone: bool,
}

impl Findings {
    fn logits(&mut self, case: &str, found: &[f32], expected: &[f32]) {
        self.cases += 1;
        self.limit = Limit::Within(TOLERANCE);
        // What a head cannot draft is impossible in both.
        let same = |(a, b): (&f32, &f32)| a.is_finite() == b.is_finite();
        let whole = found.len() == expected.len() && found.iter().zip(expected).all(same);
        let finite = |numbers: &[f32]| {
            numbers
                .iter()
                .copied()
                .filter(|x| x.is_finite())
                .collect::<Vec<_>>()
        };
        // What is not a number is not finite, and where the reference is that has nothing to be compared with.
        let error = if whole && !found.iter().any(|x| x.is_nan()) {
            relative_error(&finite(found), &finite(expected))
        } else {
            f64::INFINITY
        };
        self.worst = self.worst.max(error);
        if error >= TOLERANCE {
            let why = format!("the logits are off by {error:.1e} of their norm");
            self.misses.push((case.to_owned(), why));
        }
    }

    fn tokens(&mut self, case: &str, found: &[u32], expected: &[u32], difference: Option<usize>) {
        self.cases += 1;
        if let Some(index) = difference {
            let token = |tokens: &[u32]| tokens.get(index).copied().map_or(-1, i64::from);
            let why = format!("token {index} is {}, not {}", token(found), token(expected));
            self.misses.push((case.to_owned(), why));
        }
    }
}

/// A model on a device, in full precision or as it is stored.
fn solo<B: Backend>(
    open: &Open<'_, B>,
    checkpoint: &Checkpoint,
    (dtype, head): (Option<DType>, Option<&Checkpoint>),
) -> Result<Solo<B>, ModelError> {
    let device = open(dtype.unwrap_or(DType::BF16))?;
    let model = paceline_models::load(&device, checkpoint, dtype, &|_| {})?;
    let head = match head {
        Some(head) => Some(Box::new(Eagle3::load(&device, head, &model, dtype, &|_| {})?) as _),
        None => None,
    };
    Solo::new(&device, model, head)
}

/// A reference model: logits, continuations and the draft head.
fn golden<B: Backend>(open: &Open<'_, B>, root: &Path, name: &str) -> Result<Findings, ModelError> {
    let fixture = Fixture::read_in(root, name);
    let mut solo = solo(open, &fixture.checkpoint(), (Some(DType::F32), None))?;
    let mut findings = Findings::default();
    for (index, prompt) in fixture.prompts.iter().enumerate() {
        let case = format!("prompt {index}");
        let logits = solo.prompt_logits(prompt, 256, 16)?;
        findings.logits(&case, &logits, &fixture.logits(index));
        let expected = &fixture.greedy[index];
        let tokens = solo.greedy(prompt, expected.len())?;
        let difference = greedy_difference(&tokens, expected, &fixture.greedy_margin[index]);
        findings.tokens(&case, &tokens, expected, difference);
    }
    if let Some(expected) = fixture.mtp_logits() {
        let logits = solo.head_logits(&fixture.prompts[1])?;
        let expected = &expected[..logits.len().min(expected.len())];
        findings.logits("the draft head", &logits, expected);
    }
    Ok(findings)
}

/// A reference draft head: logits and chains.
fn head<B: Backend>(open: &Open<'_, B>, root: &Path, name: &str) -> Result<Findings, ModelError> {
    let head = HeadFixture::read_in(root, name);
    let target = Fixture::read_in(root, &head.target);
    let files = (Some(DType::F32), Some(&head.checkpoint()));
    let mut solo = solo(open, &target.checkpoint(), files)?;
    let vocabulary = solo.model().dims.vocabulary;
    let mut findings = Findings::default();
    for (index, prompt) in target.prompts.iter().enumerate() {
        let case = format!("prompt {index}");
        let expected = head.logits(index);
        solo.prompt_with_head(prompt, 256, expected.len() / vocabulary)?;
        findings.logits(&case, &solo.logits()?, &expected);
        let (chain, logits) = solo.chain(prompt, head.chains[index].len())?;
        let expected = &head.chains[index];
        let difference = first_difference(&chain, expected);
        findings.tokens(&case, &chain, expected, difference);
        findings.logits(&format!("{case}, the chain"), &logits, &head.chain_logits(index));
    }
    Ok(findings)
}

fn first_difference(found: &[u32], expected: &[u32]) -> Option<usize> {
    let longest = found.len().max(expected.len());
    (0..longest).find(|index| found.get(*index) != expected.get(*index))
}

/// The default model's texts: token by token in full precision. As the model is stored a device may round, so each token is
/// compared behind the reference's own text, where the reference was surer of it than by [`UNSURE`].
fn texts<B: Backend>(open: &Open<'_, B>, root: &Path, dtype: Option<DType>) -> Result<Findings, ModelError> {
    let mut solo = solo(open, &storyteller_in(root), (dtype, None))?;
    let vocabulary = solo.model().dims.vocabulary;
    let mut findings = Findings::default();
    for case in storyteller_reference_in(root) {
        let (expected, margins) = (&case.greedy, &case.greedy_margin);
        let (tokens, difference) = if dtype.is_some() {
            let tokens = solo.greedy(&case.prompt_ids, expected.len())?;
            let difference = greedy_difference(&tokens, expected, margins);
            (tokens, difference)
        } else {
            let text = [case.prompt_ids.as_slice(), expected].concat();
            let logits = solo.prompt_logits(&text[..text.len() - 1], 256, expected.len())?;
            let tokens: Vec<u32> = logits.chunks(vocabulary).map(most_likely).collect();
            let unlike =
                |index: &usize| tokens.get(*index) != expected.get(*index) && margins[*index] >= UNSURE;
            let difference = (0..expected.len()).find(unlike);
            (tokens, difference)
        };
        findings.tokens(&case.prompt, &tokens, expected, difference);
    }
    Ok(findings)
}

/// The first of the largest.
fn most_likely(logits: &[f32]) -> u32 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter().position(|logit| *logit >= largest).unwrap_or(0) as u32
}

/// What its head drafts at every position of them: to the last token in full precision, and but for a few as it is stored.
fn chains<B: Backend>(open: &Open<'_, B>, root: &Path, dtype: Option<DType>) -> Result<Findings, ModelError> {
    let mut solo = solo(open, &storyteller_in(root), (dtype, None))?;
    let mut findings = Findings::default();
    for case in storyteller_reference_in(root) {
        let chains = solo.draft_chains(&case)?;
        for (index, (chain, expected)) in chains.iter().zip(&case.mtp_drafts).enumerate() {
            let name = format!("{}, position {index}", case.prompt);
            let difference = first_difference(chain, expected);
            findings.tokens(&name, chain, expected, difference);
        }
    }
    if dtype.is_none() {
        findings.limit = Limit::Within(FEW);
        findings.worst = findings.misses.len() as f64 / findings.cases.max(1) as f64;
        if findings.worst <= FEW {
            findings.misses.clear();
        }
    }
    Ok(findings)
}

/// Which of them the engine accepts.
fn drafts<B: Backend>(open: &Open<'_, B>, root: &Path) -> Findings {
    let bench = Bench::new(Opened(open), root.to_owned());
    let mut findings = Findings::default();
    for story in stories::follow(&bench, root, Some(DType::F32)) {
        findings.cases += 1;
        findings.misses.extend(story.miss);
    }
    findings
}

/// What the device says of when its steps ran.
fn step_times<B: Backend>(open: &Open<'_, B>, root: &Path) -> Findings {
    let (cases, misses) = times::judge(&Bench::new(Opened(open), root.to_owned()));
    Findings {
        cases,
        misses,
        ..Findings::default()
    }
}

/// The identity matrix.
fn mixes<B: Backend>(open: &Open<'_, B>, config: &ModelsConfig) -> Findings {
    let bench = Bench::new(Opened(open), config.root.clone());
    let mut findings = Findings {
        alone: true,
        ..Findings::default()
    };
    let mut random = Random::new(config.seed, "mixes");
    let mut seen = Seen::default();
    let powers = open(DType::F32).is_ok_and(|device| device.info().power_of_two_blocks);
    for index in 0..config.mixes {
        let mut mix = Mix::random(&mut random, false);
        if powers {
            mix.setup.block_size = mix.setup.block_size.next_power_of_two();
        }
        findings.cases += 1;
        if let Err(why) = attempt(&bench, &mut seen, &mix) {
            let fails = |mix: &Mix| attempt(&bench, &mut Seen::default(), mix).err();
            let mix = smallest(mix, |mix| fails(mix).is_some());
            let why = fails(&mix).unwrap_or(why);
            let case = format!("mix {index} of seed {}", config.seed);
            findings.misses.push((case, format!("{why}\n{mix:?}")));
            // One is enough to work on, and each of them takes long to make small.
            return findings;
        }
    }
    let idle = [seen.accepted, seen.preemptions, seen.hits, seen.restored].contains(&0);
    if idle && config.mixes >= MANY {
        let why = format!("a matrix without all of its subjects: {seen:?}");
        findings.misses.push(("all mixes".to_owned(), why));
    }
    findings
}

/// A mix, with panics as misses.
fn attempt<D: Devices>(bench: &Bench<D>, seen: &mut Seen, mix: &Mix) -> Result<(), String> {
    guarded(|| Ok::<_, String>(check(bench, seen, mix)))?
}
