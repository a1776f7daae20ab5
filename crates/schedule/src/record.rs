//! What the loop measures of itself.

use crate::times::StepTimes;

/// A stretch of time, by the loop's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Nanoseconds on the pipeline's clock.
    pub begin: u64,
    /// The same clock.
    pub end: u64,
}

impl Span {
    /// How long.
    pub fn ns(&self) -> u64 {
        self.end - self.begin
    }
}

/// One step, seen from the host and from the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepRecord {
    /// Number of the step.
    pub step: u64,
    /// Plan rows planned.
    pub rows: usize,
    /// Most tokens it could run.
    pub tokens: usize,
    /// Steps in flight once it was submitted, itself among them.
    pub in_flight: usize,
    /// Deciding what it does.
    pub plan: Span,
    /// Handing it to the device.
    pub submit: Span,
    /// Waits of the host for the device while its output was fetched; one, if all is well.
    pub waits: u64,
    /// Waiting for its output: the only place where the host waits.
    pub wait: Span,
    /// Taking its output in.
    pub collect: Span,
    /// The device at work, by the device's clock.
    pub device: (u64, u64),
    /// Of this, the time that went into drafts for the next step.
    pub draft_ns: u64,
    /// Tokens that it ran.
    pub tokens_run: usize,
    /// Drafts that it verified.
    pub drafted: usize,
    /// Of these, drafts accepted.
    pub accepted: usize,
    /// The device idle before it although there was work. `None`: there was no work, or no step before.
    pub bubble_ns: Option<u64>,
}

impl StepRecord {
    /// What it turned out to do.
    pub(crate) fn take(&mut self, times: &StepTimes) {
        self.draft_ns = times.draft_ns;
        self.tokens_run = times.tokens();
        self.drafted = times.drafted;
        self.accepted = times.accepted;
    }
}

/// How often and how long the host waited for the device since the first step, by place. The device counts, where
/// the waiting happens ([`StepRunner::host_waits`](crate::StepRunner::host_waits)); there should be one per step, and none
/// elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostWaits {
    /// Waits while a step's output was fetched.
    pub collect: u64,
    /// Time spent there.
    pub collect_ns: u64,
    /// All others.
    pub elsewhere: u64,
}

/// Sums over all steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PipelineTotals {
    /// Steps collected.
    pub steps: u64,
    /// Time spent planning.
    pub plan_ns: u64,
    /// Time spent submitting.
    pub submit_ns: u64,
    /// Time spent taking outputs in.
    pub collect_ns: u64,
    /// Time the device was at work.
    pub device_ns: u64,
    /// Time the device was idle although there was work.
    pub bubble_ns: u64,
    /// Where the host waited.
    pub waits: HostWaits,
}

impl PipelineTotals {
    pub(crate) fn add(&mut self, record: &StepRecord) {
        self.steps += 1;
        self.plan_ns += record.plan.ns();
        self.submit_ns += record.submit.ns();
        self.collect_ns += record.collect.ns();
        self.device_ns += record.device.1.saturating_sub(record.device.0);
        self.bubble_ns += record.bubble_ns.unwrap_or(0);
        self.waits.collect += record.waits;
        self.waits.collect_ns += record.wait.ns();
    }
}
