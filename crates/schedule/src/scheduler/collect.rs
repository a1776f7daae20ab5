//! What a step's output means for the requests: new tokens, published blocks, saved states, endings.

use super::saves::Ending;
use super::{Resources, Running, Scheduler};
use crate::constraint::Constrained;
use crate::costs::Gain;
use crate::policy::RowDrafts;
use crate::report::StepOrigins;
use crate::request::{Order, Request, RequestId, RequestOutput};
use crate::times::{StepTimes, tokens_run};
use paceline_types::{FinishReason, PlanRow, RowEnd, RowOutput, StepOutput, StepPlan, TokenLogprobs, Work};

impl Scheduler {
    /// Takes in the output of the oldest step in flight. Returns what it brought, and any endings since the last
    /// call. Panics if the output cannot be true: that is corruption, not a request's error.
    pub fn collect(&mut self, plan: &StepPlan, mut output: StepOutput) -> Vec<RequestOutput> {
        self.collected_steps += 1;
        assert!(
            plan.step == self.collected_steps && output.step == plan.step,
            "step {} was collected with the output of {}; {} is next",
            plan.step,
            output.step,
            self.collected_steps
        );
        assert!(
            plan.rows.len() == output.rows.len(),
            "step {} has {} rows, its output {}",
            plan.step,
            plan.rows.len(),
            output.rows.len()
        );
        if self.asking_origins > 0 {
            self.note_origins(plan, &mut output);
        }
        let times = StepTimes::of(plan, &output);
        let gain = self.costs.gain(&times);
        self.last_step = times;
        let mut request_outputs = Vec::with_capacity(self.outbox.len() + plan.rows.len());
        request_outputs.append(&mut self.outbox);
        for (row, output) in plan.rows.iter().zip(&mut output.rows) {
            if let Some(id) = self.slots.owner(row.slot, row.generation) {
                check_output(id, row, output);
                self.collect_row(id, row, output, gain, &mut request_outputs);
            } else {
                // The request left its slot while the plan row was in flight.
                self.resources.counters.wasted_rows += 1;
                self.resources.counters.wasted_tokens += tokens_run(row, output) as u64;
            }
        }
        self.settle_charges();
        self.resources
            .counters
            .count_step(&times, gain.map_or(0.0, |gain| gain.total(&times)));
        self.prefill_throttle.observe(&times, &self.costs);
        self.costs.observe(&times);
        self.resources.policy.observe_step(&times);
        request_outputs
    }

    /// Notes how the tokens came of requests that ask for it.
    #[cold]
    fn note_origins(&mut self, plan: &StepPlan, output: &mut StepOutput) {
        for (row, output) in plan.rows.iter().zip(&mut output.rows) {
            let Some(id) = self.slots.owner(row.slot, row.generation) else {
                continue;
            };
            let request = self.request_mut(id);
            if request.params.origins {
                check_output(id, row, output);
                let origins = step_origins(request, row, output);
                if origins.tokens > 0 {
                    self.origins.push((id, origins));
                }
            }
        }
    }

    /// A tenant has had more tokens. Those of requests that follow each other are charged together: its place among the
    /// others changes once.
    fn charge(&mut self, order: Order, tokens: usize) {
        match &mut self.uncharged {
            Some((before, sum)) if before.shares_account(order) => *sum += tokens,
            _ => {
                self.settle_charges();
                self.uncharged = Some((order, tokens));
            }
        }
    }

    /// Nothing is left uncharged: what follows looks at what each tenant has had.
    pub(super) fn settle_charges(&mut self) {
        if let Some((order, tokens)) = self.uncharged.take() {
            self.queue.charge(order, tokens);
        }
    }

    /// Takes in what a plan row of a running request did, and takes what it brought out of `output`.
    fn collect_row(
        &mut self,
        id: RequestId,
        row: &PlanRow,
        output: &mut RowOutput,
        gain: Option<Gain>,
        request_outputs: &mut Vec<RequestOutput>,
    ) {
        let embedded = matches!(row.work, Work::Embed { last: true, .. });
        let end = output.end.or(embedded.then_some(RowEnd::Length));
        let tokens = output.tokens.len();
        let grown = if row.constraint.is_some() && end.is_none() {
            output.tokens.clone()
        } else {
            Vec::new()
        };
        let drafts = RowDrafts::of(row, output);
        let gained = drafts.zip(gain).map_or(0.0, |(drafts, gain)| {
            gain.share(&self.last_step, drafts.drafted, drafts.accepted)
        });
        let (order, group) = self.with_running(id, |resources, request, running| {
            if let Some(drafts) = &drafts {
                request
                    .report
                    .add(tokens, drafts.drafted, drafts.accepted, gained);
                resources.learn(request, drafts);
            }
            resources.advance(request, running, row, output);
            let prompt_logprobs = new_scores(request, row, output);
            if tokens > 0 || !prompt_logprobs.is_empty() || end.is_some() {
                request_outputs.push(RequestOutput {
                    id,
                    tokens: std::mem::take(&mut output.tokens),
                    logprobs: std::mem::take(&mut output.logprobs),
                    prompt_logprobs,
                    finish: end.map(finish_reason),
                    detail: None,
                    embedding: std::mem::take(&mut output.embedding),
                    speculation: end.map(|_| Box::new(request.report)),
                    cached_tokens: request.cached_prompt(),
                });
            }
            (request.order, request.group)
        });
        self.charge(order, tokens);
        if matches!(row.work, Work::Prefill { last: true, .. })
            && let Some(group) = group
        {
            for (order, member) in self.groups.prompt_computed(group, id) {
                self.enqueue(order, member);
            }
        }
        if end.is_some() {
            self.settle_charges();
            self.remove(id, Ending::Done);
        } else if row.constraint.is_some() {
            self.ask_masks(id, grown, std::mem::take(&mut output.made));
        }
    }
}

