//! What a step ran and how long it took.

use paceline_types::{PlanRow, RowOutput, StepOutput, StepPlan, Work};

/// A step that is done, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// Plan rows that decoded: each ran its newest token and the drafts that there were.
    pub decodes: usize,
    /// Tokens that they ran.
    pub decode_tokens: usize,
    /// Of these, drafts.
    pub drafted: usize,
    /// Drafts accepted.
    pub accepted: usize,
    /// Tokens of prompts that were run.
    pub prompt_tokens: usize,
    /// Plan rows behind which drafts were wanted from the text, and from the neural drafter.
    pub wanted: (usize, usize),
    /// Time on the device.
    pub device_ns: u64,
    /// Of this, what went into drafts for the next step.
    pub draft_ns: u64,
    /// Passes of the neural drafter that had something to do.
    pub draft_passes: usize,
}

impl StepTimes {
    /// What a step did, as opposed to what it might have done. A plan row whose slot had finished ran nothing.
    pub fn of(plan: &StepPlan, output: &StepOutput) -> Self {
        let (begin, end) = output.device_ns;
        let mut times = Self {
            device_ns: end.saturating_sub(begin),
            draft_ns: output.draft_ns,
            draft_passes: output.draft_passes,
            ..Self::default()
        };
        for (row, done) in plan.rows.iter().zip(&output.rows) {
            match &row.work {
                Work::Prefill { .. } | Work::Embed { .. } => times.prompt_tokens += tokens_run(row, done),
                Work::Verify { .. } if done.tokens.is_empty() => continue,
                Work::Verify { .. } => {
                    times.decodes += 1;
                    times.decode_tokens += tokens_run(row, done);
                    times.drafted += done.drafted;
                    times.accepted += (done.tokens.len() - 1).min(done.drafted);
                }
            }
            times.wanted.0 += usize::from(row.propose.ngram > 0);
            times.wanted.1 += usize::from(row.propose.neural > 0);
        }
        times
    }

    /// Tokens that were run.
    pub fn tokens(&self) -> usize {
        self.decode_tokens + self.prompt_tokens
    }

    /// Time spent on the tokens themselves.
    pub fn verify_ns(&self) -> u64 {
        self.device_ns.saturating_sub(self.draft_ns)
    }

    /// Whether it ran decodes and nothing else.
    pub fn decode_only(&self) -> bool {
        self.prompt_tokens == 0 && self.decodes > 0
    }
}

/// Tokens that a plan row ran, which may be fewer than planned.
pub(crate) fn tokens_run(row: &PlanRow, done: &RowOutput) -> usize {
    match &row.work {
        Work::Prefill { tokens, .. } | Work::Embed { tokens, .. } => tokens.len(),
        Work::Verify { .. } if done.tokens.is_empty() => 0,
        Work::Verify { .. } => 1 + done.drafted,
    }
}
