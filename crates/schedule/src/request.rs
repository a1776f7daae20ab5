//! Requests: what callers hand in, what they get back, and the little that is kept of each.

use crate::constraint::Constrained;
use crate::report::SpeculationReport;
use crate::scheduler::Running;
use paceline_cache::TokenList;
use paceline_types::{
    Constraint, DraftBudget, FinishReason, MAX_DRAFTS, Pooling, SamplingParams, TokenId, TokenLogprobs,
};
use std::ops::Deref;
use std::sync::Arc;

/// A request's name, unique among those alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// A set of requests with the same prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub u64);

/// A request that has passed every check, from the moment it was asked for until it has ended: nothing converts, copies
/// or checks it again. Prompt, parameters and stop tokens are shared by its clones.
///
/// **Groups.** The members of a group (`n` > 1) are requests of their own with one prompt. The first to arrive
/// leads; the others are parked until its prompt is computed and its blocks are in the prefix index. Then they
/// are queued at their place of arrival and are admitted like anyone else: the look-up finds the prompt's full
/// blocks, and for recurrent models the state saved at the last block boundary of the prompt, so each runs the
/// rest of the last block and no more. Nothing is copied or forked. If the leader ends early, the next leads.
/// Without prefix caching the members share a salt of their own.
#[derive(Clone, Debug)]
pub struct CheckedRequest {
    /// Its name.
    pub id: RequestId,
    /// Its prompt.
    pub prompt: Arc<[TokenId]>,
    /// Tokens behind the prompt that were generated before, elsewhere. What comes goes on behind them as though they had
    /// been generated here, like after a preemption; they are not delivered again.
    pub generated: Arc<[TokenId]>,
    /// How tokens are chosen.
    pub params: Arc<SamplingParams>,
    /// Tokens that end it: the model's own unless they are to be ignored, and the caller's.
    pub stop_tokens: Arc<[TokenId]>,
    /// Lower comes first.
    pub priority: i32,
    /// Whose it is: within a priority, waiting is shared between tenants by the tokens that they get.
    pub tenant: u32,
    /// When it is dropped, finished or not, by the clock given to [`Scheduler::plan`](crate::Scheduler::plan).
    pub deadline: Option<u64>,
    /// Only requests with the same salt share cached prefixes.
    pub salt: u64,
    /// It ends when prompt and text are this long.
    pub max_length: usize,
    /// Requests with the same prompt that should share it.
    pub group: Option<GroupId>,
    /// Most drafts, by source: [`CheckedRequest::ANY_DRAFTS`], or [`DraftBudget::NONE`] for none.
    pub speculation: DraftBudget,
    /// What its text must follow, if anything.
    pub constraint: Option<Arc<dyn Constraint>>,
    /// The prompt is to become one vector, and nothing is generated: `max_length` is its length, and nothing that is
    /// about generating matters.
    pub pooling: Option<Pooling>,
}

impl CheckedRequest {
    /// As many drafts as the engine sees fit.
    pub const ANY_DRAFTS: DraftBudget = DraftBudget {
        ngram: MAX_DRAFTS,
        neural: MAX_DRAFTS,
    };
}

/// Too many requests wait for another one to be taken in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the queue is full: max_waiting is {limit}")]
pub struct QueueFull {
    /// The bound.
    pub limit: usize,
}

/// What a request gets from a step.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestOutput {
    /// The request that it belongs to.
    pub id: RequestId,
    /// New tokens, in order, behind those delivered before.
    pub tokens: Vec<TokenId>,
    /// Of `tokens`, where asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// Of the prompt's tokens from the second on, behind those delivered before, where asked for.
    pub prompt_logprobs: Vec<TokenLogprobs>,
    /// Set on the last delivery of a request, which comes exactly once.
    pub finish: Option<FinishReason>,
    /// With an end by a constraint: what it ran into.
    pub detail: Option<String>,
    /// The vector that the prompt has become, if that was asked for, with the last delivery; else empty.
    pub embedding: Vec<f32>,
    /// With the last delivery: what speculation did for the request.
    pub speculation: Option<Box<SpeculationReport>>,
    /// Tokens of the prompt that it found in the prefix cache when it first started.
    pub cached_tokens: usize,
}

/// A request's place in the queue, for life, so that one that was preempted comes before all of its tenant that arrived
/// later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Order {
    pub(crate) priority: i32,
    pub(crate) arrival: u64,
    pub(crate) tenant: u32,
}

