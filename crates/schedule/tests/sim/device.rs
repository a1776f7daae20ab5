//! The scripted device: runs plans in order on virtual time, keeps blocks, states and slots as the real one
//! would, and checks the host's side of the contract at every row.

use super::check::check_plan;
use super::rng::Rng;
use super::text::{Script, state};
use paceline_schedule::{Clock, RunnerFault, SchedulerConfig, StepRunner};
use paceline_types::{
    Admission, BlockId, DraftBudget, DraftSource, PlanRow, Pooling, RowEnd, RowOutput, SnapshotPlan,
    StepOutput, StepPlan, TokenId, TokenLogprobs, Work,
};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

/// Time that passes only when somebody spends it.
#[derive(Clone, Debug, Default)]
pub struct VirtualClock(Rc<Cell<u64>>);

/// What one look at the clock costs the host: a few of these are a step's host time.
pub const HOST_NS: u64 = 500;

impl VirtualClock {
    pub fn peek(&self) -> u64 {
        self.0.get()
    }

    pub fn advance(&self, ns: u64) {
        self.0.set(self.0.get() + ns);
    }

    fn wait_until(&self, ns: u64) {
        self.0.set(self.0.get().max(ns));
    }
}

impl Clock for VirtualClock {
    fn now_ns(&self) -> u64 {
        self.advance(HOST_NS);
        self.peek()
    }
}

/// The scripts by the seed in a request's parameters, which here is its name.
pub type Scripts = Rc<RefCell<HashMap<u64, Rc<Script>>>>;

/// What a block holds at one position: the hash of all that stands before, and the token.
type Cached = (u64, TokenId);

struct Slot {
    admission: Admission,
    script: Rc<Script>,
    table: Vec<Option<BlockId>>,
    /// Tokens known to the device; the cached ones are read from the blocks with the first row.
    known: usize,
    /// Tokens whose blocks are written.
    computed: usize,
    /// Tokens folded into the recurrent state.
    folded: usize,
    decoding: bool,
    finished: bool,
    /// Drafts that were asked for behind the row before, and those that came of it.
    proposed: DraftBudget,
    drafts: usize,
    source: Option<DraftSource>,
}

pub struct Device {
    config: SchedulerConfig,
    depth: usize,
    clock: VirtualClock,
    scripts: Scripts,
    rng: Rng,
    slots: Vec<Option<Slot>>,
    blocks: Vec<Vec<Option<Cached>>>,
    /// The tokens folded and the state, as their hash.
    snapshots: Vec<Option<(usize, u64)>>,
    busy_until: u64,
    submitted: u64,
    collected: u64,
    waits: u64,
    /// Names of requests in the order of their admissions.
    pub admitted: Vec<u64>,
    /// Rows that found a finished slot.
    pub idle_rows: u64,
    pub restores: u64,
    /// Widest spread of tokens of one verify row.
    pub most_accepted: usize,
    /// First decode rows of requests that had drafts to verify.
    pub early_drafts: u64,
    /// Drafts verified, by source.
    pub drafted: [u64; 3],
    /// Per slot, whoever owns it: states added up, and how many.
    sums: Vec<(usize, u64)>,
    /// Vectors made.
    pub vectors: u64,
}

/// A step on its way; the outcome is fixed, the host just does not know it yet.
pub struct Flight {
    output: StepOutput,
}

impl Device {
    pub fn new(
        config: &SchedulerConfig,
        depth: usize,
        clock: VirtualClock,
        scripts: Scripts,
        seed: u64,
    ) -> Self {
        let snapshots = config.recurrent.map_or(0, |recurrent| recurrent.snapshots);
        Self {
            depth,
            clock,
            scripts,
            rng: Rng::new(seed),
            slots: (0..config.slots).map(|_| None).collect(),
            blocks: vec![vec![None; config.block_size]; config.num_blocks],
            snapshots: vec![None; snapshots],
            busy_until: 0,
            submitted: 0,
            collected: 0,
            waits: 0,
            admitted: Vec::new(),
            idle_rows: 0,
            restores: 0,
            most_accepted: 0,
            early_drafts: 0,
            drafted: [0; 3],
            sums: vec![(99, 99); config.slots],
            vectors: 0,
            config: config.clone(),
        }
    }

