//! What a step's output means for the requests: new tokens, published blocks, saved states, endings.

use super::saves::Ending;
use super::{Resources, Running, Scheduler};
use crate::constraint::Constrained;
use crate::costs::Gain;
use crate::policy::RowDrafts;
use crate::request::{Order, Request, RequestId, RequestOutput};
use crate::times::{StepTimes, tokens_run};
use paceline_types::{FinishReason, PlanRow, RowEnd, RowOutput, StepOutput, StepPlan, TokenLogprobs, Work};

impl Scheduler {
    /// Takes in the output of the oldest step in flight. Returns what it brought, and any endings since the last
    /// call. Panics if the output cannot be true: that is corruption, not a request's error.
    pub fn collect(&mut self, plan: &StepPlan, output: StepOutput) -> Vec<RequestOutput> {
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
        let times = StepTimes::of(plan, &output);
        let gain = self.costs.gain(&times);
        self.last_step = times;
        let mut request_outputs = self.take_deliveries();
        request_outputs.reserve(plan.rows.len());
        for (row, output) in plan.rows.iter().zip(output.rows) {
            if let Some(id) = self.slots.owner(row.slot, row.generation) {
                check_output(id, row, &output);
                if let Work::Verify { drafts } = row.work {
                    self.count_drafts(id, drafts, &output, gain);
                }
                request_outputs.extend(self.collect_row(id, row, output));
            } else {
                // The request left its slot while the plan row was in flight.
                self.resources.counters.wasted_rows += 1;
                self.resources.counters.wasted_tokens += tokens_run(row, &output) as u64;
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

    fn collect_row(&mut self, id: RequestId, row: &PlanRow, mut output: RowOutput) -> Option<RequestOutput> {
        let prompt_computed = matches!(row.work, Work::Prefill { last: true, .. });
        let embedded = matches!(row.work, Work::Embed { last: true, .. });
        let end = output.end.or(embedded.then_some(RowEnd::Length));
        let made = std::mem::take(&mut output.made);
        let mut request_output = self.with_running(id, |resources, request, running| {
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
                id.0,
                request.max_length
            );
            resources.publish_blocks(request, running, computed);
            if let Some(plan) = row.snapshot {
                resources.collect_save(running, plan, output.snapshot_written);
            }
            RequestOutput {
                id,
                prompt_logprobs: new_scores(request, row, &mut output),
                tokens: output.tokens,
                logprobs: output.logprobs,
                finish: None,
                detail: None,
                embedding: output.embedding,
                speculation: None,
                cached_tokens: request.cached.unwrap_or(0),
            }
        });
        self.charge(self.request(id).order, request_output.tokens.len());
        if prompt_computed && let Some(group) = self.request(id).group {
            for (order, member) in self.groups.prompt_computed(group, id) {
                self.enqueue(order, member);
            }
        }
        if let Some(end) = end {
            self.settle_charges();
            request_output.finish = Some(match end {
                RowEnd::StopToken => FinishReason::Stop,
                RowEnd::Length => FinishReason::Length,
            });
            request_output.speculation = Some(Box::new(self.request(id).report));
            self.remove(id, Ending::Done);
        } else if row.constraint.is_some() {
            self.ask_masks(id, request_output.tokens.clone(), made);
        }
        let empty = request_output.tokens.is_empty()
            && request_output.prompt_logprobs.is_empty()
            && request_output.finish.is_none();
        (!empty).then_some(request_output)
    }

    fn count_drafts(&mut self, id: RequestId, planned: usize, output: &RowOutput, gain: Option<Gain>) {
        let (tokens, drafted) = (output.tokens.len(), output.drafted);
        let accepted = (tokens - 1).min(drafted);
        let drafts = RowDrafts {
            planned,
            drafted,
            accepted,
            source: output.source,
        };
        self.resources.counters.count_drafts(&drafts);
        let gained = gain.map_or(0.0, |gain| gain.share(&self.last_step, drafted, accepted));
        self.request_mut(id).report.add(tokens, drafted, accepted, gained);
        let window = self.request(id).constraint.as_ref().and_then(Constrained::ready);
        let taught = window.map_or(drafts, |window| window.teach(drafts));
        self.resources.policy.observe_row(id, &taught);
    }
}

impl Resources {
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
