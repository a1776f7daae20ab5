//! What lanes of a warp do together.

use super::{Step, Turn};
use crate::kernel::{Fold, Inst, Op, Shuffle, Vote};
use crate::warp::{LANES, lanes};

impl Turn<'_> {
    /// An instruction that all lanes of its mask have to be at.
    #[cfg_attr(
        target_arch = "x86_64",
        target_feature(enable = "avx2,fma,f16c,popcnt,lzcnt,bmi1,bmi2")
    )]
    pub(super) fn together(&mut self, inst: &Inst, active: u32, mask: u32) -> Step {
        let row = match inst.op {
            Op::Shuffle(_) => inst.from[3],
            Op::MeetWarp => inst.from[0],
            Op::ActiveMask => {
                self.keep_words(inst.to[0], &[active; LANES], active);
                return Step::Next;
            }
            _ => inst.from[1],
        };
        let first = active.trailing_zeros() as usize;
        let members = self.words(row)[first];
        if let Some(wait) = self.needs(members, mask) {
            return wait;
        }
        match inst.op {
            Op::Shuffle(shuffle) => self.shuffle(shuffle, inst, active),
            Op::Vote(vote) => self.vote(vote, inst, active),
            Op::Match => {
                let (values, mut new) = (*self.words(inst.from[0]), [0; LANES]);
                for lane in lanes(active) {
                    for other in lanes(active & members) {
                        new[lane] |= u32::from(values[lane] == values[other]) << other;
                    }
                }
                self.keep_words(inst.to[0], &new, active);
            }
            Op::Fold(fold) => {
                let values = self.words(inst.from[0]);
                let all = lanes(active & members).map(|lane| values[lane]);
                let one = all.reduce(|a, b| folded(fold, a, b)).unwrap_or_default();
                self.keep_words(inst.to[0], &[one; LANES], active);
            }
            _ => {}
        }
        Step::Next
    }

    #[cfg_attr(
        target_arch = "x86_64",
        target_feature(enable = "avx2,fma,f16c,popcnt,lzcnt,bmi1,bmi2")
    )]
    fn shuffle(&mut self, shuffle: Shuffle, inst: &Inst, active: u32) {
        let values = *self.words(inst.from[0]);
        let (by, bounds) = (*self.words(inst.from[1]), *self.words(inst.from[2]));
        let (mut new, mut inside) = ([0; LANES], 0_u32);
        for lane in 0..LANES as u32 {
            let (by, clamp, segment) = (
                by[lane as usize] & 31,
                bounds[lane as usize] & 31,
                bounds[lane as usize] >> 8 & 31,
            );
            let last = lane & segment | clamp & !segment;
            let first = lane & segment;
            let (from, within) = match shuffle {
                Shuffle::Up => (lane.wrapping_sub(by), lane as i32 - by as i32 >= last as i32),
                Shuffle::Down => (lane + by, lane + by <= last),
                Shuffle::Butterfly => (lane ^ by, lane ^ by <= last),
                Shuffle::Index => (first | by & !segment, first | by & !segment <= last),
            };
            let from = if within { from } else { lane };
            inside |= u32::from(within) << lane;
            // A lane that is not here has nothing to give.
            let here = active >> (from & 31) & 1 != 0;
            new[lane as usize] = if here {
                values[(from & 31) as usize]
            } else {
                0x7fff_7fff
            };
        }
        self.keep_words(inst.to[0], &new, active);
        self.keep_predicate(inst.to[1], inside, active);
    }

    fn vote(&mut self, vote: Vote, inst: &Inst, active: u32) {
        let held = self.warp.predicates[inst.from[0] as usize] & active;
        let answer = match vote {
            Vote::Ballot => {
                self.keep_words(inst.to[0], &[held; LANES], active);
                return;
            }
            Vote::Any => held != 0,
            Vote::All => held == active,
            Vote::Uniform => held == 0 || held == active,
        };
        self.keep_predicate(inst.to[0], u32::from(answer).wrapping_neg(), active);
    }
}

/// Two values made one.
pub(super) fn folded(fold: Fold, a: u32, b: u32) -> u32 {
    match fold {
        Fold::Min => a.min(b),
        Fold::MinSigned => (a as i32).min(b as i32) as u32,
        Fold::Max => a.max(b),
        Fold::MaxSigned => (a as i32).max(b as i32) as u32,
        Fold::Add | Fold::Count => a.wrapping_add(b),
        Fold::And => a & b,
        Fold::Or => a | b,
        Fold::Xor => a ^ b,
    }
}