    fn admit(&mut self, admission: &Admission) {
        let index = admission.slot.0 as usize;
        if let Some(before) = &self.slots[index] {
            assert!(
                admission.generation > before.admission.generation,
                "a generation came again"
            );
        }
        let name = admission.params.seed;
        let script = self.scripts.borrow()[&name].clone();
        let cached = admission.cached_tokens;
        assert!(
            cached.is_multiple_of(self.config.block_size),
            "a hit of {cached} tokens is not whole blocks"
        );
        assert_eq!(admission.prompt_tokens, script.prompt_len);
        assert_eq!(
            admission.min_length,
            script.prompt_len + admission.params.min_tokens
        );
        if let Some(id) = admission.restore {
            assert!(self.config.recurrent.is_some(), "a state for a model without any");
            assert_eq!(
                self.snapshots[id.0 as usize],
                Some((cached, script.hashes[cached])),
                "the restored state is not the one of the first {cached} tokens"
            );
            self.restores += 1;
        } else {
            assert!(
                self.config.recurrent.is_none() || cached == 0,
                "cached tokens without their state"
            );
        }
        self.admitted.push(name);
        self.slots[index] = Some(Slot {
            admission: admission.clone(),
            script,
            table: vec![None; self.config.blocks_per_request],
            known: cached,
            computed: cached,
            folded: cached,
            decoding: false,
            finished: false,
            proposed: DraftBudget::NONE,
            drafts: 0,
            source: None,
        });
    }

    fn run_row(&mut self, row: &PlanRow) -> RowOutput {
        let index = row.slot.0 as usize;
        let Some(mut slot) = self.slots[index].take() else {
            panic!("a row for slot {index}, which nobody was admitted to");
        };
        assert_eq!(
            row.generation, slot.admission.generation,
            "a row of a former owner after its successor's start"
        );
        let output = if slot.finished {
            assert!(
                matches!(row.work, Work::Verify { .. }),
                "a prompt goes on behind its end"
            );
            self.idle_rows += 1;
            RowOutput::default()
        } else {
            for (place, block) in &row.new_blocks {
                assert!(
                    slot.table[*place as usize].is_none(),
                    "block {place} of the table was set twice"
                );
                slot.table[*place as usize] = Some(*block);
            }
            let output = match &row.work {
                Work::Prefill { .. } => self.prefill(&mut slot, row),
                Work::Verify { drafts } => self.verify(&mut slot, *drafts, row),
                Work::Embed { .. } => self.embed(&mut slot, row),
            };
            self.draft(&mut slot, row.propose);
            self.show_drafts(&slot, row, output)
        };
        self.slots[index] = Some(slot);
        output
    }

    fn prefill(&mut self, slot: &mut Slot, row: &PlanRow) -> RowOutput {
        let Work::Prefill {
            start,
            tokens,
            last,
            following,
            prompt_logprobs,
        } = &row.work
        else {
            panic!()
        };
        let snapshot_written = self.run_known(slot, row, (*start, tokens));
        let end = start + tokens.len();
        let expected = (!last).then(|| slot.script.tokens[end]);
        assert_eq!(*following, expected, "the token behind the row");
        let mut output = RowOutput {
            snapshot_written,
            ..RowOutput::default()
        };
        if *prompt_logprobs {
            let scored = start + 1..(end + 1).min(slot.script.prompt_len);
            output.prompt_logprobs = scored.map(score).collect();
        }
        if *last {
            check_masks(slot, row, 0);
            slot.decoding = true;
            Self::emit(slot, 1, &mut output);
        }
        output
    }

    /// Tokens that the host knows: they go into the blocks and the state.
    fn run_known(&mut self, slot: &mut Slot, row: &PlanRow, (start, tokens): (usize, &[TokenId])) -> bool {
        assert!(!slot.decoding, "known tokens behind the last");
        assert_eq!(start, slot.computed, "positions are not contiguous");
        assert!(!tokens.is_empty());
        let end = start + tokens.len();
        assert_eq!(
            tokens[..],
            slot.script.tokens[start..end],
            "the tokens are not the request's"
        );
        for position in start..end {
            let content = (slot.script.hashes[position], slot.script.tokens[position]);
            self.write(slot, position, content);
        }
        self.attend(slot, end);
        let snapshot_written = self.fold(slot, end, row.snapshot);
        slot.computed = end;
        slot.known = end;
        snapshot_written
    }

    /// A text that becomes a vector.
    fn embed(&mut self, slot: &mut Slot, row: &PlanRow) -> RowOutput {
        let Work::Embed {
            start,
            tokens,
            last,
            pooling,
        } = &row.work
        else {
            panic!()
        };
        assert_eq!(row.propose, DraftBudget::NONE, "drafts behind a text that ends");
        let snapshot_written = self.run_known(slot, row, (*start, tokens));
        let end = start + tokens.len();
        assert_eq!(*last, end == slot.script.tokens.len(), "the end of the text");
        let (count, sum) = &mut self.sums[row.slot.0 as usize];
        if *start == 0 {
            (*count, *sum) = (0, 0);
        }
        *count += tokens.len();
        *sum += (start + 1..=end)
            .map(|length| state(slot.script.hashes[length]))
            .sum::<u64>();
        let mut output = RowOutput {
            snapshot_written,
            ..RowOutput::default()
        };
        if *last {
            self.vectors += 1;
            slot.finished = true;
            output.embedding = match pooling {
                Pooling::Mean => vec![*count as f32, *sum as f32],
                Pooling::Last => vec![1.0, state(slot.script.hashes[end]) as f32],
            };
        }
        output
    }

