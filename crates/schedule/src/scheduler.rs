//! The scheduler: requests in, plans out, outputs in, deliveries out.
//!
//! One rule covers prefill, chunks, cached prefixes, speculation and restarts: the computed tokens of a request
//! catch up with its known ones. The host plans ahead of the results, assuming that every draft is accepted, and
//! uses that bound to reserve blocks and for nothing else.
//!
//! **Order.** Requests are admitted by priority, then fairly between tenants, then by arrival (see [`queue`]). Those
//! admitted are served by priority, then first admission, for life. Only a request that comes earlier in this
//! order can push out another, so the first one is never pushed out and always gets on: no livelock, and nobody
//! waits for ever behind requests of its own priority.
//!
//! **Release.** Steps run in order, so a block, slot or state that the host lets go can be part of the very next
//! plan, even while steps that touch it are in flight. Their late results name a generation that is no more.

mod admit;
mod collect;
mod groups;
mod integrity;
mod masks;
mod plan;
mod queue;
mod running;
mod saves;
mod slots;
mod status;
mod table;

pub(crate) use running::Running;
pub use status::RequestStatus;
pub(crate) use table::ById;

use crate::config::{InvalidConfig, SchedulerConfig};
use crate::costs::StepCosts;
use crate::counters::Counters;
use crate::policy::{DraftPolicy, FixedDrafts};
use crate::prefill_throttle::PrefillThrottle;
use crate::report::StepOrigins;
use crate::request::{CheckedRequest, Order, Phase, QueueFull, Rank, Request, RequestId, RequestOutput};
use crate::times::StepTimes;
use groups::Groups;
use paceline_cache::{CacheConfig, CacheFeed, CacheUse, Caches};
use paceline_types::FinishReason;
use queue::Queue;
use saves::Ending;
use slots::Slots;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use table::Table;

/// Decides what runs. Owns the caches' bookkeeping; touches no device and never waits.
pub struct Scheduler {
    resources: Resources,
    costs: StepCosts,
    prefill_throttle: PrefillThrottle,
    /// The step collected last.
    last_step: StepTimes,
    /// Requests that ask how their tokens come, and what is to be told of it.
    asking_origins: usize,
    origins: Vec<(RequestId, StepOrigins)>,
    requests: Table,
    queue: Queue,
    running: BTreeMap<Rank, RequestId>,
    deadlines: BTreeSet<(u64, RequestId)>,
    groups: Groups,
    slots: Slots,
    /// Endings that no step will report.
    outbox: Vec<RequestOutput>,
    /// Constrained requests whose masks are not being computed yet. Each is there once; some may have ended.
    masks_due: VecDeque<RequestId>,
    /// Requests whose masks found no room in the last step.
    waiting_for_masks: Vec<RequestId>,
    /// Tokens of the step that is being collected that a tenant is yet to be charged for.
    uncharged: Option<(Order, usize)>,
    /// Decode rows planned so far.
    mask_turns: u64,
    /// Jobs of masks that workers have.
    masks_away: usize,
    arrivals: u64,
    /// First admissions.
    started: u64,
    planned_steps: u64,
    collected_steps: u64,
    /// The first in the queue could not be admitted: it, and the free blocks that it needs at least. Spares a
    /// look-up of its whole prompt in every plan until they are there.
    blocked: Option<(Order, usize)>,
    /// Requests that got a slot in the newest plan.
    admissions: Vec<RequestId>,
    /// Those that decode, while a step is planned; the memory is kept.
    decodes: Vec<RequestId>,
}

/// What running requests share, apart from the requests, so that one of them can be worked on together with it.
struct Resources {
    config: SchedulerConfig,
    caches: Caches,
    policy: Box<dyn DraftPolicy>,
    counters: Counters,
    /// Running requests that hold a place for a rolling state.
    rolling: usize,
}

impl Scheduler {
    /// A scheduler that wants `config.drafts` drafts for every plan row, from wherever there are some. Panics on a
    /// configuration that [`SchedulerConfig::check`] refuses.
    pub fn new(config: SchedulerConfig) -> Self {
        let drafts = FixedDrafts::any(config.drafts);
        Self::with_policy(config, Box::new(drafts))
    }

