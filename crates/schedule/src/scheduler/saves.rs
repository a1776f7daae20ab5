//! Where the states of recurrent models are saved.
//!
//! States stand at multiples of [`STATE_GRID`], and one is of use where a block ends: points are common multiples of
//! both, and what a rule asks for elsewhere is rounded down to one. Points on the way through a prompt, all before its end: the last
//! one, every `interval` tokens, and the branch point where it leaves a text seen before. While text is generated, one
//! place per request rolls along: it is written at each point passed, and becomes part of the prefix cache when the
//! request leaves its slot, so that the next turn starts at the newest point. A place is reserved when a plan row is
//! planned that may reach a point; the output says whether it was written. Nothing waits for any of it.

use super::{Resources, Running};
use paceline_cache::{Node, Reservation};
use paceline_types::{STATE_GRID, SnapshotId, SnapshotPlan};

/// A request's places for states.
#[derive(Debug, Default)]
pub(crate) struct Saves {
    /// Where the prompt leaves a text seen before.
    branch_point: Option<usize>,
    /// Each named by one prefill row in flight.
    pending: Vec<Reservation>,
    rolling: Option<Rolling>,
}

#[derive(Debug)]
struct Rolling {
    place: Reservation,
    /// The block at whose end the state in it stands.
    written: Option<Node>,
    /// Plan rows in flight that may write it.
    in_flight: usize,
}

impl Saves {
    pub(super) fn at_branch_point(branch_point: Option<usize>) -> Self {
        Self {
            branch_point,
            ..Self::default()
        }
    }

    /// Whether it holds a place that rolls along.
    pub(super) fn rolls(&self) -> bool {
        self.rolling.is_some()
    }
}

/// How a request leaves its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The device ended it: plan rows in flight do nothing.
    Done,
    /// The host ended it: plan rows in flight still run.
    InFlight,
}

/// Where states can be saved, and how often they are.
#[derive(Clone, Copy)]
struct Grid {
    /// Points are multiples of this.
    unit: usize,
    interval: usize,
}

impl Grid {
    fn new(block_size: usize, interval: usize) -> Self {
        // The grid is a power of two, so the greatest common divisor is one.
        const { assert!(STATE_GRID.is_power_of_two()) };
        let twos = block_size.trailing_zeros().min(STATE_GRID.trailing_zeros());
        Self {
            unit: (block_size >> twos) * STATE_GRID,
            interval,
        }
    }

    /// The last point at or before a position.
    fn down(self, position: usize) -> usize {
        position / self.unit * self.unit
    }

    /// The first point behind `after`.
    fn following(self, after: usize) -> usize {
        self.down(after) + self.unit
    }

    /// Whether the state at a point is one of those saved every `interval` tokens.
    fn is_regular(self, point: usize) -> bool {
        point.next_multiple_of(self.interval) < point + self.unit
    }

    /// The first point behind `after` to save at on the way to `target`.
    fn next_point(self, after: usize, target: usize, branch_point: Option<usize>) -> Option<usize> {
        // The first multiple of the interval that is not rounded down to `after` or before it.
        let regular = self.down(self.following(after).next_multiple_of(self.interval));
        let last = self.down(target - 1);
        [
            Some(regular),
            Some(last),
            branch_point.map(|point| self.down(point)),
        ]
        .into_iter()
        .flatten()
        .filter(|point| *point > after && *point < target)
        .min()
    }
}

impl Resources {
    fn grid(&self) -> Option<Grid> {
        let recurrent = self
            .config
            .recurrent
            .filter(|recurrent| recurrent.snapshots > 0)?;
        Some(Grid::new(self.config.block_size, recurrent.interval))
    }

    fn reserve(&mut self) -> Option<Reservation> {
        let place = self.caches.reserve_snapshot()?;
        self.counters.snapshots_reserved += 1;
        Some(place)
    }