    fn verify(&mut self, slot: &mut Slot, drafts: usize, row: &PlanRow) -> RowOutput {
        assert!(slot.decoding, "a decode before the end of the prompt");
        assert_eq!(slot.computed + 1, slot.known);
        let newest = slot.computed;
        if let Some(given) = &row.constraint {
            assert_eq!(drafts, given.drafts.len());
            (slot.drafts, slot.source) = (drafts, given.source);
        } else {
            assert!(
                drafts <= slot.proposed.most(),
                "{drafts} drafts to verify, and {:?} were asked for",
                slot.proposed
            );
        }
        check_masks(slot, row, drafts);
        let drafted = drafts.min(slot.drafts);
        let source = slot.source.filter(|_| drafted > 0);
        if let Some(source) = source {
            self.drafted[source as usize] += drafted as u64;
            let first = slot.known == slot.admission.prompt_tokens + 1;
            self.early_drafts += u64::from(first);
        }
        // Masks leave nothing but the text, so what is given holds.
        let least = if row.constraint.is_some() { drafted } else { 0 };
        let accepted = self.rng.within(least, drafted);
        let length = slot.script.tokens.len();
        for position in newest..=newest + drafted {
            // Accepted drafts are the text itself; what was rejected leaves garbage behind.
            let content = if position <= newest + accepted && position < length {
                (slot.script.hashes[position], slot.script.tokens[position])
            } else {
                (self.rng.next(), 99)
            };
            self.write(slot, position, content);
        }
        let snapshot_written = self.fold(slot, slot.known, row.snapshot);
        let mut output = RowOutput {
            drafted,
            source,
            snapshot_written,
            ..RowOutput::default()
        };
        Self::emit(slot, 1 + accepted, &mut output);
        self.most_accepted = self.most_accepted.max(output.tokens.len());
        slot.computed = slot.known - 1;
        self.attend(slot, slot.computed);
        output
    }

    /// The end of a row: drafts for the next one, fewer than asked for as often as not, from the text or else from a
    /// drafter, which runs the newest token and all its drafts but the last.
    fn draft(&mut self, slot: &mut Slot, propose: DraftBudget) {
        let size = self.config.block_size;
        slot.proposed = propose;
        (slot.drafts, slot.source) = (0, None);
        assert!(
            propose.most() <= self.config.drafts,
            "{propose:?}, more than there may be"
        );
        let limit = slot.script.speculation;
        assert!(
            propose.ngram <= limit.ngram && propose.neural <= limit.neural,
            "{propose:?}, more than the request may have"
        );
        if slot.finished || !slot.decoding {
            return;
        }
        // A draft that leaves no room for the token behind it is not made.
        let room = slot.admission.max_length - slot.known - 1;
        let most = propose.most().min(room);
        if most > 0 {
            for position in slot.known - 1..slot.known - 1 + most {
                assert!(
                    slot.table[position / size].is_some(),
                    "no block for a draft at {position}"
                );
            }
        }
        for (most, source) in [
            (propose.ngram, DraftSource::Ngram),
            (propose.neural, DraftSource::Neural),
        ] {
            if slot.drafts == 0 && self.rng.chance(70) {
                slot.drafts = self.rng.within(0, most.min(room));
                slot.source = (slot.drafts > 0).then_some(source);
            }
        }
    }

    /// Tells the host of the drafts behind a confined row: some of them are the text, and some are not.
    fn show_drafts(&mut self, slot: &Slot, row: &PlanRow, mut output: RowOutput) -> RowOutput {
        if row.constraint.is_none() || row.propose == DraftBudget::NONE || slot.finished {
            return output;
        }
        let right = self.rng.below(slot.drafts + 2);
        let text = slot.script.tokens[slot.known..].iter().copied();
        let wrong = std::iter::repeat_with(|| (self.rng.next() % 25) as TokenId);
        let drafts = text.take(right).chain(wrong).take(slot.drafts);
        output.made = (drafts.collect(), slot.source);
        output
    }