impl Order {
    /// Whether the tokens of both count against the same tenant at the same priority.
    pub(crate) fn shares_account(&self, other: Self) -> bool {
        (self.priority, self.tenant) == (other.priority, other.tenant)
    }
}

/// The order of those that have been admitted: priority, then when it was for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub(crate) priority: i32,
    pub(crate) admission: u64,
}

/// A request while it is served: what was asked, whose fields read as its own, and what has come of it so far.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) asked: CheckedRequest,
    /// Delivered, here or elsewhere, and behind the prompt on a new start after a preemption.
    pub(crate) generated: Vec<TokenId>,
    pub(crate) order: Order,
    /// From its first admission on.
    pub(crate) rank: Option<Rank>,
    /// The constraint that was asked for, with the matcher that follows its text.
    pub(crate) constraint: Option<Constrained>,
    pub(crate) report: SpeculationReport,
    /// The host wants to see the drafts behind its plan rows: to compute masks for them, or to tell which were rejected.
    pub(crate) shows_drafts: bool,
    /// The drafts behind its newest plan row that was collected, where how its tokens come is asked for.
    pub(crate) shown_drafts: Vec<TokenId>,
    /// Prompt log-probabilities delivered.
    pub(crate) scored: usize,
    /// Tokens that its first start found cached; `None` before it.
    pub(crate) cached: Option<usize>,
    pub(crate) phase: Phase,
}

impl Deref for Request {
    type Target = CheckedRequest;

    fn deref(&self) -> &CheckedRequest {
        &self.asked
    }
}

/// Where a request is.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Kept out of the queue until its group's prompt is computed.
    Parked,
    /// In the queue.
    Waiting,
    /// In a slot.
    Running(Box<Running>),
}

impl Request {
    pub(crate) fn new(asked: CheckedRequest, arrival: u64) -> Self {
        let shows_drafts = asked.constraint.is_some() || asked.params.origins;
        Self {
            generated: asked.generated.to_vec(),
            order: Order {
                priority: asked.priority,
                arrival,
                tenant: asked.tenant,
            },
            rank: None,
            constraint: asked.constraint.clone().map(Constrained::new),
            asked,
            report: SpeculationReport::default(),
            shows_drafts,
            shown_drafts: Vec::new(),
            scored: 0,
            cached: None,
            phase: Phase::Waiting,
        }
    }

    /// Tokens known to the host.
    pub(crate) fn known(&self) -> usize {
        self.prompt.len() + self.generated.len()
    }

    pub(crate) fn tokens(&self) -> TokenList<'_> {
        TokenList::new(&self.prompt, &self.generated)
    }

    /// Tokens of the prompt that its first start found cached.
    pub(crate) fn cached_prompt(&self) -> usize {
        self.cached.unwrap_or(0).min(self.prompt.len())
    }

    /// Whether some of the prompt's log-probabilities are still owed. The first token has none.
    pub(crate) fn scores_prompt(&self) -> bool {
        self.params.prompt_logprobs.is_some() && self.scored + 1 < self.prompt.len()
    }

    /// Most tokens that may come from the prefix cache: those whose states and logits are not needed.
    pub(crate) fn reusable(&self) -> usize {
        if self.pooling == Some(Pooling::Mean) {
            0
        } else if self.scores_prompt() {
            self.scored
        } else {
            usize::MAX
        }
    }

    pub(crate) fn running(&self) -> Option<&Running> {
        match &self.phase {
            Phase::Running(running) => Some(running),
            Phase::Parked | Phase::Waiting => None,
        }
    }

    pub(crate) fn running_mut(&mut self) -> Option<&mut Running> {
        match &mut self.phase {
            Phase::Running(running) => Some(running),
            Phase::Parked | Phase::Waiting => None,
        }
    }

    /// Nothing but the end.
    pub(crate) fn ending(&self, finish: FinishReason) -> RequestOutput {
        RequestOutput {
            id: self.id,
            tokens: Vec::new(),
            logprobs: Vec::new(),
            prompt_logprobs: Vec::new(),
            finish: Some(finish),
            detail: None,
            embedding: Vec::new(),
            speculation: Some(Box::new(self.report)),
            cached_tokens: self.cached_prompt(),
        }
    }
}