    /// A scheduler with a policy of its own for drafts.
    pub fn with_policy(config: SchedulerConfig, policy: Box<dyn DraftPolicy>) -> Self {
        let checked: Result<(), InvalidConfig> = config.check();
        assert!(checked.is_ok(), "{checked:?}");
        let caches = Caches::new(CacheConfig {
            block_size: config.block_size,
            num_blocks: config.num_blocks,
            snapshots: config.recurrent.map(|recurrent| recurrent.snapshots),
        });
        let slots = Slots::new(config.slots);
        let prefill_throttle = PrefillThrottle::new(config.max_step_ns);
        Self {
            resources: Resources {
                config,
                caches,
                policy,
                counters: Counters::default(),
                rolling: 0,
            },
            costs: StepCosts::default(),
            prefill_throttle,
            last_step: StepTimes::default(),
            asking_origins: 0,
            origins: Vec::new(),
            requests: Table::default(),
            queue: Queue::default(),
            running: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            groups: Groups::default(),
            slots,
            outbox: Vec::new(),
            masks_due: VecDeque::new(),
            waiting_for_masks: Vec::new(),
            uncharged: None,
            mask_turns: 0,
            masks_away: 0,
            arrivals: 0,
            started: 0,
            planned_steps: 0,
            collected_steps: 0,
            blocked: None,
            admissions: Vec::new(),
            decodes: Vec::new(),
        }
    }

    /// Tells a feed of every change of the prefix index. Panics once there is something in it.
    pub fn tell_cache_changes(&self, feed: CacheFeed) {
        self.resources.caches.tell(feed);
    }

    /// Takes a request in, unless too many wait. Panics on one that could never be served: that it can is part of the
    /// check that made it.
    pub fn add(&mut self, mut asked: CheckedRequest) -> Result<(), QueueFull> {
        if self.room() == 0 {
            return Err(QueueFull {
                limit: self.resources.config.max_waiting,
            });
        }
        self.assert_servable(&asked);
        let (id, arrival) = (asked.id, self.arrivals);
        self.arrivals += 1;
        // Without prefix caching every request has a salt of its own; with groups, the group's.
        if !self.resources.config.prefix_caching {
            asked.salt = arrival;
        }
        let mut request = Request::new(asked, arrival);
        let order = request.order;
        if let Some(deadline) = request.deadline {
            self.deadlines.insert((deadline, id));
        }
        if let Some(group) = request.group {
            let place = self.groups.join(group, id, order, request.salt);
            if !self.resources.config.prefix_caching {
                request.asked.salt = place.salt;
            }
            if place.parked {
                request.phase = Phase::Parked;
            }
        }
        self.queue.enter(order);
        if matches!(request.phase, Phase::Waiting) {
            self.queue.push(order, id);
        }
        self.asking_origins += usize::from(request.params.origins);
        self.requests.insert(id, Box::new(request));
        Ok(())
    }

    fn assert_servable(&self, asked: &CheckedRequest) {
        let CheckedRequest { id, max_length, .. } = *asked;
        let least = asked.prompt.len() + asked.generated.len() + usize::from(asked.pooling.is_none());
        assert!(
            !asked.prompt.is_empty() && least <= max_length,
            "request {} has {} tokens and room for {max_length}",
            id.0,
            asked.prompt.len() + asked.generated.len(),
        );
        let blocks = self
            .resources
            .config
            .blocks_per_request
            .min(self.resources.config.num_blocks);
        assert!(
            max_length <= blocks * self.resources.config.block_size,
            "request {} may become {max_length} tokens long, and has no more than {blocks} blocks",
            id.0,
        );
        assert!(
            !self.requests.contains_key(&id),
            "there are two requests {}",
            id.0
        );
    }

    /// Ends a request at the caller's wish, wherever it is. False if it is not known (any more).
    pub fn cancel(&mut self, id: RequestId) -> bool {
        self.end_early(id, FinishReason::Cancelled)
    }

    /// Ends a request because the host found a stop string in its text; tokens still in flight are dropped.
    /// False if it is not known (any more).
    pub fn stop(&mut self, id: RequestId) -> bool {
        self.end_early(id, FinishReason::Stop)
    }

