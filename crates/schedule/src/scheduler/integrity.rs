//! The check that every part of the scheduler tells the same story.

use super::{Running, Scheduler};
use crate::request::{Phase, Request, RequestId};

impl Scheduler {
    /// Forgets every cached text that no request holds.
    pub(crate) fn forget(&mut self) {
        self.resources.caches.forget();
    }

    /// Panics unless queues, slots, blocks, states and requests agree. Linear in all of them: for tests, and for
    /// moments when there is nothing to do.
    pub fn check_integrity(&self) {
        self.resources.caches.check_integrity();
        self.slots.check_integrity();
        assert!(self.uncharged.is_none(), "a tenant is not charged for its tokens");
        let (mut parked, mut waiting, mut running, mut rolling) = (0, 0, 0, 0);
        for (id, request) in &self.requests {
            assert!(
                request.known() < request.max_length || request.pooling.is_some(),
                "request {} should have ended",
                id.0
            );
            match &request.phase {
                Phase::Parked => parked += 1,
                Phase::Waiting => {
                    waiting += 1;
                    assert!(self.queue.holds(request.order, *id), "request {} is lost", id.0);
                }
                Phase::Running(state) => {
                    running += 1;
                    rolling += usize::from(state.saves.rolls());
                    assert!(
                        request.rank.and_then(|rank| self.running.get(&rank)) == Some(id),
                        "request {} is lost",
                        id.0
                    );
                    assert!(
                        self.slots.owner(state.slot, state.generation) == Some(*id),
                        "request {} is not in its slot",
                        id.0
                    );
                    self.check_blocks(*id, state, request.max_length);
                }
            }
        }
        assert!(parked == self.groups.parked(), "{parked} requests parked");
        assert!(waiting == self.queue.len(), "{waiting} requests waiting");
        self.queue.check_integrity(self.requests.len());
        assert!(running == self.running.len(), "{running} requests running");
        assert!(rolling == self.resources.rolling, "{rolling} rolling states");
        assert!(
            self.slots.free() + running == self.resources.config.slots,
            "{running} requests in slots"
        );
        if running == 0 {
            let usage = self.resources.caches.usage();
            assert!(
                usage.free_blocks == self.resources.config.num_blocks,
                "blocks are lost: {usage:?}"
            );
            assert!(usage.reserved_snapshots == 0, "states are lost: {usage:?}");
        }
        let with =
            |what: fn(&Request) -> bool| self.requests.values().filter(|request| what(request)).count();
        let with_deadline = with(|request| request.deadline.is_some());
        assert!(with_deadline == self.deadlines.len(), "deadlines are lost");
        let asking = with(|request| request.params.origins);
        assert!(
            asking == self.asking_origins,
            "{asking} requests ask how their tokens come"
        );
    }

    /// Panics unless a request has the blocks of its tokens, and of the drafts that are made for it.
    fn check_blocks(&self, id: RequestId, running: &Running, max_length: usize) {
        let (held, size) = (running.blocks.len(), self.resources.config.block_size);
        let run = running.bounds.low.saturating_sub(1);
        assert!(held * size >= run, "request {} lacks blocks", id.0);
        let drafts = running.proposed.most();
        let drafting = drafts > 0 && !running.prefilling();
        assert!(
            !drafting || held * size >= (running.bounds.high + drafts).min(max_length),
            "request {} lacks blocks for drafts",
            id.0
        );
        assert!(
            held <= self.resources.config.blocks_per_request,
            "request {} is too wide",
            id.0
        );
    }
}
