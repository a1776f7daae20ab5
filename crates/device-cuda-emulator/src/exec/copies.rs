//! Copies that go on beside the threads. Until one is done, the place that it goes to holds nothing of use: whoever reads too
//! early, or is still reading what was there, finds that.

use super::barriers::arrives;
use super::{Problem, Trouble, Turn};
use crate::cluster::{BulkLoad, Common};
use crate::kernel::{Inst, Op};
use crate::memory::{Memory, POISON, Wrong};
use crate::warp::{BulkStore, LANES, Request, Warp, lanes};

impl Turn<'_> {
    pub(super) fn copies(&mut self, inst: &Inst, active: u32) -> Result<(), Problem> {
        match inst.op {
            Op::Copy => self.copy(inst, active),
            Op::CopyCommit => {
                let closed = self.warp.closed;
                for request in &mut self.warp.requests {
                    if let Request::Copy { mask, group, .. } = request {
                        lanes(*mask & active)
                            .filter(|lane| group[*lane] == u32::MAX)
                            .collect::<Vec<_>>()
                            .into_iter()
                            .for_each(|lane| group[lane] = closed[lane]);
                    }
                }
                lanes(active).for_each(|lane| self.warp.closed[lane] += 1);
                Ok(())
            }
            Op::CopyWait => {
                let left = inst.number as u32;
                let mut until = [0; LANES];
                lanes(active).for_each(|lane| until[lane] = self.warp.closed[lane].saturating_sub(left));
                finish(self.warp, self.common, self.setting.memory, active, &until)
            }
            Op::CopyArrive => {
                let barrier = *self.words(inst.from[0]);
                self.warp.requests.push(Request::Arrive {
                    mask: active,
                    barrier,
                });
                let late = self.common.is_late();
                if !late {
                    let until = [u32::MAX; LANES];
                    finish_all(self.warp, self.common, self.setting.memory, active, &until)?;
                }
                tell(self.warp, self.common)
            }
            Op::BulkLoad => self.bulk_load(inst, active),
            Op::BulkStore => self.bulk_store(inst, active),
            Op::BulkCommit => {
                for lane in lanes(active) {
                    let number = self.warp.stores_closed[lane];
                    let open = self.warp.stores.iter_mut().filter(|store| store.lane == lane);
                    open.filter(|store| store.group == u32::MAX)
                        .for_each(|store| store.group = number);
                    self.warp.stores_closed[lane] += 1;
                }
                Ok(())
            }
            Op::BulkWait { read } => self.bulk_wait(read, inst.number as u32, active),
            _ => unreachable!("it is a copy"),
        }
    }

    fn copy(&mut self, inst: &Inst, active: u32) -> Result<(), Problem> {
        let (to, from) = (*self.words(inst.from[0]), *self.doubles(inst.from[1]));
        let bytes = inst.number as u32;
        let late = self.common.is_late();
        for lane in lanes(active) {
            // Both ends are looked at now, so that the message names this instruction.
            let found = self
                .setting
                .memory
                .load(&mut self.warp.window, from[lane], u64::from(bytes));
            let value =
                found.map_err(|wrong| self.wrong(wrong, "a copy", lane, from[lane], u64::from(bytes)))?;
            let poison = u128::from_le_bytes(std::array::from_fn(|index| POISON[index % 4]));
            let now = if late { poison } else { value };
            let stored = self.common.store(self.warp.rank, to[lane], u64::from(bytes), now);
            stored
                .map_err(|wrong| self.wrong(wrong, "a copy", lane, u64::from(to[lane]), u64::from(bytes)))?;
        }
        if late {
            self.warp.requests.push(Request::Copy {
                mask: active,
                to,
                from,
                bytes,
                group: [u32::MAX; LANES],
                line: inst.line,
            });
        }
        Ok(())
    }

    fn bulk_load(&mut self, inst: &Inst, active: u32) -> Result<(), Problem> {
        for lane in lanes(active) {
            let load = BulkLoad {
                rank: self.warp.rank,
                to: self.words(inst.from[0])[lane],
                from: self.doubles(inst.from[1])[lane],
                bytes: self.words(inst.from[2])[lane],
                barrier: self.words(inst.from[3])[lane],
                line: inst.line,
            };
            if !load.to.is_multiple_of(16) || !load.from.is_multiple_of(16) || !load.bytes.is_multiple_of(16)
            {
                return Err(Problem::new(
                    Trouble::Misaligned,
                    format!("{load:x?}: not in sixteens"),
                ));
            }
            let memory = self.setting.memory;
            let wrong = |wrong: Wrong| Problem::new(Trouble::Address, format!("{load:x?}: {wrong:?}"));
            memory.covers(load.from, u64::from(load.bytes)).map_err(wrong)?;
            self.common.spoil(load.rank, load.to, load.bytes).map_err(wrong)?;
            if self.common.is_late() {
                self.common.loads.push(load);
            } else {
                land(self.common, memory, load)?;
            }
        }
        Ok(())
    }

    fn bulk_store(&mut self, inst: &Inst, active: u32) -> Result<(), Problem> {
        for lane in lanes(active) {
            let store = BulkStore {
                lane,
                to: self.doubles(inst.from[1])[lane],
                from: self.words(inst.from[0])[lane],
                bytes: self.words(inst.from[2])[lane],
                data: None,
                group: u32::MAX,
                line: inst.line,
            };
            if !store.to.is_multiple_of(16)
                || !store.from.is_multiple_of(16)
                || !store.bytes.is_multiple_of(16)
            {
                return Err(Problem::new(
                    Trouble::Misaligned,
                    format!("{store:x?}: not in sixteens"),
                ));
            }
            let spoilt = self.setting.memory.fill(store.to, &POISON, store.bytes as usize);
            spoilt.map_err(|wrong| Problem::new(Trouble::Address, format!("{store:x?}: {wrong:?}")))?;
            self.warp.stores.push(store);
            if !self.common.is_late() {
                let last = self.warp.stores.len() - 1;
                read(self.warp, self.common, last)?;
                write(self.warp, self.setting.memory, last)?;
            }
        }
        Ok(())
    }

    fn bulk_wait(&mut self, only_read: bool, left: u32, active: u32) -> Result<(), Problem> {
        let mut index = 0;
        while let Some(store) = self.warp.stores.get(index) {
            let until = self.warp.stores_closed[store.lane].saturating_sub(left);
            let waited = active >> store.lane & 1 != 0 && store.group < until;
            if waited && store.data.is_none() {
                read(self.warp, self.common, index)?;
            }
            if waited && !only_read {
                write(self.warp, self.setting.memory, index)?;
                self.warp.stores.remove(index);
            } else {
                index += 1;
            }
        }
        Ok(())
    }
}

