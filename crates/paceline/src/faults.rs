//! Steps that fail on purpose. An instrument for tests of what becomes of requests then; see
//! [`LoadedEngine::start_failing`](crate::LoadedEngine::start_failing).

use paceline_schedule::{RunnerFault, StepRunner};
use paceline_types::{StepOutput, StepPlan};

/// What the faults of a device say.
const CAUSE: &str = "a fault was injected";

/// How a step fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The device says so when the step is handed to it.
    Submit,
    /// The device says so when the step's output is fetched.
    Collect,
    /// The engine's thread panics.
    Panic,
    /// The engine's thread never comes back.
    Hang,
}

impl Fault {
    /// All of them, with their names.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Submit, "submit"),
        (Self::Collect, "collect"),
        (Self::Panic, "panic"),
        (Self::Hang, "hang"),
    ];
}

/// A runner that fails with a certain step.
pub struct Failing<R> {
    inner: R,
    fault: Fault,
    step: u64,
}

impl<R> Failing<R> {
    /// The runner `inner`, but for step number `step`, counted from 1.
    pub fn new(inner: R, fault: Fault, step: u64) -> Self {
        Self { inner, fault, step }
    }
}

impl<R: StepRunner> StepRunner for Failing<R> {
    type InFlight = (u64, R::InFlight);

    fn submit(&mut self, plan: &StepPlan) -> Result<Self::InFlight, RunnerFault> {
        if plan.step >= self.step {
            match self.fault {
                Fault::Submit => return Err(RunnerFault(CAUSE.to_owned())),
                Fault::Panic => panic!("{CAUSE} in step {}", plan.step),
                Fault::Hang => loop {
                    std::thread::park();
                },
                Fault::Collect => {}
            }
        }
        Ok((plan.step, self.inner.submit(plan)?))
    }

    fn collect(&mut self, (step, flight): Self::InFlight) -> Result<StepOutput, RunnerFault> {
        if self.fault == Fault::Collect && step >= self.step {
            return Err(RunnerFault(CAUSE.to_owned()));
        }
        self.inner.collect(flight)
    }

    fn host_waits(&self) -> u64 {
        self.inner.host_waits()
    }

    fn hand_back(&mut self) {
        self.inner.hand_back();
    }
}
