//! Into slots and out of them: admission from the queue, and preemption back to it.

use super::plan::PlanBuilder;
use super::running::Bounds;
use super::saves::{Ending, Saves};
use super::{Running, Scheduler};
use crate::request::{Order, Phase, Rank, RequestId};
use paceline_types::DraftBudget;

/// Whether an admission leaves blocks for requests that run already.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Headroom {
    /// One each, so that the newcomer is not pushed out by their next block.
    Leave,
    /// None: the newcomer comes first.
    Ignore,
}

impl Scheduler {
    /// Admits requests of a better priority than some that run, pushing those out if there is no room.
    pub(super) fn admit_urgent(&mut self, builder: &mut PlanBuilder) {
        while let Some((order, id)) = self.queue.first() {
            let outranks = |last: &Rank| order.priority < last.priority;
            if !self
                .running
                .last_key_value()
                .is_some_and(|(last, _)| outranks(last))
            {
                return;
            }
            if self.try_admit(id, Headroom::Ignore) {
                continue;
            }
            if !self.could_make_room(order, id) {
                return;
            }
            while let Some((&last, &victim)) = self.running.last_key_value()
                && outranks(&last)
            {
                self.preempt(victim, builder);
                if self.try_admit(id, Headroom::Ignore) {
                    break;
                }
            }
        }
    }

    /// Whether pushing out all of a worse priority would make room. Blocks may be shared, so it may still not.
    fn could_make_room(&self, order: Order, id: RequestId) -> bool {
        let worse = self
            .running
            .iter()
            .rev()
            .take_while(|(other, _)| order.priority < other.priority);
        let held = |id: &RequestId| {
            self.request(*id)
                .running()
                .map_or(0, |running| running.blocks.len())
        };
        let held: usize = worse.map(|(_, id)| held(id)).sum();
        let needed = self
            .request(id)
            .known()
            .div_ceil(self.resources.config.block_size);
        self.resources.caches.free_blocks() + held >= needed
    }

    /// Admits from the queue, in order, and plans each one's first plan row, while the step has room for more.
    pub(super) fn admit_waiting(&mut self, builder: &mut PlanBuilder) {
        // Whoever was pushed out of this step would come straight back and be pushed out again.
        if builder.preempted {
            return;
        }
        while builder.has_room()
            && let Some((_, id)) = self.queue.first()
        {
            if !self.try_admit(id, Headroom::Leave) {
                return;
            }
            self.plan_prefill(id, builder);
        }
    }

    /// Whether the first in the queue may get a slot in this step, as far as that can be told without a look-up of its tokens.
    pub(super) fn expects_newcomer(&self) -> bool {
        self.has_slot()
            && self
                .queue
                .first()
                .is_some_and(|(order, _)| !self.lacks_blocks(order, self.headroom()))
    }

    fn has_slot(&self) -> bool {
        self.running.len() < self.resources.config.running_limit() && self.slots.free() > 0
    }

    /// Whether a request could not be admitted for want of blocks, and they are not there yet.
    fn lacks_blocks(&self, order: Order, headroom: usize) -> bool {
        let free = self.resources.caches.free_blocks();
        self.blocked
            .is_some_and(|(blocked, needed)| blocked == order && free < needed + headroom)
    }

    /// Moves a request from the queue into a slot, with the blocks of all its known tokens.
    fn try_admit(&mut self, id: RequestId, headroom: Headroom) -> bool {
        if !self.has_slot() {
            return false;
        }
        let headroom = if headroom == Headroom::Leave {
            self.headroom()
        } else {
            0
        };
        let free = self.resources.caches.free_blocks();
        let request = self.request(id);
        let order = request.order;
        if self.lacks_blocks(order, headroom) {
            return false;
        }
        let target = request.known();
        let caches = &self.resources.caches;
        let mut hit = caches.lookup(request.tokens(), request.salt, request.reusable());
        let fresh = target.div_ceil(self.resources.config.block_size) - hit.blocks.len();
        let left = caches.free_blocks();
        if left < fresh + headroom || !caches.extend(&mut hit.blocks, fresh) {
            assert!(
                !self.running.is_empty(),
                "request {} does not fit into empty caches",
                id.0
            );
            self.blocked = Some((order, free - left + fresh));
            return false;
        }
        self.blocked = None;
        let Some((slot, generation)) = self.slots.take(id) else {
            return false;
        };
        self.resources.counters.prefix_queries += target as u64;
        self.resources.counters.prefix_hits += hit.cached_tokens as u64;
        self.started += 1;
        let first = Rank {
            priority: order.priority,
            admission: self.started,
        };
        let request = self.request_mut(id);
        // Where it starts again, it finds what it has computed itself; and its tenant has paid for the prompt.
        let fresh = request.cached.map_or(target - hit.cached_tokens, |_| 0);
        request.cached.get_or_insert(hit.cached_tokens);
        let rank = *request.rank.get_or_insert(first);
        request.phase = Phase::Running(Box::new(Running {
            slot,
            generation,
            blocks: hit.blocks,
            sent: 0,
            chain: hit.chain,
            restore: hit.restore,
            announced: false,
            cached: hit.cached_tokens,
            target,
            planned: hit.cached_tokens,
            bounds: Bounds::new(target),
            proposed: DraftBudget::NONE,
            saves: Saves::at_branch_point(hit.branch_point),
            mask_turn: 0,
        }));
        self.queue.admit(order, fresh);
        self.running.insert(rank, id);
        self.admissions.push(id);
        self.ask_first_masks(id);
        true
    }

    /// The next block of every running request. One that has it already, for drafts, needs no other.
    fn headroom(&self) -> usize {
        let without = |id: &&RequestId| {
            let running = self.request(**id).running();
            running.is_some_and(|running| {
                running.blocks.len() <= running.bounds.high.div_ceil(self.resources.config.block_size)
            })
        };
        self.running.values().filter(without).count()
    }

    /// Adds blocks to a running request, pushing out those behind it in order, last first, while there are not
    /// enough. False if the request itself was the last and went.
    pub(super) fn make_room(&mut self, id: RequestId, blocks: usize, builder: &mut PlanBuilder) -> bool {
        loop {
            if self.extend(id, blocks) {
                return true;
            }
            let Some((&last, &victim)) = self.running.last_key_value() else {
                panic!("request {} runs and is not listed", id.0);
            };
            assert!(
                Some(last) >= self.request(id).rank,
                "request {} would push out one before it",
                id.0
            );
            // Plan rows are planned in order, so the last one has none in this plan yet.
            self.preempt(victim, builder);
            if victim == id {
                return false;
            }
        }
    }

    /// Adds blocks to a running request, if there are enough.
    pub(super) fn extend(&mut self, id: RequestId, blocks: usize) -> bool {
        let caches = self.resources.caches.clone();
        match self.request_mut(id).running_mut() {
            Some(running) => caches.extend(&mut running.blocks, blocks),
            None => false,
        }
    }

    /// Pushes a request out of its slot, back to its place in the queue. It starts again with the tokens known
    /// so far; those in flight are dropped and come again, the same.
    fn preempt(&mut self, id: RequestId, builder: &mut PlanBuilder) {
        self.vacate(id, Ending::InFlight);
        let order = self.request(id).order;
        self.enqueue(order, id);
        self.resources.counters.preemptions += 1;
        builder.preempted = true;
    }
}