/// Does a copy from global to shared memory and tells its barrier.
pub(crate) fn land(common: &mut Common, memory: &Memory, load: BulkLoad) -> Result<(), Problem> {
    let landed = common.land(memory, load);
    let landed = landed.map_err(|wrong| Problem::new(Trouble::Address, format!("{load:x?}: {wrong:?}")))?;
    landed.ok_or_else(|| Problem::new(Trouble::Rule, format!("{load:x?}: there is no such barrier")))
}

fn read(warp: &mut Warp, common: &Common, index: usize) -> Result<(), Problem> {
    let store = &mut warp.stores[index];
    let bytes = common.bytes(warp.rank, store.from, u64::from(store.bytes));
    let bytes = bytes.map_err(|wrong| Problem::new(Trouble::Address, format!("{store:x?}: {wrong:?}")))?;
    store.data = Some(bytes.to_vec());
    Ok(())
}

fn write(warp: &mut Warp, memory: &Memory, index: usize) -> Result<(), Problem> {
    let store = &mut warp.stores[index];
    let data = store.data.take().unwrap_or_default();
    let written = memory.write(store.to, &data);
    store.data = Some(data);
    written.map_err(|wrong| Problem::new(Trouble::Address, format!("{:#x}: {wrong:?}", store.to)))
}

