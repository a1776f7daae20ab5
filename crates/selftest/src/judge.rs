//! Runs cases on the device that is judged and on the reference, and takes down what came of it.

use crate::compare::{Limit, Output, difference};
use crate::rig::{Mode, Rig};
use paceline::Open;
use paceline_device::{Backend, DeviceError, ElementTypes};
use paceline_device_cpu::{Cpu, CpuOptions};
use paceline_types::DType;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How much is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Shapes of small models and few tokens of large ones: seconds on a CPU.
    Short,
    /// Shapes of large models at up to 2048 tokens too, for devices that are faster than the host.
    Whole,
}

/// What to judge.
#[derive(Clone, Debug)]
pub struct OperationsConfig {
    /// Names all random inputs.
    pub seed: u64,
    /// How much is tried.
    pub effort: Effort,
    /// Only operations whose name contains this.
    pub only: Option<String>,
    /// Only cases whose name contains this.
    pub case: Option<String>,
    /// Whether an operation that has missed is tried in its other cases, too.
    pub keep_going: bool,
}

/// What a device is measured by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Yardstick {
    /// The CPU device.
    Reference,
    /// The device itself: other rows beside it, other buckets and other cuts into steps change no bit.
    Law,
    /// What a reference implementation made of a model.
    Golden,
    /// Runs of single requests, on the device itself.
    Alone,
}

/// How an operation did.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Its name.
    pub operation: String,
    /// What it was measured by.
    pub yardstick: Yardstick,
    /// Cases that were run.
    pub cases: usize,
    /// The largest error of any case.
    pub worst: f64,
    /// The largest limit of any output.
    pub limit: Limit,
    /// Choices of tokens that differ from the reference's, but not from one that it makes too when its parameters are
    /// changed in the sixth place.
    pub near_ties: usize,
    /// One line per case that missed.
    pub misses: Vec<String>,
}

/// Something to run: it makes what it needs, launches programs and reads back what they left.
pub(crate) trait Case {
    /// Runs it on any device.
    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<Vec<Output>, DeviceError>;
}

/// A device under judgement. Each group of operations has a fresh one, and so has what follows a failure.
pub(crate) struct Judge<'a, B: Backend> {
    open: &'a Open<'a, B>,
    device: Option<B>,
    reference: Cpu,
    elements: ElementTypes,
    config: &'a OperationsConfig,
    outcomes: Vec<Outcome>,
}

impl<'a, B: Backend> Judge<'a, B> {
    pub(crate) fn new(open: &'a Open<'a, B>, config: &'a OperationsConfig) -> Result<Self, DeviceError> {
        let device = open(DType::F32)?;
        Ok(Self {
            reference: Cpu::new(CpuOptions::default()),
            elements: device.info().elements,
            device: Some(device),
            open,
            config,
            outcomes: Vec::new(),
        })
    }

    /// Keys and values are stored like this from now on; false if the device does not.
    pub(crate) fn store_kv_as(&mut self, kv: DType) -> bool {
        if self.elements.kv != kv
            && let Ok(device) = (self.open)(kv)
        {
            self.elements = device.info().elements;
            self.device = Some(device);
        }
        self.elements.kv == kv
    }

    /// What was allocated so far is given back: the next case has a new device.
    pub(crate) fn close(&mut self) {
        self.device = None;
    }

