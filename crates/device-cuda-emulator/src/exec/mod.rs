//! A warp's turn: instructions one after the other, for all lanes that are at them.
//!
//! Lanes that part go on as groups, the one that is behind first, and join again where they meet. Lanes wait for each other at
//! instructions that need them all.

mod barriers;
mod convert;
mod copies;
mod floats;
mod lanes;
mod matrices;
mod places;
mod together;
mod whole;

use crate::cluster::Common;
use crate::kernel::{Inst, Kernel, NONE, Op};
use crate::memory::Memory;
use crate::warp::{Group, Waiting, Warp};

pub(crate) use copies::{advance, land, write_all};
pub(crate) use lanes::{Problem, Trouble};

/// What a launch is made of, besides its kernel.
pub(crate) struct Setting<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) parameters: &'a [u8],
    pub(crate) memory: &'a Memory,
}

/// What became of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Next,
    /// Nothing yet: it is tried again when something has happened.
    Stall,
    /// These lanes go on, the others try again.
    Part(u32),
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// There is more to run.
    Paused,
    /// No lane can go on before something happens.
    Stalled,
    Over,
}

/// Instructions that were run, and how many lanes ran them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    pub(crate) instructions: u64,
    pub(crate) lanes: u64,
}

/// A warp while it has its turn.
pub(crate) struct Turn<'a> {
    pub(crate) setting: &'a Setting<'a>,
    pub(crate) warp: &'a mut Warp,
    pub(crate) common: &'a mut Common,
    pub(crate) count: Count,
}