    /// How the tokens came that the step collected last has brought, of requests that ask for it.
    pub fn take_origins(&mut self) -> Vec<(RequestId, StepOrigins)> {
        std::mem::take(&mut self.origins)
    }

    /// The endings that no step reports: cancelled, stopped and expired requests.
    pub fn take_deliveries(&mut self) -> Vec<RequestOutput> {
        std::mem::take(&mut self.outbox)
    }

    /// Whether there is nothing to do, nothing in flight and nothing to deliver.
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.outbox.is_empty() && self.planned_steps == self.collected_steps
    }

    /// Requests in a slot.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Requests without one.
    pub fn waiting(&self) -> usize {
        self.requests.len() - self.running.len()
    }

    /// Of the requests in the queue, the one that arrived first, whatever its priority.
    pub fn oldest_waiting(&self) -> Option<RequestId> {
        self.queue.oldest()
    }

    /// The requests that got a slot in the newest plan, for the first time or again.
    pub fn admissions(&self) -> &[RequestId] {
        &self.admissions
    }

    /// Requests that could be added now; ask before adding all members of a group.
    pub fn room(&self) -> usize {
        self.resources.config.max_waiting.saturating_sub(self.waiting())
    }

    /// Totals since the start.
    pub fn counters(&self) -> Counters {
        self.resources.counters
    }

    /// What the step collected last ran and took.
    pub fn last_step(&self) -> &StepTimes {
        &self.last_step
    }

    /// What steps cost, as measured.
    pub fn costs(&self) -> &StepCosts {
        &self.costs
    }

    /// How full the caches are.
    pub fn cache_use(&self) -> CacheUse {
        self.resources.caches.usage()
    }

    /// The bounds.
    pub fn config(&self) -> &SchedulerConfig {
        &self.resources.config
    }

    fn end_early(&mut self, id: RequestId, finish: FinishReason) -> bool {
        let Some(request) = self.requests.get(&id) else {
            return false;
        };
        self.outbox.push(request.ending(finish));
        self.remove(id, Ending::InFlight);
        true
    }

    /// Ends every request whose deadline has passed.
    fn expire(&mut self, now: u64) {
        while let Some(&(deadline, id)) = self.deadlines.first()
            && deadline <= now
        {
            let known = self.end_early(id, FinishReason::Deadline);
            assert!(known, "a deadline outlived request {}", id.0);
        }
    }

    /// Forgets a request and frees all that it holds.
    fn remove(&mut self, id: RequestId, ending: Ending) {
        let order = self.request(id).order;
        self.vacate(id, ending);
        self.queue.leave(order);
        let Some(request) = self.requests.remove(&id) else {
            return;
        };
        self.asking_origins -= usize::from(request.params.origins);
        if let Some(deadline) = request.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        if let Some(group) = request.group
            && let Some((order, next)) = self.groups.leave(group, id, order)
        {
            self.enqueue(order, next);
        }
        self.resources.policy.forget(id);
    }

    /// Takes a request out of its slot, if it has one: slot, blocks and reservations are free at once.
    fn vacate(&mut self, id: RequestId, ending: Ending) {
        let request = self.request_mut(id);
        if request.running().is_none() {
            return;
        }
        let rank = request.rank;
        let Phase::Running(mut running) = std::mem::replace(&mut request.phase, Phase::Waiting) else {
            return;
        };
        if let Some(rank) = rank {
            self.running.remove(&rank);
        }
        self.slots.release(running.slot, running.generation);
        self.resources.settle_saves(&mut running, ending);
    }

    fn enqueue(&mut self, order: Order, id: RequestId) {
        self.settle_charges();
        self.request_mut(id).phase = Phase::Waiting;
        self.queue.push(order, id);
    }

    fn request(&self, id: RequestId) -> &Request {
        self.requests
            .get(&id)
            .unwrap_or_else(|| panic!("request {} is gone", id.0))
    }

    fn request_mut(&mut self, id: RequestId) -> &mut Request {
        self.requests
            .get_mut(&id)
            .unwrap_or_else(|| panic!("request {} is gone", id.0))
    }
}
