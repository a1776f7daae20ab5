//! One step's plan: decodes first, then pieces of prompts, then newcomers.

use super::{Resources, Running, Scheduler};
use crate::constraint::{Constrained, Window};
use crate::policy::{RequestView, Stage, both, cut};
use crate::request::{Phase, Request, RequestId};
use paceline_cache::Restore;
use paceline_types::{Admission, DraftBudget, PlanRow, StepPlan, TokenId, Work};

/// A plan in the making.
pub(super) struct PlanBuilder {
    plan: StepPlan,
    /// Tokens and samples that the step has left.
    tokens: usize,
    samples: usize,
    /// Masks that it has left.
    masks: usize,
    /// Of the tokens, those that prompts may take.
    prompt_tokens: usize,
    /// A request was preempted.
    pub(super) preempted: bool,
    /// States that this step starts from: not to be given away within the same step.
    restored: Vec<Restore>,
}

impl PlanBuilder {
    pub(super) fn has_room(&self) -> bool {
        self.tokens > 0 && self.samples > 0 && self.prompt_tokens > 0
    }

    #[inline]
    fn push(&mut self, row: PlanRow) {
        self.tokens -= row.work.tokens();
        self.samples -= row.work.samples();
        self.masks -= row.masks();
        if let Work::Prefill { tokens, .. } | Work::Embed { tokens, .. } = &row.work {
            self.prompt_tokens -= tokens.len();
        }
        self.plan.rows.push(row);
    }
}

impl Scheduler {
    /// Plans the next step, or nothing if there is nothing to run before a step in flight is collected. `now` is
    /// what deadlines are compared with. Cost: linear in the plan rows, their tokens and the requests that change.
    pub fn plan(&mut self, now: u64) -> Option<StepPlan> {
        self.expire(now);
        self.admissions.clear();
        let mut builder = PlanBuilder {
            plan: StepPlan {
                rows: Vec::with_capacity(self.running.len() + 1),
                ..StepPlan::default()
            },
            tokens: self.resources.config.max_batched_tokens,
            samples: self.resources.config.max_samples,
            masks: self.resources.config.max_masks,
            prompt_tokens: self.resources.config.max_batched_tokens,
            preempted: false,
            restored: Vec::new(),
        };
        self.admit_urgent(&mut builder);
        self.plan_running(&mut builder);
        self.admit_waiting(&mut builder);
        let mut plan = builder.plan;
        if plan.rows.is_empty() {
            return None;
        }
        self.planned_steps += 1;
        plan.step = self.planned_steps;
        Some(plan)
    }

    /// A plan row for every running request that can go on: decodes, then prompts with what is left.
    fn plan_running(&mut self, builder: &mut PlanBuilder) {
        let (mut prefills, mut decodes) = (Vec::new(), std::mem::take(&mut self.decodes));
        for id in self.running.values() {
            let request = self.request(*id);
            if request.running().is_some_and(Running::prefilling) {
                prefills.push(*id);
            } else if request.pooling.is_none() {
                // A text that becomes a vector is done when it is planned.
                decodes.push(*id);
            }
        }
        let waited = std::mem::take(&mut self.waiting_for_masks);
        if !waited.is_empty() {
            // Masks are scarce: those whose turn is longest past come first.
            let turn = |id: &RequestId| self.request(*id).running().map_or(0, |running| running.mask_turn);
            decodes.sort_by_key(turn);
        }
        // Every running request gets a token; drafts share the rest, with prompts if there are any or one may come.
        let prompts = !prefills.is_empty() || self.expects_newcomer();
        let share = if prompts { 2 } else { 1 };
        let mut spare = (builder.tokens.min(builder.samples) - self.running.len()) / share;
        self.resources.policy.begin_step(decodes.len(), &self.costs);
        let allowed = self.prefill_throttle.prompt_tokens(decodes.len(), &self.costs);
        builder.prompt_tokens = builder.prompt_tokens.min(allowed);
        // Prompts that found no room for their first mask have one in this step.
        let first_masks = prefills.iter().filter(|id| waited.contains(id)).count();
        let reserved = first_masks.min(builder.masks);
        builder.masks -= reserved;
        for id in decodes.drain(..) {
            self.plan_decode(id, &mut spare, builder);
        }
        self.decodes = decodes;
        builder.masks += reserved;
        for id in prefills {
            self.plan_prefill(id, builder);
        }
    }

