//! Rows for registers: those that are never needed at a time share one, or the registers of a kernel would not fit any cache.

use crate::kernel::{Inst, NONE, Op, Rows};
use crate::names::{Kind, Names, untagged};
use std::collections::BinaryHeap;

/// Gives every register a row in the file of its class, and writes rows for registers into the code.
pub(crate) fn assign(code: &mut [Inst], lists: &mut [u32], names: Names<'_, '_>) -> Rows {
    let mut rows = Rows {
        word_constants: names.words,
        specials: names.specials,
        double_constants: names.doubles,
        ..Rows::default()
    };
    let kinds = [Kind::Predicate, Kind::Word, Kind::Double];
    let maps = kinds.map(|kind| {
        let spans = spans(code, lists, kind, names.counts[kind as usize]);
        share(&spans)
    });
    [rows.predicates, rows.words, rows.doubles] = [maps[0].1, maps[1].1, maps[2].1];
    let constants = rows.words + rows.word_constants.len();
    let row = |id: u32| match untagged(id) {
        None => NONE,
        Some((kind @ (Kind::Predicate | Kind::Word | Kind::Double), index)) => maps[kind as usize].0[index],
        Some((Kind::WordConstant, index)) => (rows.words + index) as u32,
        Some((Kind::Special, index)) => (constants + index) as u32,
        Some((Kind::DoubleConstant, index)) => (rows.doubles + index) as u32,
        Some((Kind::PredicateConstant, index)) => (rows.predicates + index) as u32,
    };
    for inst in code {
        inst.guard = row(inst.guard);
        inst.to = inst.to.map(row);
        inst.from = inst.from.map(row);
    }
    for id in lists {
        *id = row(*id);
    }
    rows
}

/// The registers of a kind that an instruction reads, and those that it writes.
fn used(inst: &Inst, lists: &[u32], kind: Kind) -> (Vec<usize>, Vec<usize>) {
    let (start, written, all) = inst.list;
    let list = &lists[start as usize..start as usize + usize::from(all)];
    let (written, read) = list.split_at(usize::from(written));
    let pick = |ids: &mut dyn Iterator<Item = u32>| -> Vec<usize> {
        ids.filter_map(untagged)
            .filter(|(found, _)| *found == kind)
            .map(|(_, index)| index)
            .collect()
    };
    let reads = pick(&mut inst.from.iter().chain(read).copied().chain([inst.guard]));
    let writes = pick(&mut inst.to.iter().chain(written).copied());
    (reads, writes)
}

/// For each register, the first and the last instruction where it is needed, or something is in it that will be.
fn spans(code: &[Inst], lists: &[u32], kind: Kind, count: usize) -> Vec<Option<(usize, usize)>> {
    let uses: Vec<_> = code.iter().map(|inst| used(inst, lists, kind)).collect();
    let blocks = blocks(code);
    let words = count.div_ceil(64);
    let mut inside = vec![vec![0_u64; words]; blocks.len()];
    let block_at = |at: usize| blocks.partition_point(|block| block.0 <= at) - 1;
    let next: Vec<Vec<usize>> = blocks
        .iter()
        .map(|&(_, end)| {
            let last = &code[end - 1];
            let mut next = Vec::new();
            if last.op == Op::Branch {
                next.push(block_at(last.number as usize));
            }
            if end < code.len() && !(matches!(last.op, Op::Branch | Op::Exit) && last.guard == NONE) {
                next.push(block_at(end));
            }
            next
        })
        .collect();
    let mut changed = true;
    while changed {
        changed = false;
        for (index, &(start, end)) in blocks.iter().enumerate().rev() {
            let mut live = vec![0_u64; words];
            for &behind in &next[index] {
                live.iter_mut()
                    .zip(&inside[behind])
                    .for_each(|(live, more)| *live |= more);
            }
            for at in (start..end).rev() {
                step(&mut live, &code[at], &uses[at]);
            }
            changed |= live != inside[index];
            inside[index] = live;
        }
    }
    let mut spans: Vec<Option<(usize, usize)>> = vec![None; count];
    let mut touch = |register: usize, at: usize| {
        let span = spans[register].get_or_insert((at, at));
        *span = (span.0.min(at), span.1.max(at));
    };
    for (index, &(start, end)) in blocks.iter().enumerate() {
        each_bit(&inside[index], |register| touch(register, start));
        for &behind in &next[index] {
            each_bit(&inside[behind], |register| touch(register, end - 1));
        }
        for (at, (reads, writes)) in uses.iter().enumerate().take(end).skip(start) {
            reads
                .iter()
                .chain(writes)
                .for_each(|register| touch(*register, at));
        }
    }
    spans
}

/// From what is needed behind an instruction to what is needed before it.
fn step(live: &mut [u64], inst: &Inst, (reads, writes): &(Vec<usize>, Vec<usize>)) {
    if inst.guard == NONE {
        for register in writes {
            live[register / 64] &= !(1 << (register % 64));
        }
    }
    for register in reads {
        live[register / 64] |= 1 << (register % 64);
    }
}

fn each_bit(bits: &[u64], mut touch: impl FnMut(usize)) {
    for (word, bits) in bits.iter().enumerate() {
        let mut left = *bits;
        while left != 0 {
            touch(word * 64 + left.trailing_zeros() as usize);
            left &= left - 1;
        }
    }
}

/// Stretches of code without a branch into or out of their middle.
fn blocks(code: &[Inst]) -> Vec<(usize, usize)> {
    let mut starts = vec![false; code.len() + 1];
    starts[0] = true;
    for (at, inst) in code.iter().enumerate() {
        if inst.op == Op::Branch {
            starts[inst.number as usize] = true;
        }
        if matches!(inst.op, Op::Branch | Op::Exit) {
            starts[at + 1] = true;
        }
    }
    let starts: Vec<usize> = (0..code.len()).filter(|at| starts[*at]).collect();
    let ends = starts.iter().skip(1).copied().chain([code.len()]);
    starts.iter().copied().zip(ends).collect()
}

/// A row for each register, and how many rows there are. Row 0 is for what nobody wants.
fn share(spans: &[Option<(usize, usize)>]) -> (Vec<u32>, usize) {
    let mut order: Vec<usize> = (1..spans.len()).filter(|index| spans[*index].is_some()).collect();
    order.sort_by_key(|index| spans[*index]);
    let (mut rows, mut count) = (vec![0; spans.len()], 1);
    let mut busy: BinaryHeap<(std::cmp::Reverse<usize>, u32)> = BinaryHeap::new();
    let mut free = Vec::new();
    for index in order {
        let Some((start, end)) = spans[index] else {
            continue;
        };
        while let Some((std::cmp::Reverse(until), row)) = busy.peek().copied()
            && until < start
        {
            busy.pop();
            free.push(row);
        }
        let row = free.pop().unwrap_or_else(|| {
            count += 1;
            count as u32 - 1
        });
        rows[index] = row;
        busy.push((std::cmp::Reverse(end), row));
    }
    (rows, count)
}