/// Writes what an ended warp has left to write. What it has not read by then may be gone.
pub(crate) fn write_all(warp: &mut Warp, memory: &Memory) -> Result<(), (Problem, u32)> {
    for index in 0..warp.stores.len() {
        let line = warp.stores[index].line;
        if warp.stores[index].data.is_none() {
            let text = "the thread ended before its copy from shared memory was read";
            return Err((Problem::new(Trouble::Rule, text), line));
        }
        write(warp, memory, index).map_err(|why| (why, line))?;
    }
    warp.stores.clear();
    Ok(())
}

/// Does the copies of some lanes in groups before `until`, and tells the barriers that waited for nothing else.
fn finish(
    warp: &mut Warp,
    common: &mut Common,
    memory: &Memory,
    active: u32,
    until: &[u32; LANES],
) -> Result<(), Problem> {
    finish_all(warp, common, memory, active, until)?;
    tell(warp, common)
}

fn finish_all(
    warp: &mut Warp,
    common: &mut Common,
    memory: &Memory,
    active: u32,
    until: &[u32; LANES],
) -> Result<(), Problem> {
    let rank = warp.rank;
    let mut failed = None;
    for request in &mut warp.requests {
        let Request::Copy {
            mask,
            to,
            from,
            bytes,
            group,
            ..
        } = request
        else {
            continue;
        };
        for lane in lanes(*mask & active) {
            // A group that is still open has the highest number.
            if group[lane] < until[lane] || until[lane] == u32::MAX {
                failed = common
                    .copy(memory, rank, to[lane], from[lane], *bytes)
                    .err()
                    .or(failed);
                *mask &= !(1 << lane);
            }
        }
    }
    warp.requests
        .retain(|request| !matches!(request, Request::Copy { mask: 0, .. }));
    failed.map_or(Ok(()), |wrong| {
        Err(Problem::new(Trouble::Address, format!("a copy: {wrong:?}")))
    })
}

/// Tells barriers whose copies are all done.
fn tell(warp: &mut Warp, common: &mut Common) -> Result<(), Problem> {
    let (mut open, mut failed) = (0, None);
    for request in &mut warp.requests {
        match request {
            Request::Copy { mask, .. } => open |= *mask,
            Request::Arrive { mask, barrier } => {
                for lane in lanes(*mask & !open) {
                    if common.update(warp.rank, barrier[lane], arrives) != Ok(Some(())) {
                        failed = Some(barrier[lane]);
                    }
                }
                *mask &= open;
            }
        }
    }
    warp.requests
        .retain(|request| !matches!(request, Request::Arrive { mask: 0, .. }));
    match failed {
        Some(at) => Err(Problem::new(
            Trouble::Rule,
            format!("a copy tells {at:#x}, where there is no barrier"),
        )),
        None => Ok(()),
    }
}

/// Does one of the copies that a warp has asked for; false if there are none.
pub(crate) fn advance(warp: &mut Warp, common: &mut Common, memory: &Memory) -> Result<bool, (Problem, u32)> {
    let choices = warp
        .requests
        .iter()
        .filter(|request| matches!(request, Request::Copy { .. }))
        .count();
    if choices == 0 {
        return Ok(false);
    }
    let choice = common.random.below(choices as u64) as usize;
    let mut copies = warp
        .requests
        .iter_mut()
        .filter(|request| matches!(request, Request::Copy { .. }));
    let Some(Request::Copy {
        mask,
        to,
        from,
        bytes,
        line,
        ..
    }) = copies.nth(choice)
    else {
        return Ok(false);
    };
    let (line, rank) = (*line, warp.rank);
    for lane in lanes(*mask) {
        let copied = common.copy(memory, rank, to[lane], from[lane], *bytes);
        copied.map_err(|wrong| (Problem::new(Trouble::Address, format!("a copy: {wrong:?}")), line))?;
    }
    *mask = 0;
    warp.requests
        .retain(|request| !matches!(request, Request::Copy { mask: 0, .. }));
    tell(warp, common).map_err(|why| (why, line))?;
    Ok(true)
}