    /// Adds up to `most` tokens of the script to the text, and ends it where the script ends.
    fn emit(slot: &mut Slot, most: usize, output: &mut RowOutput) {
        let script = &slot.script;
        let end = (slot.known + most).min(script.tokens.len());
        assert!(end > slot.known, "a text goes on behind its end");
        output.tokens = script.tokens[slot.known..end].to_vec();
        if slot.admission.params.logprobs.is_some() {
            output.logprobs = (slot.known..end).map(score).collect();
        }
        slot.known = end;
        if end == script.tokens.len() {
            slot.finished = true;
            let at_limit = end == slot.admission.max_length;
            assert!(script.stops || at_limit);
            output.end = Some(if script.stops {
                RowEnd::StopToken
            } else {
                RowEnd::Length
            });
        }
    }

    fn write(&mut self, slot: &Slot, position: usize, content: Cached) {
        let size = self.config.block_size;
        let Some(block) = slot.table[position / size] else {
            panic!("position {position} has no block");
        };
        self.blocks[block.0 as usize][position % size] = Some(content);
    }

    /// Reads all blocks of a request: each position must hold exactly its own text so far.
    fn attend(&self, slot: &Slot, end: usize) {
        let size = self.config.block_size;
        for (block_index, positions) in (0..end).step_by(size).enumerate() {
            let Some(block) = slot.table[block_index] else {
                panic!("position {positions} has no block");
            };
            let block = &self.blocks[block.0 as usize];
            for position in positions..(positions + size).min(end) {
                let expected = (slot.script.hashes[position], slot.script.tokens[position]);
                let found = block[position - positions];
                assert_eq!(found, Some(expected), "position {position} of {end} in {block:?}");
            }
        }
    }

    /// Folds tokens into the state up to `end`, and saves it on the way where asked and reached.
    fn fold(&mut self, slot: &mut Slot, end: usize, snapshot: Option<SnapshotPlan>) -> bool {
        assert!(end >= slot.folded);
        let before = std::mem::replace(&mut slot.folded, end);
        let Some(SnapshotPlan { position, id }) = snapshot else {
            return false;
        };
        assert!(
            position.is_multiple_of(self.config.block_size),
            "a state between blocks"
        );
        assert!(position.is_multiple_of(16), "a state beside the grid");
        let reached = before < position && position <= end;
        if reached {
            self.snapshots[id.0 as usize] = Some((position, slot.script.hashes[position]));
        }
        reached
    }
}

/// A row of a confined text comes with the masks of just its positions, and with drafts that they allow.
fn check_masks(slot: &Slot, row: &PlanRow, drafts: usize) {
    let Some(grammar) = &slot.script.grammar else {
        assert!(row.constraint.is_none(), "masks for a free text");
        return;
    };
    let Some(constraint) = &row.constraint else {
        panic!("a confined text without masks at {}", slot.known);
    };
    assert!(constraint.masks.len() > drafts, "masks are missing");
    for (offset, mask) in constraint.masks.iter().enumerate() {
        let position = slot.known + offset;
        assert_eq!(*mask, grammar.mask(position), "the mask of position {position}");
        assert!(mask.allows(slot.script.tokens[position]));
    }
    let text = &slot.script.tokens[slot.known..];
    assert!(text.starts_with(&constraint.drafts), "a draft that may not come");
}

/// Log-probabilities that tell the position they are of.
fn score(position: usize) -> TokenLogprobs {
    TokenLogprobs {
        chosen: position as f32,
        top: Vec::new(),
    }
}

impl StepRunner for Device {
    type InFlight = Flight;

    fn submit(&mut self, plan: &StepPlan) -> Result<Flight, RunnerFault> {
        self.submitted += 1;
        assert_eq!(plan.step, self.submitted, "steps are numbered from 1");
        assert!(
            self.submitted - self.collected <= self.depth as u64,
            "more steps in flight than the depth"
        );
        check_plan(plan, &self.config);
        for admission in &plan.admissions {
            self.admit(admission);
        }
        let rows = plan.rows.iter().map(|row| self.run_row(row)).collect();
        let begin = self.clock.peek().max(self.busy_until);
        // Longer than any host time of a step, so that a pipeline need never run empty.
        let end = begin + 20 * HOST_NS + 100 * plan.tokens() as u64 + self.rng.below(5000) as u64;
        self.busy_until = end;
        let neural = plan.rows.iter().any(|row| row.propose.neural > 0);
        let output = StepOutput {
            step: plan.step,
            rows,
            device_ns: (begin, end),
            draft_ns: (end - begin) / 10,
            draft_passes: usize::from(neural),
        };
        Ok(Flight { output })
    }

    fn collect(&mut self, step: Flight) -> Result<StepOutput, RunnerFault> {
        self.collected += 1;
        assert_eq!(step.output.step, self.collected, "steps are collected in order");
        self.clock.wait_until(step.output.device_ns.1);
        self.waits += 1;
        Ok(step.output)
    }

    fn host_waits(&self) -> u64 {
        self.waits
    }
}