    pub(crate) fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }

    pub(crate) fn into_outcomes(self) -> Vec<Outcome> {
        self.outcomes
    }

    /// Whether everything is tried.
    pub(crate) fn is_whole(&self) -> bool {
        self.config.effort == Effort::Whole
    }

    /// How the device stores things.
    pub(crate) fn elements(&self) -> ElementTypes {
        self.elements
    }

    fn wants(&self, operation: &str, name: &str) -> bool {
        let (only, case) = (self.config.only.as_deref(), self.config.case.as_deref());
        let missed = |outcome: &Outcome| outcome.operation == operation && !outcome.is_ok();
        only.is_none_or(|only| operation.contains(only))
            && case.is_none_or(|case| name.contains(case))
            && (self.config.keep_going || !self.outcomes.iter().any(missed))
    }

    /// A case on the device, operation by operation and as a program, and on the reference.
    pub(crate) fn compare(&mut self, operation: &str, name: &str, case: &impl Case) {
        self.compare_with(operation, name, case, |_, _, _| 0);
    }

    /// The same, where some of what was found may be as good as what was expected: `forgive` makes it equal, and says how
    /// often it did.
    pub(crate) fn compare_with(
        &mut self,
        operation: &str,
        name: &str,
        case: &impl Case,
        forgive: impl FnOnce(&Self, &mut [Output], &[Output]) -> usize,
    ) {
        if !self.wants(operation, name) {
            return;
        }
        let expected = self.run_reference(case);
        let found = self.run(case, Mode::Eager);
        let launched = self.run(case, Mode::Captured);
        self.outcome(operation, Yardstick::Reference).cases += 1;
        let (expected, found, launched) = match (expected, found, launched) {
            (Ok(expected), Ok(found), Ok(launched)) => (expected, found, launched),
            (Err(why), ..) => return self.miss(operation, name, &format!("the reference {why}")),
            (_, Err(why), _) => return self.miss(operation, name, &why),
            (_, _, Err(why)) => return self.miss(operation, name, &format!("as a program, it {why}")),
        };
        let same = found.iter().cloned().map(Output::exact).collect::<Vec<_>>();
        if let Err(why) = all_equal(&launched, &same) {
            self.miss(operation, name, &format!("as a program: {why}"));
        }
        let mut found = found;
        let near_ties = forgive(self, &mut found, &expected);
        let stored = self.elements.activations;
        let outcome = self.outcome(operation, Yardstick::Reference);
        outcome.near_ties += near_ties;
        outcome.take(name, &found, &expected, stored);
    }

    fn miss(&mut self, operation: &str, case: &str, why: &str) {
        self.outcome(operation, Yardstick::Reference).miss(case, why);
    }

    /// Cases whose outputs must have the same bits.
    pub(crate) fn law<C: Case>(
        &mut self,
        operation: &str,
        name: &str,
        variants: impl IntoIterator<Item = (String, C)>,
    ) {
        if !self.wants(operation, name) {
            return;
        }
        let mut first: Option<(String, Vec<Output>)> = None;
        for (variant, case) in variants {
            let name = format!("{name}, {variant}");
            let found = self.run(&case, Mode::Captured);
            let outcome = self.outcome(operation, Yardstick::Law);
            outcome.cases += 1;
            match (found, &first) {
                (Err(why), _) => outcome.miss(&name, &why),
                (Ok(found), None) => {
                    first = Some((variant, found.into_iter().map(Output::exact).collect()));
                }
                (Ok(found), Some((other, expected))) => {
                    if let Err(why) = all_equal(&found, expected) {
                        outcome.miss(&name, &format!("{why} as {other}"));
                    }
                }
            }
        }
    }

    /// A case on the reference, as the device would store its inputs.
    pub(crate) fn run_reference(&self, case: &impl Case) -> Result<Vec<Output>, String> {
        let rig = Rig::new(&self.reference, Mode::Eager, self.elements, self.config.seed);
        guarded(|| case.run(&rig))
    }

    fn run(&mut self, case: &impl Case, mode: Mode) -> Result<Vec<Output>, String> {
        let device = match self.device.take() {
            Some(device) => device,
            None => (self.open)(self.elements.kv).map_err(|error| format!("cannot be opened: {error}"))?,
        };
        let rig = Rig::new(&device, mode, self.elements, self.config.seed);
        let outputs = guarded(|| case.run(&rig))?;
        // One that has failed skips all that comes behind, so it is not used again.
        self.device = Some(device);
        Ok(outputs)
    }

    /// The outcome that a case belongs to.
    pub(crate) fn outcome(&mut self, operation: &str, yardstick: Yardstick) -> &mut Outcome {
        let known = |outcome: &Outcome| outcome.operation == operation && outcome.yardstick == yardstick;
        let index = self.outcomes.iter().position(known).unwrap_or_else(|| {
            self.outcomes.push(Outcome::new(operation, yardstick));
            self.outcomes.len() - 1
        });
        &mut self.outcomes[index]
    }
}

impl Outcome {
    /// Nothing was tried yet.
    pub(crate) fn new(operation: &str, yardstick: Yardstick) -> Self {
        Self {
            operation: operation.to_owned(),
            yardstick,
            cases: 0,
            worst: 0.0,
            limit: Limit::Exact,
            near_ties: 0,
            misses: Vec::new(),
        }
    }

    /// Whether nothing was missed.
    pub fn is_ok(&self) -> bool {
        self.misses.is_empty()
    }

    pub(crate) fn miss(&mut self, case: &str, why: &str) {
        let operation = &self.operation;
        self.misses.push(format!("{operation}, {case}: {why}"));
    }

    /// Takes in the outputs of a case.
    pub(crate) fn take(&mut self, case: &str, found: &[Output], expected: &[Output], stored: DType) {
        for output in expected {
            self.limit = larger(self.limit, output.limit);
        }
        if found.len() != expected.len() {
            let (found, expected) = (found.len(), expected.len());
            return self.miss(case, &format!("{found} outputs, not {expected}"));
        }
        for (found, expected) in found.iter().zip(expected) {
            match difference(found, expected, stored) {
                Ok(error) => self.worst = self.worst.max(error),
                Err(why) => return self.miss(case, &why),
            }
        }
    }
}

fn larger(a: Limit, b: Limit) -> Limit {
    if b.tolerance() > a.tolerance() { b } else { a }
}

fn all_equal(found: &[Output], expected: &[Output]) -> Result<(), String> {
    if found.len() != expected.len() {
        return Err(format!("{} outputs, not {}", found.len(), expected.len()));
    }
    for (found, expected) in found.iter().zip(expected) {
        difference(found, expected, DType::F32)?;
    }
    Ok(())
}

/// A panic is a miss like any other: a device refuses operands that way.
pub(crate) fn guarded<T, E: Display>(run: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result.map_err(|error| format!("failed: {error}")),
        Err(panic) => {
            let message = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied());
            Err(format!("panicked: {}", message.unwrap_or("without a message")))
        }
    }
}