    /// Plans the newest token and some drafts of a request, unless it has been pushed out or may be complete.
    fn plan_decode(&mut self, id: RequestId, spare: &mut usize, builder: &mut PlanBuilder) {
        let request = self.request(id);
        let Some(running) = request.running() else { return };
        if let Some(constrained) = &request.constraint {
            // What may come behind a plan row is known when it is done, and computed before the next.
            if running.bounds.in_flight() || !constrained.is_ready() {
                return;
            }
            // A step has room for some masks and not for more.
            if builder.masks == 0 {
                self.waiting_for_masks.push(id);
                return;
            }
        }
        let (high, held) = (running.bounds.high, running.blocks.len());
        if high >= request.max_length {
            return;
        }
        let window = request.constraint.as_ref().and_then(Constrained::ready);
        // Drafts that leave room for the token behind them.
        let room = request.max_length - high - 1;
        let drafts = window.map_or(running.proposed.most(), |window| {
            window.drafts().min(builder.masks - 1)
        });
        let ready = drafts.min(room).min(*spare);
        let forced = window.is_some_and(Window::is_forced);
        // Behind the plan row there is room for as many as if it accepted none; the device cuts them when it has.
        let behind = (request.max_length - running.bounds.low).saturating_sub(2);
        let most = self.resources.config.drafts.min(behind);
        let limit = cut(request.speculation, both(most));
        let max_length = request.max_length;
        let choice = self.resources.policy.choose(&RequestView {
            id,
            stage: Stage::Decode,
            known: request.known(),
            upper_bound: high,
            ready,
            most: limit,
        });
        let mut blocks = Blocks {
            known: high,
            // What a grammar forces is accepted, whatever others have taught.
            verify: if forced { ready } else { choice.verify.min(ready) },
            propose: cut(choice.propose, limit),
            most: max_length,
        };
        if !self.secure(id, held, &mut blocks, builder) {
            return;
        }
        let Blocks { verify, propose, .. } = blocks;
        *spare -= verify;
        self.push_decode(id, (verify, propose), builder);
    }

    /// Adds the plan row of a decode that verifies `verify` drafts.
    fn push_decode(
        &mut self,
        id: RequestId,
        (verify, propose): (usize, DraftBudget),
        builder: &mut PlanBuilder,
    ) {
        self.mask_turns += 1;
        let turn = self.mask_turns;
        self.with_running(id, |resources, request, running| {
            running.mask_turn = turn;
            let window = request.constraint.as_ref().and_then(Constrained::ready);
            let constraint = window.map(|window| window.row(verify));
            let snapshot = resources.save_in_decode(running);
            running.bounds.plan(verify);
            running.proposed = propose;
            builder.push(PlanRow {
                slot: running.slot,
                generation: running.generation,
                work: Work::Verify { drafts: verify },
                new_blocks: running.unsent_blocks(),
                snapshot,
                propose,
                show_drafts: request.shows_drafts && propose != DraftBudget::NONE,
                constraint,
            });
        });
    }

    /// Blocks for a decode row beside those `held`: if there are not enough for all that is wanted, then without what the drafter would
    /// write behind it, then without its drafts; only for its newest token others are pushed out. False if the
    /// request itself went.
    fn secure(&mut self, id: RequestId, held: usize, blocks: &mut Blocks, builder: &mut PlanBuilder) -> bool {
        let size = self.resources.config.block_size;
        let wanted = blocks.missing(size, held);
        if wanted == 0 || self.extend(id, wanted) {
            return true;
        }
        blocks.propose = blocks.that_fits(size, held);
        let wanted = blocks.missing(size, held);
        if wanted == 0 || self.extend(id, wanted) {
            return true;
        }
        blocks.verify = 0;
        blocks.propose = DraftBudget::NONE;
        self.make_room(id, blocks.missing(size, held), builder)
    }

    /// Plans the next piece of a request's known tokens, as much as the step has room for.
    pub(super) fn plan_prefill(&mut self, id: RequestId, builder: &mut PlanBuilder) {
        if self.request(id).running().is_none() {
            return;
        }
        let tokens = builder.tokens.min(builder.prompt_tokens);
        let (samples, masks) = (builder.samples, builder.masks);
        let planned = self.with_running(id, |resources, request, running| {
            let scores = request.scores_prompt() && running.planned + 1 < request.prompt.len();
            let mut len = (running.target - running.planned).min(tokens);
            if scores {
                len = len.min(samples);
            }
            if len > 0 && running.planned + len == running.target && !may_end(request, samples, masks) {
                len -= 1;
            }
            if len == 0 {
                return None;
            }
            let (len, snapshot) = resources.save_in_prefill(running, len);
            let start = running.planned;
            let mut chunk = Vec::with_capacity(len);
            request.tokens().append_to(start..start + len, &mut chunk);
            running.planned += len;
            let last = !running.prefilling();
            let propose = resources.propose_behind_prompt(request, running);
            if last && request.pooling.is_none() {
                running.bounds.plan(0);
            }
            running.proposed = propose;
            let window = request.constraint.as_ref().and_then(Constrained::ready);
            let constraint = window.filter(|_| last).map(|window| window.row(0));
            let admission = (!running.announced).then(|| admission(request, running));
            running.announced = true;
            let row = PlanRow {
                slot: running.slot,
                generation: running.generation,
                work: prompt_work(request, (start, chunk), last, scores),
                new_blocks: running.unsent_blocks(),
                snapshot,
                propose,
                show_drafts: request.shows_drafts && propose != DraftBudget::NONE,
                constraint,
            };
            Some((row, admission, running.restore.take()))
        });
        let constraint = self.request(id).constraint.as_ref();
        if masks == 0 && constraint.is_some_and(Constrained::is_ready) {
            self.waiting_for_masks.push(id);
        }
        let Some((row, admission, restore)) = planned else {
            return;
        };
        self.resources.counters.snapshots_used += u64::from(restore.is_some());
        builder.restored.extend(restore);
        builder.plan.admissions.extend(admission);
        builder.push(row);
    }