impl RowDrafts {
    /// How the drafts of a plan row fared, if it verified any or could have.
    fn of(row: &PlanRow, output: &RowOutput) -> Option<Self> {
        let Work::Verify { drafts } = row.work else {
            return None;
        };
        Some(Self {
            planned: drafts,
            drafted: output.drafted,
            accepted: (output.tokens.len() - 1).min(output.drafted),
            source: output.source,
        })
    }
}

impl Resources {
    /// Counts the drafts of a plan row, and tells the policy.
    fn learn(&mut self, request: &Request, drafts: &RowDrafts) {
        self.counters.count_drafts(drafts);
        let window = request.constraint.as_ref().and_then(Constrained::ready);
        let taught = window.map_or(*drafts, |window| window.teach(*drafts));
        self.policy.observe_row(request.id, &taught);
    }

    /// A request has come as far as a plan row brought it.
    fn advance(&mut self, request: &mut Request, running: &mut Running, row: &PlanRow, output: &RowOutput) {
        let computed = match &row.work {
            Work::Prefill {
                start, tokens, last, ..
            } => {
                if *last {
                    running.bounds.settle(0, 1);
                }
                start + tokens.len()
            }
            Work::Verify { drafts } => {
                running.bounds.settle(*drafts, output.tokens.len());
                // All but the newest, which was sampled and not yet run.
                request.known() + output.tokens.len() - 1
            }
            Work::Embed { start, tokens, .. } => start + tokens.len(),
        };
        request.generated.extend_from_slice(&output.tokens);
        let known = request.known();
        assert!(
            request.pooling.is_some()
                || known < request.max_length
                || (known == request.max_length && output.end.is_some()),
            "request {} is {known} tokens long and may be {}",
            request.id.0,
            request.max_length
        );
        self.publish_blocks(request, running, computed);
        if let Some(plan) = row.snapshot {
            self.collect_save(running, plan, output.snapshot_written);
        }
    }

    /// Publishes the blocks that are full and certain, prompt and text alike.
    fn publish_blocks(&self, request: &Request, running: &mut Running, computed: usize) {
        let size = self.config.block_size;
        let mut tokens = Vec::new();
        while !running.chain.is_broken() && (running.chain.len() + 1) * size <= computed {
            let index = running.chain.len();
            tokens.clear();
            request
                .tokens()
                .append_to(index * size..(index + 1) * size, &mut tokens);
            self.caches
                .publish(&mut running.chain, &tokens, running.blocks[index]);
        }
    }
}

fn finish_reason(end: RowEnd) -> FinishReason {
    match end {
        RowEnd::StopToken => FinishReason::Stop,
        RowEnd::Length => FinishReason::Length,
    }
}

/// How the tokens of a plan row came. Its drafts are those that the plan has given, or that were made behind the row
/// before it.
fn step_origins(request: &mut Request, row: &PlanRow, output: &mut RowOutput) -> StepOrigins {
    let drafts = RowDrafts::of(row, output);
    let (drafted, accepted) = drafts
        .as_ref()
        .map_or((0, 0), |drafts| (drafts.drafted, drafts.accepted));
    let verified = match &row.constraint {
        Some(constraint) => &constraint.drafts,
        None => &request.shown_drafts,
    };
    assert!(
        verified.len() >= drafted && verified[..accepted] == output.tokens[..accepted],
        "request {}: {verified:?} were drafted, {accepted} of {drafted} accepted, and the tokens are {:?}",
        request.id.0,
        output.tokens
    );
    let rejected = verified[accepted..drafted].to_vec();
    if row.constraint.is_none() {
        request.shown_drafts = std::mem::take(&mut output.made.0);
    }
    StepOrigins {
        decode: drafts.is_some(),
        tokens: output.tokens.len(),
        source: output.source.filter(|_| drafted > 0),
        accepted,
        rejected,
    }
}

/// The prompt log-probabilities of a plan row that were not delivered before a preemption.
fn new_scores(request: &mut Request, row: &PlanRow, output: &mut RowOutput) -> Vec<TokenLogprobs> {
    let mut scores = std::mem::take(&mut output.prompt_logprobs);
    if let Work::Prefill { start, .. } = row.work {
        // The first of them is of the token at start + 1; `scored` counts from token 1.
        let delivered = request.scored.saturating_sub(start).min(scores.len());
        scores.drain(..delivered);
    }
    request.scored += scores.len();
    scores
}

/// Panics unless the device kept its word for a plan row of a request that is alive.
fn check_output(id: RequestId, row: &PlanRow, output: &RowOutput) {
    let tokens = output.tokens.len();
    let holds = match row.work {
        Work::Prefill { last, .. } => tokens == usize::from(last),
        Work::Verify { drafts } => (1..=1 + drafts).contains(&tokens) && output.drafted <= drafts,
        Work::Embed { last, .. } => tokens == 0 && output.embedding.is_empty() != last,
    };
    assert!(holds, "request {}: {:?} yielded {tokens} tokens", id.0, row.work);
    assert!(
        output.end.is_none() || tokens > 0,
        "request {} ended without a token",
        id.0
    );
    assert!(
        row.snapshot.is_some() || !output.snapshot_written,
        "request {}: a state was saved that nobody asked for",
        id.0
    );
}
