//! Whole models: what reference implementations made of them, and the identity matrix.

use crate::compare::Limit;
use crate::judge::{Open, Outcome, Yardstick, guarded};
use crate::mixes::{Bench, Devices, Mix, Opened, Seen, check, smallest};
use crate::random::Random;
use crate::stories;
use paceline_device::Backend;
use paceline_models::{Eagle3, ModelError};
use paceline_testkit::{
    FIXTURES, Fixture, HEADS, HeadFixture, Solo, greedy_difference, relative_error, storyteller_in,
    storyteller_reference_in,
};
use paceline_types::DType;
use paceline_weights::Checkpoint;
use std::path::{Path, PathBuf};

/// Allowed norm of the difference of logits over their norm.
const TOLERANCE: f64 = 2e-4;

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
    let root = config.root.as_path();
    let mut lines: Vec<(String, Judged<'_, B>)> = Vec::new();
    for name in FIXTURES {
        lines.push((
            format!("golden {name}"),
            Box::new(move |open| golden(open, root, name)),
        ));
    }
    for name in HEADS {
        lines.push((
            format!("golden {name}"),
            Box::new(move |open| head(open, root, name)),
        ));
    }
    lines.push((
        "storyteller texts".to_owned(),
        Box::new(move |open| texts(open, root)),
    ));
    lines.push((
        "storyteller draft chains".to_owned(),
        Box::new(move |open| chains(open, root)),
    ));
    lines.push((
        "storyteller drafts in the engine".to_owned(),
        Box::new(move |open| drafts(open, root)),
    ));
    lines.push((
        "identity of mixes".to_owned(),
        Box::new(move |open| mixes(open, config)),
    ));
    let mut outcomes = Vec::new();
    for (name, judged) in lines {
        if config.only.as_ref().is_some_and(|only| !name.contains(only)) {
            continue;
        }
        let mut outcome = Outcome::new(&name, Yardstick::Golden);
        match guarded(|| judged(open)) {
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

type Judged<'a, B> = Box<dyn Fn(&Open<'_, B>) -> Result<Findings, ModelError> + 'a>;

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
        let error = if whole {
            relative_error(&finite(found), &finite(expected))
        } else {
            f64::INFINITY
        };
        self.worst = self.worst.max(error);
        // A comparison that is false for NaN, too.
        if !(error < TOLERANCE) {
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

/// A model on a device, as it is stored.
fn solo<B: Backend>(
    open: &Open<'_, B>,
    checkpoint: &Checkpoint,
    (kv, head): (DType, Option<&Checkpoint>),
) -> Result<Solo<B>, ModelError> {
    let device = open(kv)?;
    let model = paceline_models::load(&device, checkpoint, None, &|_| {})?;
    let head = match head {
        Some(head) => Some(Box::new(Eagle3::load(&device, head, &model, None, &|_| {})?) as _),
        None => None,
    };
    Solo::new(&device, model, head)
}

/// A reference model: logits, continuations and the draft head.
fn golden<B: Backend>(open: &Open<'_, B>, root: &Path, name: &str) -> Result<Findings, ModelError> {
    let fixture = Fixture::read_in(root, name);
    let mut solo = solo(open, &fixture.checkpoint(), (DType::F32, None))?;
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
    let files = (DType::F32, Some(&head.checkpoint()));
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

/// The default model's texts.
fn texts<B: Backend>(open: &Open<'_, B>, root: &Path) -> Result<Findings, ModelError> {
    let mut solo = solo(open, &storyteller_in(root), (DType::BF16, None))?;
    let mut findings = Findings::default();
    for case in storyteller_reference_in(root) {
        let tokens = solo.greedy(&case.prompt_ids, case.greedy.len())?;
        let difference = greedy_difference(&tokens, &case.greedy, &case.greedy_margin);
        findings.tokens(&case.prompt, &tokens, &case.greedy, difference);
    }
    Ok(findings)
}

/// What its head drafts at every position of them.
fn chains<B: Backend>(open: &Open<'_, B>, root: &Path) -> Result<Findings, ModelError> {
    let mut solo = solo(open, &storyteller_in(root), (DType::BF16, None))?;
    let mut findings = Findings::default();
    for case in storyteller_reference_in(root) {
        let chains = solo.draft_chains(&case)?;
        for (index, (chain, expected)) in chains.iter().zip(&case.mtp_drafts).enumerate() {
            let name = format!("{}, position {index}", case.prompt);
            let difference = first_difference(chain, expected);
            findings.tokens(&name, chain, expected, difference);
        }
    }
    Ok(findings)
}

/// Which of them the engine accepts.
fn drafts<B: Backend>(open: &Open<'_, B>, root: &Path) -> Result<Findings, ModelError> {
    let bench = Bench::new(Opened(open), root.to_owned());
    let mut findings = Findings::default();
    for story in stories::follow(&bench, root) {
        findings.cases += 1;
        findings.misses.extend(story.miss);
    }
    Ok(findings)
}

/// The identity matrix.
fn mixes<B: Backend>(open: &Open<'_, B>, config: &ModelsConfig) -> Result<Findings, ModelError> {
    let bench = Bench::new(Opened(open), config.root.clone());
    let mut findings = Findings {
        alone: true,
        ..Findings::default()
    };
    let mut random = Random::new(config.seed, "mixes");
    for index in 0..config.mixes {
        let mix = Mix::random(&mut random, false);
        findings.cases += 1;
        if let Err(why) = attempt(&bench, &mix) {
            let mix = smallest(mix, |mix| attempt(&bench, mix).is_err());
            let why = attempt(&bench, &mix).err().unwrap_or(why);
            let case = format!("mix {index} of seed {}", config.seed);
            findings.misses.push((case, format!("{why}\n{mix:?}")));
            // One is enough to work on, and each of them takes long to make small.
            break;
        }
    }
    Ok(findings)
}

/// A mix, with panics as misses.
fn attempt<D: Devices>(bench: &Bench<D>, mix: &Mix) -> Result<(), String> {
    guarded(|| Ok::<_, String>(check(bench, &mut Seen::default(), mix)))?
}