    /// Works on a running request, with what it shares with the others.
    pub(super) fn with_running<T>(
        &mut self,
        id: RequestId,
        work: impl FnOnce(&mut Resources, &mut Request, &mut Running) -> T,
    ) -> T {
        let Some(request) = self.requests.get_mut(&id) else {
            panic!("request {} is gone", id.0);
        };
        let Phase::Running(mut running) = std::mem::replace(&mut request.phase, Phase::Waiting) else {
            panic!("request {} is not running", id.0);
        };
        let result = work(&mut self.resources, request, &mut running);
        request.phase = Phase::Running(running);
        result
    }
}

impl Resources {
    /// Drafts wanted behind a piece of a prompt that has just been planned. Behind the last piece they need blocks,
    /// like those behind a decode row; before that it is a matter of what the neural drafter sees.
    fn propose_behind_prompt(&mut self, request: &Request, running: &mut Running) -> DraftBudget {
        if request.pooling.is_some() {
            return DraftBudget::NONE;
        }
        let last = !running.prefilling();
        let room = request.max_length - running.target;
        let limit = cut(request.speculation, both(self.config.drafts));
        let most = cut(limit, both(room.saturating_sub(2)));
        let choice = self.policy.choose(&RequestView {
            id: request.id,
            stage: if last { Stage::PromptEnd } else { Stage::Prompt },
            known: request.known(),
            upper_bound: running.target,
            ready: 0,
            most,
        });
        let propose = cut(choice.propose, most);
        if !last {
            return DraftBudget { ngram: 0, ..propose };
        }
        let blocks = Blocks {
            known: running.target,
            verify: 0,
            propose,
            most: request.max_length,
        };
        let (size, held) = (self.config.block_size, running.blocks.len());
        let wanted = blocks.missing(size, held);
        if wanted == 0 || self.caches.extend(&mut running.blocks, wanted) {
            propose
        } else {
            blocks.that_fits(size, held)
        }
    }
}

/// What a plan row needs blocks for.
struct Blocks {
    /// Most tokens known before it.
    known: usize,
    /// Drafts that it verifies.
    verify: usize,
    /// Drafts made behind it. A drafter runs them, at the positions that the next plan row will run them at.
    propose: DraftBudget,
    /// Tokens that the request can have at all.
    most: usize,
}

impl Blocks {
    /// Tokens that need a block if no drafts are made behind the plan row: all but the one that it chooses last.
    fn run(&self) -> usize {
        self.known + self.verify
    }

    /// Blocks to be added to those held.
    fn missing(&self, block_size: usize, held: usize) -> usize {
        let behind = match self.propose.most() {
            0 => 0,
            most => 1 + most,
        };
        let tokens = (self.run() + behind).min(self.most);
        tokens.div_ceil(block_size).saturating_sub(held)
    }

    /// As much of the proposal as the blocks held have room for.
    fn that_fits(&self, block_size: usize, held: usize) -> DraftBudget {
        if held * block_size >= self.most {
            return self.propose;
        }
        let room = (held * block_size).saturating_sub(self.run() + 1);
        cut(self.propose, both(room))
    }
}

/// Whether a plan row may run the last known token of a request: the token behind it is not to be chosen without a
/// plan row of logits, nor without its mask.
fn may_end(request: &Request, samples: usize, masks: usize) -> bool {
    let masked = |constrained: &Constrained| masks > 0 && constrained.is_ready();
    request.pooling.is_some() || samples > 0 && request.constraint.as_ref().is_none_or(masked)
}

/// A piece of known tokens, the last one or not.
fn prompt_work(
    request: &Request,
    (start, tokens): (usize, Vec<TokenId>),
    last: bool,
    prompt_logprobs: bool,
) -> Work {
    match request.pooling {
        Some(pooling) => Work::Embed {
            start,
            tokens,
            last,
            pooling,
        },
        None => Work::Prefill {
            start,
            following: request.tokens().get(start + tokens.len()),
            tokens,
            last,
            prompt_logprobs,
        },
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
        stop_tokens: request.stop_tokens.to_vec(),
        restore: running.restore.as_ref().map(Restore::id),
    }
}
