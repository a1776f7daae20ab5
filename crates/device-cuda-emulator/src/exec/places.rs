//! Memory of every space.

use super::{Problem, Step, Trouble, Turn};
use crate::kernel::{Access, Change, Inst, Op, Space};
use crate::memory::Wrong;
use crate::names::SHARED_BASE;
use crate::warp::{LANES, Row, lanes};

/// Addresses of any space have the space's mark in their upper bits; without one they are global.
const SHARED_MARK: u64 = 1 << 56;
const LOCAL_MARK: u64 = 2 << 56;
const MARKS: u64 = 3 << 56;

impl Turn<'_> {
    /// Where each lane looks.
    #[inline(always)]
    fn addresses(&self, inst: &Inst, far: bool) -> Row<u64> {
        let mut at = [0; LANES];
        if far {
            let base = self.doubles(inst.from[0]);
            (0..LANES).for_each(|lane| at[lane] = base[lane].wrapping_add(inst.number as u64));
        } else {
            let base = self.words(inst.from[0]);
            (0..LANES).for_each(|lane| at[lane] = u64::from(base[lane].wrapping_add(inst.number as u32)));
        }
        at
    }

    #[inline(never)]
    pub(super) fn wrong(&self, wrong: Wrong, what: &str, lane: usize, at: u64, bytes: u64) -> Problem {
        let thread = self.warp.index * LANES + lane;
        let why = match wrong {
            Wrong::Outside => "outside of all memory that is there",
            Wrong::Crooked => "not at a multiple of its size",
        };
        let trouble = if wrong == Wrong::Outside {
            Trouble::Address
        } else {
            Trouble::Misaligned
        };
        Problem::new(
            trouble,
            format!("thread {thread}: {what} of {bytes} bytes at {at:#x}: {why}"),
        )
    }

    /// Up to sixteen bytes that a lane sees at an address.
    #[inline(always)]
    fn fetch(&mut self, space: Space, lane: usize, at: u64, bytes: u64) -> Result<u128, Wrong> {
        match space {
            Space::Global => self.setting.memory.load(&mut self.warp.window, at, bytes),
            Space::Shared => self.common.load(self.warp.rank, at as u32, bytes),
            Space::Generic if at & MARKS == 0 => self.setting.memory.load(&mut self.warp.window, at, bytes),
            Space::Generic if at & MARKS == SHARED_MARK => self.common.load(self.warp.rank, at as u32, bytes),
            Space::Generic | Space::Local => {
                let own = self.local(lane, at, bytes)?;
                Ok(self.warp.local[own]
                    .iter()
                    .rev()
                    .fold(0, |value, byte| value << 8 | u128::from(*byte)))
            }
            Space::Parameter => {
                let from = at as usize;
                let bytes = self
                    .setting
                    .parameters
                    .get(from..from.wrapping_add(bytes as usize));
                let bytes = bytes.ok_or(Wrong::Outside)?;
                Ok(bytes
                    .iter()
                    .rev()
                    .fold(0, |value, byte| value << 8 | u128::from(*byte)))
            }
        }
    }

    #[inline(always)]
    fn put(&mut self, space: Space, lane: usize, at: u64, bytes: u64, value: u128) -> Result<(), Wrong> {
        match space {
            Space::Global => self.setting.memory.store(&mut self.warp.window, at, bytes, value),
            Space::Shared => self.common.store(self.warp.rank, at as u32, bytes, value),
            Space::Generic if at & MARKS == 0 => {
                self.setting.memory.store(&mut self.warp.window, at, bytes, value)
            }
            Space::Generic if at & MARKS == SHARED_MARK => {
                self.common.store(self.warp.rank, at as u32, bytes, value)
            }
            Space::Generic | Space::Local => {
                let own = self.local(lane, at, bytes)?;
                self.warp.local[own].copy_from_slice(&value.to_le_bytes()[..bytes as usize]);
                Ok(())
            }
            Space::Parameter => Err(Wrong::Outside),
        }
    }

    /// A lane's own bytes.
    fn local(&self, lane: usize, at: u64, bytes: u64) -> Result<std::ops::Range<usize>, Wrong> {
        let (at, room) = ((at & !MARKS) as usize, self.setting.kernel.local);
        if !at.is_multiple_of(bytes as usize) {
            return Err(Wrong::Crooked);
        }
        if at.saturating_add(bytes as usize) > room {
            return Err(Wrong::Outside);
        }
        let first = lane * room + at;
        Ok(first..first + bytes as usize)
    }

    #[cfg_attr(
        target_arch = "x86_64",
        target_feature(enable = "avx2,fma,f16c,popcnt,lzcnt,bmi1,bmi2")
    )]
    pub(super) fn load(&mut self, access: Access, inst: &Inst, mask: u32) -> Result<(), Problem> {
        let at = self.addresses(inst, access.far);
        let (size, count) = (u64::from(access.bytes), usize::from(access.count));
        let all = size * count as u64;
        let mut values = [[0_u64; LANES]; 4];
        for lane in lanes(mask) {
            let found = self.fetch(access.space, lane, at[lane], all);
            let mut value = found.map_err(|wrong| self.wrong(wrong, "a load", lane, at[lane], all))?;
            for element in values.iter_mut().take(count) {
                element[lane] = value as u64;
                value >>= (8 * size) & 127;
            }
        }
        let start = inst.list.0 as usize;
        let lists: &[u32] = &self.setting.kernel.lists[start..start + count];
        for (element, row) in values.iter().zip(lists) {
            if access.double {
                let value = element.map(|value| narrowed(value, access));
                self.keep_doubles(*row, &value, mask);
            } else {
                let value = element.map(|value| narrowed(value, access) as u32);
                self.keep_words(*row, &value, mask);
            }
        }
        Ok(())
    }

    #[cfg_attr(
        target_arch = "x86_64",
        target_feature(enable = "avx2,fma,f16c,popcnt,lzcnt,bmi1,bmi2")
    )]
    pub(super) fn store(&mut self, access: Access, inst: &Inst, mask: u32) -> Result<(), Problem> {
        let at = self.addresses(inst, access.far);
        let (size, count) = (u64::from(access.bytes), usize::from(access.count));
        let all = size * count as u64;
        let start = inst.list.0 as usize;
        let lists: &[u32] = &self.setting.kernel.lists[start..start + count];
        let low = u128::from(u64::MAX >> (64 - 8 * size));
        for lane in lanes(mask) {
            let mut value = 0;
            for (index, row) in lists.iter().enumerate() {
                let element = if access.double {
                    self.doubles(*row)[lane]
                } else {
                    u64::from(self.words(*row)[lane])
                };
                value |= (u128::from(element) & low) << (8 * size * index as u64);
            }
            let stored = self.put(access.space, lane, at[lane], all, value);
            stored.map_err(|wrong| self.wrong(wrong, "a store", lane, at[lane], all))?;
        }
        Ok(())
    }

    /// Lanes change memory one after the other.
    pub(super) fn change(&mut self, inst: &Inst, mask: u32) -> Result<(), Problem> {
        let Op::Change {
            change,
            space,
            double,
            far,
        } = inst.op
        else {
            unreachable!("it is a change")
        };
        let at = self.addresses(inst, far);
        let size = if double { 8 } else { 4 };
        for lane in lanes(mask) {
            let read = |turn: &Self, row: u32| {
                if double {
                    turn.doubles(row)[lane]
                } else {
                    u64::from(turn.words(row)[lane])
                }
            };
            let by = read(self, inst.from[1]);
            let other = if change == Change::CompareExchange {
                read(self, inst.from[2])
            } else {
                0
            };
            let found = self.fetch(space, lane, at[lane], size);
            let old =
                found.map_err(|wrong| self.wrong(wrong, "an atomic change", lane, at[lane], size))? as u64;
            let new = changed(change, double, old, by, other);
            let stored = self.put(space, lane, at[lane], size, u128::from(new));
            stored.map_err(|wrong| self.wrong(wrong, "an atomic change", lane, at[lane], size))?;
            if double {
                self.warp.doubles[inst.to[0] as usize][lane] = old;
            } else {
                self.warp.words[inst.to[0] as usize][lane] = old as u32;
            }
        }
        Ok(())
    }

    /// Addresses of one space as those of another, and the clock, which counts instructions.
    pub(super) fn address(&mut self, inst: &Inst, mask: u32) {
        match inst.op {
            Op::ToGeneric(space) => {
                let mark = if space == Space::Shared {
                    SHARED_MARK
                } else {
                    LOCAL_MARK
                };
                self.double_of_one(inst, mask, |at| at | mark);
            }
            Op::FromGeneric => self.double_of_one(inst, mask, |at| at & !MARKS),
            Op::Clock => {
                let now = self.common.clock();
                self.keep_doubles(inst.to[0], &[now; LANES], mask);
            }
            Op::PlaceOf => self.word_of_two(inst, mask, |at, rank| at & 0x00ff_ffff | (rank + 1) << 24),
            _ => self.double_of_one(inst, mask, |at| at),
        }
    }

    /// An address in shared memory, for messages.
    pub(super) fn shared_problem(&self, wrong: Wrong, what: &str, lane: usize, at: u32) -> Problem {
        self.wrong(wrong, what, lane, u64::from(at).wrapping_sub(SHARED_BASE), 8)
    }

    /// Lanes that have to be there wait for those that are not.
    pub(super) fn needs(&self, members: u32, active: u32) -> Option<Step> {
        (members & !self.warp.exited & !active != 0).then_some(Step::Stall)
    }
}

#[inline(always)]
fn narrowed(value: u64, access: Access) -> u64 {
    let spare = 64 - 8 * u32::from(access.bytes);
    let value = value << spare;
    if access.signed {
        ((value as i64) >> spare) as u64
    } else {
        value >> spare
    }
}

fn changed(change: Change, double: bool, old: u64, by: u64, other: u64) -> u64 {
    let signed = |x: u64| if double { x as i64 } else { i64::from(x as i32) };
    let new = match change {
        Change::Add => old.wrapping_add(by),
        Change::AddFloat => u64::from((f32::from_bits(old as u32) + f32::from_bits(by as u32)).to_bits()),
        Change::And => old & by,
        Change::Or => old | by,
        Change::Xor => old ^ by,
        Change::Min => old.min(by),
        Change::Max => old.max(by),
        Change::MinSigned => signed(old).min(signed(by)) as u64,
        Change::MaxSigned => signed(old).max(signed(by)) as u64,
        Change::Exchange => by,
        Change::CompareExchange if old == by => other,
        Change::CompareExchange => old,
    };
    if double { new } else { new & 0xffff_ffff }
}
