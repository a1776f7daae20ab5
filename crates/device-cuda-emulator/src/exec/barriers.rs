//! Barriers: of thread blocks by number, in shared memory, and of clusters.

use super::{Problem, Step, Trouble, Turn};
use crate::cluster::Barrier;
use crate::kernel::{Fold, Inst, Op};
use crate::memory::Wrong;
use crate::warp::{LANES, Waiting, lanes};

impl Turn<'_> {
    /// An instruction of the group with this index.
    pub(super) fn barrier(&mut self, inst: &Inst, active: u32, index: usize) -> Result<Step, Problem> {
        match inst.op {
            Op::Meet { fold } => return self.meet(inst, fold, active, index),
            Op::Announce => {
                if !self.is_whole(active) {
                    return Ok(Step::Stall);
                }
                let number = self.arrive(inst, active)?;
                self.common.meet(self.warp.rank, number);
            }
            Op::ClusterArrive => {
                if !self.is_whole(active) {
                    return Ok(Step::Stall);
                }
                self.warp.cluster_seen = self.common.cluster_opened;
                self.common.cluster_arrived += 1;
                self.common.meet_cluster();
            }
            Op::ClusterWait => {
                if self.common.cluster_opened == self.warp.cluster_seen {
                    return Ok(Step::Stall);
                }
            }
            Op::BarrierInit => {
                for lane in lanes(active) {
                    let (at, count) = (self.words(inst.from[0])[lane], self.words(inst.from[1])[lane]);
                    let barrier = Barrier {
                        phase: false,
                        expected: count,
                        pending: count,
                        bytes: 0,
                    };
                    if count == 0 || count >= 1 << 20 {
                        return Err(Problem::new(
                            Trouble::Rule,
                            format!("a barrier for {count} arrivals"),
                        ));
                    }
                    let stored = self
                        .common
                        .store(self.warp.rank, at, 8, u128::from(barrier.to_bits()));
                    stored.map_err(|wrong| self.shared_problem(wrong, "a barrier", lane, at))?;
                }
            }
            Op::BarrierExpect => {
                for lane in lanes(active) {
                    let bytes = i64::from(self.words(inst.from[1])[lane]);
                    self.update(inst, lane, |barrier| {
                        barrier.bytes += bytes;
                        arrives(barrier)
                    })?;
                }
            }
            Op::BarrierArrive => {
                for lane in lanes(active) {
                    self.update(inst, lane, arrives)?;
                }
            }
            Op::BarrierWait(waits) => return self.wait(inst, waits, active),
            _ => unreachable!("it is a barrier"),
        }
        Ok(Step::Next)
    }

    /// Changes the barrier that a lane names.
    fn update(
        &mut self,
        inst: &Inst,
        lane: usize,
        change: impl FnOnce(&mut Barrier) -> bool,
    ) -> Result<(), Problem> {
        let at = self.words(inst.from[0])[lane];
        let updated = self.common.update(self.warp.rank, at, change);
        let done = updated.map_err(|wrong| self.shared_problem(wrong, "a barrier", lane, at))?;
        done.ok_or_else(|| self.no_barrier(at))
    }

    fn no_barrier(&self, at: u32) -> Problem {
        let text = format!(
            "warp {}: at {at:#x} there is no barrier, or it does not expect that many",
            self.warp.index
        );
        Problem::new(Trouble::Rule, text)
    }

    fn wait(&mut self, inst: &Inst, waits: bool, active: u32) -> Result<Step, Problem> {
        let mut done = 0;
        for lane in lanes(active) {
            let (at, parity) = (self.words(inst.from[0])[lane], self.words(inst.from[1])[lane]);
            let bits = self.common.load(self.warp.rank, at, 8);
            let bits = bits.map_err(|wrong: Wrong| self.shared_problem(wrong, "a barrier", lane, at))?;
            let barrier = Barrier::from_bits(bits as u64).ok_or_else(|| self.no_barrier(at))?;
            done |= u32::from(barrier.phase != (parity & 1 != 0)) << lane;
        }
        if !waits {
            self.keep_predicate(inst.to[0], done, active);
            return Ok(Step::Next);
        }
        self.keep_predicate(inst.to[0], u32::MAX, done);
        Ok(match done {
            0 => Step::Stall,
            done if done == active => Step::Next,
            done => Step::Part(done),
        })
    }

    /// Counts a warp at a barrier with a number, which is returned.
    fn arrive(&mut self, inst: &Inst, active: u32) -> Result<usize, Problem> {
        let lane = active.trailing_zeros() as usize;
        let (number, threads) = (self.words(inst.from[0])[lane], self.words(inst.from[1])[lane]);
        let rule = |text: String| Problem::new(Trouble::Rule, text);
        let meeting = self.common.meetings[self.warp.rank].get_mut(number as usize);
        let meeting = meeting.ok_or_else(|| rule(format!("there is no barrier {number}")))?;
        if meeting.arrived > 0 && meeting.threads != threads {
            return Err(rule(format!(
                "barrier {number} takes {} threads, not {threads}",
                meeting.threads
            )));
        }
        if !threads.is_multiple_of(LANES as u32) {
            return Err(rule(format!(
                "barrier {number} for {threads} threads, which are no whole warps"
            )));
        }
        meeting.threads = threads;
        meeting.arrived += LANES as u32;
        if threads != 0 && meeting.arrived > threads {
            return Err(rule(format!(
                "barrier {number}: more than {threads} threads have come"
            )));
        }
        Ok(number as usize)
    }

    fn meet(&mut self, inst: &Inst, fold: Option<Fold>, active: u32, index: usize) -> Result<Step, Problem> {
        let rank = self.warp.rank;
        let lane = active.trailing_zeros() as usize;
        let number = (self.words(inst.from[0])[lane] as usize).min(15);
        if let Waiting::Arrived(before) = self.warp.groups[index].waiting {
            if self.common.meetings[rank][number].opened == before {
                return Ok(Step::Stall);
            }
            self.finish_meeting(inst, fold, active, number, index);
            return Ok(Step::Next);
        }
        if !self.is_whole(active) {
            return Ok(Step::Stall);
        }
        let before = self.common.meetings[rank][number].opened;
        let number = self.arrive(inst, active)?;
        if let Some(fold) = fold {
            let held = self.warp.predicates[inst.from[2] as usize] & active;
            let meeting = &mut self.common.meetings[rank][number];
            match fold {
                Fold::Count => meeting.folded += held.count_ones(),
                _ => meeting.folded |= u32::from(held != 0),
            }
        }
        self.common.meet(rank, number);
        if self.common.meetings[rank][number].opened == before {
            self.warp.groups[index].waiting = Waiting::Arrived(before);
            return Ok(Step::Stall);
        }
        self.finish_meeting(inst, fold, active, number, index);
        Ok(Step::Next)
    }

    fn finish_meeting(&mut self, inst: &Inst, fold: Option<Fold>, active: u32, number: usize, index: usize) {
        self.warp.groups[index].waiting = Waiting::No;
        let result = self.common.meetings[self.warp.rank][number].result;
        match fold {
            Some(Fold::Count) => self.keep_words(inst.to[0], &[result; LANES], active),
            Some(_) => self.keep_predicate(inst.to[1], u32::from(result != 0).wrapping_neg(), active),
            None => {}
        }
    }
}

/// One arrival; false if none is expected.
pub(super) fn arrives(barrier: &mut Barrier) -> bool {
    let expected = barrier.pending > 0;
    barrier.pending = barrier.pending.saturating_sub(1);
    expected
}
