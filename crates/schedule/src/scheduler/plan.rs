//! One step's plan: decodes first, then pieces of prompts, then newcomers.

use super::{Running, Scheduler};
use crate::policy::RequestView;
use crate::request::{Phase, Request, RequestId};
use paceline_cache::Restore;
use paceline_types::{Admission, PlanRow, Propose, StepPlan, Work};

/// A plan in the making.
pub(super) struct Draft {
    plan: StepPlan,
    /// Tokens and samples that the step has left.
    tokens: usize,
    samples: usize,
    /// Somebody was pushed out.
    pub(super) preempted: bool,
    /// States that this step starts from: not to be given away within the same step.
    restored: Vec<Restore>,
}

impl Draft {
    pub(super) fn has_room(&self) -> bool {
        self.tokens > 0 && self.samples > 0
    }

    fn push(&mut self, row: PlanRow) {
        self.tokens -= row.work.tokens();
        self.samples -= row.work.samples();
        self.plan.rows.push(row);
    }
}

impl Scheduler {
    /// Plans the next step, or nothing if there is nothing to run before a step in flight is collected. `now` is
    /// what deadlines are compared with. Cost: linear in the rows, their tokens and the requests that change.
    pub fn plan(&mut self, now: u64) -> Option<StepPlan> {
        self.expire(now);
        let mut draft = Draft {
            plan: StepPlan::default(),
            tokens: self.config.max_batched_tokens,
            samples: self.config.max_samples,
            preempted: false,
            restored: Vec::new(),
        };
        self.admit_urgent(&mut draft);
        self.plan_running(&mut draft);
        self.admit_waiting(&mut draft);
        let mut plan = draft.plan;
        if plan.rows.is_empty() {
            return None;
        }
        self.planned_steps += 1;
        plan.step = self.planned_steps;
        Some(plan)
    }

    /// A row for every running request that can go on: decodes, then prompts with what is left.
    fn plan_running(&mut self, draft: &mut Draft) {
        let in_order: Vec<RequestId> = self.running.values().copied().collect();
        let prefilling = |id: &RequestId| self.request(*id).running().is_some_and(Running::prefilling);
        let (prefills, decodes): (Vec<RequestId>, Vec<RequestId>) =
            in_order.iter().partition(|id| prefilling(id));
        // Everyone who runs gets a token; drafts share the rest, with prompts if there are any.
        let share = if prefills.is_empty() { 1 } else { 2 };
        let mut spare = (draft.tokens.min(draft.samples) - in_order.len()) / share;
        for id in decodes {
            self.plan_decode(id, &mut spare, draft);
        }
        for id in prefills {
            self.plan_prefill(id, draft);
        }
    }

    /// Plans the newest token and some drafts of a request, unless it has been pushed out or may be complete.
    fn plan_decode(&mut self, id: RequestId, spare: &mut usize, draft: &mut Draft) {
        let request = self.request(id);
        let Some(running) = request.running() else { return };
        let high = running.bounds.high;
        if high >= request.max_length {
            return;
        }
        let most = self.config.drafts.min(request.max_length - high - 1).min(*spare);
        let view = RequestView {
            id,
            known: request.known(),
            upper_bound: high,
            running: self.running.len(),
            most,
        };
        let held = running.blocks.len();
        let pages = |drafts: usize| {
            (high + drafts)
                .div_ceil(self.config.block_size)
                .saturating_sub(held)
        };
        let mut drafts = self.policy.drafts_for(&view).min(most);
        let (wanted, least) = (pages(drafts), pages(0));
        // Drafts are not worth pushing anyone out.
        if wanted > 0 && !self.extend(id, wanted) {
            drafts = 0;
            if !self.make_room(id, least, draft) {
                return;
            }
        }
        *spare -= drafts;
        let row = self.with_running(id, |scheduler, _, running| {
            let snapshot = scheduler.save_in_decode(running);
            running.bounds.plan(drafts);
            PlanRow {
                slot: running.slot,
                generation: running.generation,
                work: Work::Verify { drafts },
                new_blocks: running.unsent_blocks(),
                snapshot,
                propose: Propose::NONE,
            }
        });
        draft.push(row);
    }

    /// Plans the next piece of a request's known tokens, as much as the step has room for.
    pub(super) fn plan_prefill(&mut self, id: RequestId, draft: &mut Draft) {
        if self.request(id).running().is_none() {
            return;
        }
        let (tokens, samples) = (draft.tokens, draft.samples);
        let planned = self.with_running(id, |scheduler, request, running| {
            let scores = request.scores_prompt() && running.planned + 1 < request.prompt.len();
            let mut len = (running.target - running.planned).min(tokens);
            if scores {
                len = len.min(samples);
            } else if samples == 0 && running.planned + len == running.target {
                len -= 1;
            }
            if len == 0 {
                return None;
            }
            let (len, snapshot) = scheduler.save_in_prefill(running, len);
            let start = running.planned;
            let mut chunk = Vec::with_capacity(len);
            request.tokens().append_to(start..start + len, &mut chunk);
            running.planned += len;
            let last = !running.prefilling();
            if last {
                running.bounds.plan(0);
            }
            let following = request.tokens().get(running.planned);
            let admission = (!running.announced).then(|| admission(request, running));
            running.announced = true;
            let row = PlanRow {
                slot: running.slot,
                generation: running.generation,
                work: Work::Prefill {
                    start,
                    tokens: chunk,
                    last,
                    following,
                    prompt_logprobs: scores,
                },
                new_blocks: running.unsent_blocks(),
                snapshot,
                propose: Propose::NONE,
            };
            Some((row, admission, running.restore.take()))
        });
        let Some((row, admission, restore)) = planned else {
            return;
        };
        self.counters.snapshots_used += u64::from(restore.is_some());
        draft.restored.extend(restore);
        draft.plan.admissions.extend(admission);
        draft.push(row);
    }

    /// Works on a running request and the scheduler at the same time.
    pub(super) fn with_running<T>(
        &mut self,
        id: RequestId,
        work: impl FnOnce(&mut Self, &mut Request, &mut Running) -> T,
    ) -> T {
        let Some(mut request) = self.requests.remove(&id) else {
            panic!("request {} is gone", id.0);
        };
        let Phase::Running(mut running) = std::mem::replace(&mut request.phase, Phase::Waiting) else {
            panic!("request {} is not running", id.0);
        };
        let result = work(self, &mut request, &mut running);
        request.phase = Phase::Running(running);
        self.requests.insert(id, request);
        result
    }
}

fn admission(request: &Request, running: &Running) -> Admission {
    Admission {
        slot: running.slot,
        generation: running.generation,
        params: request.params.clone(),
        prompt_tokens: request.prompt.len(),
        cached_tokens: running.cached,
        max_length: request.max_length,
        min_length: request.prompt.len() + request.params.min_tokens,
        stop_tokens: request.stop_tokens.clone(),
        restore: running.restore.as_ref().map(Restore::id),
    }
}