    /// For a prefill row of at most `len` tokens: where to save a state, and the length of the plan row, cut so that
    /// it reaches one point only.
    pub(super) fn save_in_prefill(
        &mut self,
        running: &mut Running,
        len: usize,
    ) -> (usize, Option<SnapshotPlan>) {
        let Some(grid) = self.grid() else {
            return (len, None);
        };
        let (start, target, branch_point) = (running.planned, running.target, running.saves.branch_point);
        let Some(position) = grid
            .next_point(start, target, branch_point)
            .filter(|point| *point <= start + len)
        else {
            return (len, None);
        };
        let Some(place) = self.reserve() else {
            return (len, None);
        };
        let id = place.id();
        running.saves.pending.push(place);
        let len = match grid.next_point(position, target, branch_point) {
            Some(second) => len.min(second - 1 - start),
            None => len,
        };
        (len, Some(SnapshotPlan { position, id }))
    }

    /// For a decode row about to be planned: where to save the rolling state, if it may pass a point.
    pub(super) fn save_in_decode(&mut self, running: &mut Running) -> Option<SnapshotPlan> {
        let grid = self.grid()?;
        let bounds = running.bounds;
        // The plan row before has passed the points up to the tokens known before it; this one passes those up to the
        // tokens known before itself.
        let position = grid.following(bounds.folded);
        if position > bounds.high {
            return None;
        }
        if running.saves.rolling.is_none() {
            // Half of the places at most roll along: the others hold what has been worth keeping.
            let snapshots = self.config.recurrent.map_or(0, |recurrent| recurrent.snapshots);
            if self.rolling >= snapshots / 2 {
                return None;
            }
            let place = self.reserve()?;
            self.rolling += 1;
            running.saves.rolling = Some(Rolling {
                place,
                written: None,
                in_flight: 0,
            });
        }
        let rolling = running.saves.rolling.as_mut()?;
        rolling.in_flight += 1;
        Some(SnapshotPlan {
            position,
            id: rolling.place.id(),
        })
    }

    /// A plan row that was to save a state is done, and the request's blocks are published up to what it computed.
    pub(super) fn collect_save(&mut self, running: &mut Running, plan: SnapshotPlan, written: bool) {
        self.counters.snapshots_written += u64::from(written);
        let interval = self.config.recurrent.map_or(1, |recurrent| recurrent.interval);
        let node = running
            .chain
            .node(plan.position / self.config.block_size)
            .filter(|_| written);
        if let Some(place) = take_pending(&mut running.saves.pending, plan.id) {
            self.publish_or_release(place, node);
            return;
        }
        let Some(rolling) = running
            .saves
            .rolling
            .as_mut()
            .filter(|rolling| rolling.place.id() == plan.id)
        else {
            panic!(
                "a row names snapshot {}, which its request does not hold",
                plan.id.0
            );
        };
        rolling.in_flight -= 1;
        if written {
            rolling.written = node;
        }
        // A state at a regular point stays for good. The place is given away only when no plan row in flight writes
        // it.
        let grid = Grid::new(self.config.block_size, interval);
        if written && rolling.in_flight == 0 && grid.is_regular(plan.position) {
            self.publish_rolling(running);
        }
    }

    /// A request leaves its slot: its places are published or go back.
    pub(super) fn settle_saves(&mut self, running: &mut Running, ending: Ending) {
        for place in running.saves.pending.drain(..) {
            // Its plan row is still in flight, so nobody knows whether it will be written.
            self.counters.snapshots_released += 1;
            drop(place);
        }
        if let Some(rolling) = &mut running.saves.rolling
            && rolling.in_flight > 0
            && ending == Ending::InFlight
        {
            // A plan row in flight may overwrite the state with a newer one that no result will tell of.
            rolling.written = None;
        }
        self.publish_rolling(running);
    }

    fn publish_rolling(&mut self, running: &mut Running) {
        if let Some(rolling) = running.saves.rolling.take() {
            self.rolling -= 1;
            self.publish_or_release(rolling.place, rolling.written);
        }
    }

    fn publish_or_release(&mut self, place: Reservation, node: Option<Node>) {
        if node.is_some_and(|node| self.caches.publish_snapshot(place, node)) {
            self.counters.snapshots_published += 1;
        } else {
            self.counters.snapshots_released += 1;
        }
    }
}

fn take_pending(pending: &mut Vec<Reservation>, id: SnapshotId) -> Option<Reservation> {
    let index = pending.iter().position(|place| place.id() == id)?;
    Some(pending.remove(index))
}
