//! Barriers, copies that go on beside the threads, and products of matrices.

use super::places::fold_of;
use super::{Decoded, Decoder, Line, each, plain};
use crate::kernel::{Factor, Fold, Inst, Op, Wide};
use crate::parser::{Class, Operand};

impl<'a> Decoder<'_, 'a> {
    /// Barriers of every kind.
    pub(super) fn waits(&mut self, line: &Line<'_, 'a>) -> Decoded {
        match line.parts[..] {
            ["bar", "warp", "sync"] => {
                let mut inst = plain(Op::MeetWarp);
                inst.from[0] = self.word(line, 0)?;
                Ok(Some(inst))
            }
            ["bar", "sync"] => self.meeting(line, Op::Meet { fold: None }, 0),
            ["bar", "arrive"] => self.meeting(line, Op::Announce, 0),
            ["bar", "red", name, kind] => {
                let fold = fold_of(name, false).filter(|fold| matches!(fold, Fold::Count | Fold::Or));
                let mut inst = match self.meeting(line, Op::Meet { fold }, 1)? {
                    Some(inst) if fold.is_some() && line.operands.len() == 3 => inst,
                    _ => return Ok(None),
                };
                inst.from[2] = self.predicate(line, 2)?;
                inst.from[1] = self.names.word_constant(0);
                inst.to[usize::from(kind == "pred")] = if kind == "pred" {
                    self.predicate_to(line, 0)?
                } else {
                    self.word_to(line, 0)?
                };
                Ok(Some(inst))
            }
            ["barrier", "cluster", "arrive", ..] => Ok(Some(plain(Op::ClusterArrive))),
            ["barrier", "cluster", "wait", ..] => Ok(Some(plain(Op::ClusterWait))),
            ["mbarrier", ..] => self.barrier(line),
            _ => Ok(None),
        }
    }

    /// A barrier's number and how many threads meet there, from an operand on; 0 are all.
    fn meeting(&mut self, line: &Line<'_, 'a>, op: Op, first: usize) -> Decoded {
        let mut inst = plain(op);
        inst.from[0] = self.word(line, first)?;
        inst.from[1] = match line.operands.get(first + 1) {
            Some(threads) if first == 0 => self.names.word(threads, line.scope)?,
            _ => self.names.word_constant(0),
        };
        Ok(Some(inst))
    }

    fn barrier(&mut self, line: &Line<'_, 'a>) -> Decoded {
        let (op, at, value) = match line.parts[1..] {
            ["init", ..] => (Op::BarrierInit, 0, Some(1)),
            ["arrive", "expect_tx", ..] => (Op::BarrierExpect, 1, Some(2)),
            ["arrive", "shared::cta" | "shared", "b64"] => (Op::BarrierArrive, 1, None),
            ["try_wait", "parity", ..] => (Op::BarrierWait(true), 1, Some(2)),
            ["test_wait", "parity", ..] => (Op::BarrierWait(false), 1, Some(2)),
            _ => return Ok(None),
        };
        let mut inst = plain(op);
        if at == 1 && *line.operand(0)? != Operand::Name("_") {
            if !matches!(op, Op::BarrierWait(_)) {
                return Ok(None);
            }
            inst.to[0] = self.predicate_to(line, 0)?;
        }
        self.shared_address(line, at, &mut inst, 0)?;
        if let Some(value) = value {
            inst.from[1] = self.word(line, value)?;
        }
        Ok(Some(inst))
    }

    /// An address in shared memory, which is a word.
    fn shared_address(
        &mut self,
        line: &Line<'_, 'a>,
        at: usize,
        inst: &mut Inst,
        slot: usize,
    ) -> Result<(), String> {
        let Operand::Address(base, offset) = line.operand(at)? else {
            return Err(format!("operand {at} is no address"));
        };
        if *offset != 0 {
            return Err("the emulator has no offset here".to_owned());
        }
        inst.from[slot] = self.names.word(base, line.scope)?;
        Ok(())
    }

    fn global_address(
        &mut self,
        line: &Line<'_, 'a>,
        at: usize,
        inst: &mut Inst,
        slot: usize,
    ) -> Result<(), String> {
        let (base, offset, far) = self.names.address(line.operand(at)?, line.scope)?;
        if offset != 0 || !far {
            return Err("the emulator has no such address here".to_owned());
        }
        inst.from[slot] = base;
        Ok(())
    }

    /// Copies, and products of matrices.
    pub(super) fn copies(&mut self, line: &Line<'_, 'a>) -> Decoded {
        match line.parts[..] {
            ["cp", "async", "ca" | "cg", "shared" | "shared::cta", "global", ..]
                if line.operands.len() == 3 =>
            {
                let mut inst = plain(Op::Copy);
                self.shared_address(line, 0, &mut inst, 0)?;
                self.global_address(line, 1, &mut inst, 1)?;
                inst.number = line.number(2)?;
                Ok(Some(inst))
            }
            ["cp", "async", "commit_group"] => Ok(Some(plain(Op::CopyCommit))),
            ["cp", "async", "wait_group"] => {
                let mut inst = plain(Op::CopyWait);
                inst.number = line.number(0)?;
                Ok(Some(inst))
            }
            [
                "cp",
                "async",
                "mbarrier",
                "arrive",
                "noinc",
                "shared::cta" | "shared",
                "b64",
            ] => {
                let mut inst = plain(Op::CopyArrive);
                self.shared_address(line, 0, &mut inst, 0)?;
                Ok(Some(inst))
            }
            ["cp", "async", "bulk", ..] => self.bulk(line),
            ["ldmatrix", "sync", "aligned", "m8n8", count, ref rest @ ..] => {
                self.load_matrix(line, count, rest)
            }
            ["mma", "sync", "aligned", shape, "row", "col", "f32", a, b, "f32"] if a == b => {
                let factor = match (shape, a) {
                    ("m16n8k16", "bf16") => Factor::Bf16,
                    ("m16n8k16", "f16") => Factor::F16,
                    ("m16n8k8", "tf32") => Factor::Tf32,
                    _ => return Ok(None),
                };
                let mut inst = plain(Op::Multiply(factor));
                let read: Vec<_> = [1, 2, 3]
                    .iter()
                    .flat_map(|index| each(&line.operands[*index]))
                    .collect();
                inst.list = self.list(line, Class::Word, &each(line.operand(0)?), &read)?;
                Ok((inst.list.2 == 14).then_some(inst))
            }
            ["wgmma", ..] => self.wide(line),
            _ => Ok(None),
        }
    }

    fn bulk(&mut self, line: &Line<'_, 'a>) -> Decoded {
        let mut inst = match line.parts[3..] {
            [
                "shared::cluster" | "shared::cta",
                "global",
                "mbarrier::complete_tx::bytes",
                ..,
            ] => {
                let mut inst = plain(Op::BulkLoad);
                self.shared_address(line, 0, &mut inst, 0)?;
                self.global_address(line, 1, &mut inst, 1)?;
                self.shared_address(line, 3, &mut inst, 3)?;
                inst
            }
            ["global", "shared::cta", "bulk_group"] => {
                let mut inst = plain(Op::BulkStore);
                self.global_address(line, 0, &mut inst, 1)?;
                self.shared_address(line, 1, &mut inst, 0)?;
                inst
            }
            ["commit_group"] => return Ok(Some(plain(Op::BulkCommit))),
            ["wait_group", ref read @ ..] => {
                let mut inst = plain(Op::BulkWait {
                    read: !read.is_empty(),
                });
                inst.number = line.number(0)?;
                return Ok(Some(inst));
            }
            _ => return Ok(None),
        };
        inst.from[2] = self.word(line, 2)?;
        Ok(Some(inst))
    }

    fn load_matrix(&mut self, line: &Line<'_, 'a>, count: &str, rest: &[&str]) -> Decoded {
        let transposed = rest.first() == Some(&"trans");
        let count = match count {
            "x1" => 1,
            "x2" => 2,
            "x4" => 4,
            _ => return Ok(None),
        };
        let mut inst = plain(Op::LoadMatrix { count, transposed });
        let values = each(line.operand(0)?);
        inst.list = self.list(line, Class::Word, &values, &[])?;
        self.shared_address(line, 1, &mut inst, 0)?;
        Ok((values.len() == usize::from(count)).then_some(inst))
    }

    fn wide(&mut self, line: &Line<'_, 'a>) -> Decoded {
        let (shape, factor) = match line.parts[1..] {
            ["fence", ..] => return Ok(Some(plain(Op::Nothing))),
            ["commit_group", ..] => return Ok(Some(plain(Op::MultiplyCommit))),
            ["wait_group", ..] => {
                let mut inst = plain(Op::MultiplyWait);
                inst.number = line.number(0)?;
                return Ok(Some(inst));
            }
            ["mma_async", "sync", "aligned", shape, "f32", "bf16", "bf16"] => (shape, Factor::Bf16),
            ["mma_async", "sync", "aligned", shape, "f32", "f16", "f16"] => (shape, Factor::F16),
            _ => return Ok(None),
        };
        let columns = shape
            .strip_prefix("m64n")
            .and_then(|rest| rest.strip_suffix("k16"));
        let Some(columns) = columns.and_then(|columns| columns.parse().ok()) else {
            return Ok(None);
        };
        let held = matches!(line.operand(1)?, Operand::List(_));
        let expected: &[i64] = if held { &[1, 1] } else { &[1, 1, 0] };
        let signs: Vec<i64> = (4..4 + expected.len())
            .map(|index| line.number(index))
            .collect::<Result<_, _>>()?;
        let by_rows = line.number(line.operands.len() - 1)? != 0;
        if signs != expected || line.operands.len() != expected.len() + 5 {
            return Ok(None);
        }
        let mut inst = plain(Op::MultiplyWide(Wide {
            columns,
            factor,
            held,
            by_rows,
        }));
        let sums = each(line.operand(0)?);
        let rows = if held { each(line.operand(1)?) } else { Vec::new() };
        // Sums are read too, where they are kept: so the register has to be there before.
        let read: Vec<_> = sums.iter().copied().chain(rows).collect();
        inst.list = self.list(line, Class::Word, &sums, &read)?;
        if !held {
            inst.from[1] = self.double(line, 1)?;
        }
        inst.from[0] = self.double(line, 2)?;
        inst.from[2] = self.predicate(line, 3)?;
        Ok((sums.len() == usize::from(columns) / 2).then_some(inst))
    }
}