impl Turn<'_> {
    /// Runs up to so many instructions. An error comes with the line that it happened in.
    pub(crate) fn take(&mut self, budget: u64) -> Result<Ended, (Problem, u32)> {
        // SAFETY: the driver does not start on a processor without these instructions; on others than x86-64 nothing is asked for.
        #[allow(unused_unsafe, reason = "others than x86-64 have what is needed")]
        unsafe {
            self.run(budget)
        }
    }

    #[cfg_attr(
        target_arch = "x86_64",
        target_feature(enable = "avx2,fma,f16c,popcnt,lzcnt,bmi1,bmi2")
    )]
    fn run(&mut self, budget: u64) -> Result<Ended, (Problem, u32)> {
        for group in &mut self.warp.groups {
            group.stalled = false;
        }
        let end = self.count.instructions + budget;
        while let Some(index) = self.pick() {
            self.follow(index, end)?;
            if self.count.instructions >= end {
                return Ok(Ended::Paused);
            }
        }
        if self.warp.groups.is_empty() {
            Ok(Ended::Over)
        } else {
            Ok(Ended::Stalled)
        }
    }

    /// Joins groups that have met, and names the one furthest behind of those that can go on.
    fn pick(&mut self) -> Option<usize> {
        let groups = &mut self.warp.groups;
        if groups.len() > 1 {
            groups.sort_by_key(|group| group.at);
            groups.dedup_by(|behind, ahead| {
                let same = behind.at == ahead.at && behind.waiting == ahead.waiting;
                if same {
                    ahead.mask |= behind.mask;
                    ahead.stalled = false;
                }
                same
            });
        }
        groups.iter().position(|group| !group.stalled)
    }

    /// Runs a group until it parts, meets another, waits or ends.
    #[cfg_attr(
        target_arch = "x86_64",
        target_feature(enable = "avx2,fma,f16c,popcnt,lzcnt,bmi1,bmi2")
    )]
    fn follow(&mut self, index: usize, end: u64) -> Result<(), (Problem, u32)> {
        let kernel = self.setting.kernel;
        let Group { mut at, mask, .. } = self.warp.groups[index];
        let alone = self.warp.groups.len() == 1;
        let ahead = self
            .warp
            .groups
            .iter()
            .map(|group| group.at)
            .filter(|other| *other > at);
        let limit = ahead.min().unwrap_or(u32::MAX);
        while self.count.instructions < end && at < limit {
            let inst = &kernel.code[at as usize];
            let active = self.active(inst, mask);
            self.count.instructions += 1;
            self.count.lanes += u64::from(active.count_ones());
            if active == 0 {
                at += 1;
                continue;
            }
            match inst.op {
                Op::Branch if active == mask => {
                    at = inst.number as u32;
                    if !alone {
                        break;
                    }
                }
                Op::Branch => {
                    self.part(index, active, inst.number as u32);
                    at += 1;
                    break;
                }
                Op::Exit => {
                    self.leave(index, active);
                    if active == mask {
                        return Ok(());
                    }
                    at += 1;
                    break;
                }
                _ => match self
                    .step(inst, active, mask, index)
                    .map_err(|why| (why, inst.line))?
                {
                    Step::Next => at += 1,
                    Step::Stall => {
                        self.warp.groups[index].stalled = true;
                        break;
                    }
                    Step::Part(done) => {
                        self.part(index, done, at + 1);
                        self.warp.groups[index].stalled = true;
                        break;
                    }
                },
            }
        }
        self.warp.groups[index].at = at;
        Ok(())
    }

    /// The lanes of a group that an instruction is for.
    #[inline(always)]
    fn active(&self, inst: &Inst, mask: u32) -> u32 {
        if inst.guard == NONE {
            return mask;
        }
        let predicate = self.warp.predicates[inst.guard as usize];
        mask & if inst.negated { !predicate } else { predicate }
    }

    /// Some lanes of a group go on elsewhere.
    fn part(&mut self, index: usize, mask: u32, at: u32) {
        self.warp.groups[index].mask &= !mask;
        self.warp.groups.push(Group {
            at,
            mask,
            waiting: Waiting::No,
            stalled: false,
        });
    }

    /// Some lanes of a group have ended.
    fn leave(&mut self, index: usize, mask: u32) {
        self.warp.exited |= mask;
        self.warp.groups[index].mask &= !mask;
        if self.warp.groups[index].mask == 0 {
            self.warp.groups.swap_remove(index);
        }
        for group in &mut self.warp.groups {
            group.stalled = false;
        }
        if self.warp.is_over() {
            self.common.left(self.warp.rank);
        }
    }

    #[cfg_attr(
        target_arch = "x86_64",
        target_feature(enable = "avx2,fma,f16c,popcnt,lzcnt,bmi1,bmi2")
    )]
    fn step(&mut self, inst: &Inst, active: u32, mask: u32, index: usize) -> Result<Step, Problem> {
        match inst.op {
            Op::Nothing => {}
            Op::MoveWord => self.word_of_one(inst, active, |a| a),
            Op::Whole(op, false) => self.whole(op, inst, active),
            Op::Float(op, flush) => self.float(op, flush, inst, active),
            Op::Fma { down, flush } => self.fma(down, flush, inst, active),
            Op::Compare(compare, kind) => self.compare(compare, kind, inst, active),
            Op::Load(access) => self.load(access, inst, active)?,
            Op::Store(access) => self.store(access, inst, active)?,
            Op::Whole(op, true) => self.half(op, inst, active),
            Op::WholeDouble(op) => self.whole_double(op, inst, active),
            Op::Function(function, flush) => self.function(function, flush, inst, active),
            Op::Convert(conversion) => self.convert(conversion, inst, active),
            Op::RoundPair(factor) => self.round_pair(factor, inst, active),
            Op::FmaBf16x2 => self.fma_pair(inst, active),
            Op::FloatDouble(op) => self.float_double(op, inst, active),
            Op::FmaDouble => self.double_of_three(inst, active, |a, b, c| {
                f64::from_bits(a)
                    .mul_add(f64::from_bits(b), f64::from_bits(c))
                    .to_bits()
            }),
            Op::Change { .. } => self.change(inst, active)?,
            Op::Shuffle(_) | Op::Vote(_) | Op::Match | Op::Fold(_) | Op::ActiveMask | Op::MeetWarp => {
                return Ok(self.together(inst, active, mask));
            }
            Op::LoadMatrix { .. } | Op::Multiply(_) => {
                if !self.is_whole(active) {
                    return Ok(Step::Stall);
                }
                self.matrix(inst)?;
            }
            Op::MultiplyWide(_) | Op::MultiplyCommit | Op::MultiplyWait => {
                if !self.is_whole(active) {
                    return Ok(Step::Stall);
                }
                return self.wide(inst);
            }
            Op::Trap => return Err(Problem::new(Trouble::Trap, "the kernel gave up (trap)")),
            Op::Meet { .. }
            | Op::Announce
            | Op::ClusterArrive
            | Op::ClusterWait
            | Op::BarrierInit
            | Op::BarrierExpect
            | Op::BarrierArrive
            | Op::BarrierWait(_) => return self.barrier(inst, active, index),
            Op::Copy
            | Op::CopyCommit
            | Op::CopyWait
            | Op::CopyArrive
            | Op::BulkLoad
            | Op::BulkStore
            | Op::BulkCommit
            | Op::BulkWait { .. } => self.copies(inst, active)?,
            _ => self.more(inst, active),
        }
        Ok(Step::Next)
    }

    /// Whether all lanes that have not ended are here.
    fn is_whole(&self, active: u32) -> bool {
        active | self.warp.exited == u32::MAX
    }
}
