//! Slots whose model says what a script says, with drafts from their own texts.

use crate::host::Host;
use paceline_device::abi::{AdmissionWords, BlockUpdate, PlanHeader, PlanMessage, PlanRow, Slot, SlotLists};
use paceline_device::{
    Accept, Backend, NgramIndex, Pending, ProposeNgram, SlotLimits, SlotTable, StepLimits, StepTables,
};
use paceline_device_cpu::{Cpu, CpuBuffer, CpuOptions, Instructions};

/// What a bench is made for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) block: usize,
    pub(super) lengths: (usize, usize),
    /// Tokens the index is made for.
    pub(super) tokens: usize,
    pub(super) chain_min: usize,
}

/// A request: the prompt, and what the model will say.
#[derive(Clone, Default)]
pub(super) struct Script {
    pub(super) text: Vec<i32>,
    pub(super) prompt: usize,
    /// Its blocks, in order.
    pub(super) blocks: Vec<i32>,
    /// Tokens that are in its blocks already.
    pub(super) cached: usize,
    /// Tokens whose n-grams are taken to be in the index.
    pub(super) indexed: usize,
    pub(super) max_length: usize,
    pub(super) stops: Vec<i32>,
}

/// What a row of a plan asks for.
#[derive(Clone, Copy)]
pub(super) struct Ask {
    pub(super) slot: usize,
    /// Added to the owner's generation.
    pub(super) late: i32,
    /// Tokens of a piece of the prompt, or most drafts.
    pub(super) count: usize,
    pub(super) ngram: i32,
    pub(super) neural: i32,
}

impl Ask {
    pub(super) fn new(slot: usize, count: usize, ngram: i32) -> Self {
        Self {
            slot,
            late: 0,
            count,
            ngram,
            neural: 0,
        }
    }
}

/// A slot behind a step.
#[derive(Debug, PartialEq)]
pub(super) struct Found {
    /// All known tokens.
    pub(super) text: Vec<i32>,
    /// Tokens whose n-grams are in the index.
    pub(super) indexed: usize,
    pub(super) chose: bool,
    pub(super) finished: bool,
    pub(super) drafts: Vec<i32>,
    pub(super) source: i32,
}

#[derive(Clone, Default)]
struct Owner {
    generation: u32,
    script: Script,
    /// Tokens of the prompt that have run.
    ran: usize,
    /// Tokens known.
    known: usize,
    drafts: Vec<i32>,
    finished: bool,
}

pub(super) struct Bench {
    cpu: Cpu,
    shape: Shape,
    slots: SlotTable<Cpu>,
    step: StepTables<Cpu>,
    index: NgramIndex<Cpu>,
    host: Host,
    tokens: CpuBuffer<i32>,
    owners: Vec<Owner>,
    /// The plan of the next step.
    message: PlanMessage,
}

impl Bench {
    pub(super) const SLOTS: usize = 4;
    const TOKENS: usize = 12_000;

    pub(super) fn new(shape: Shape) -> Self {
        let cpu = Cpu::new(CpuOptions {
            threads: 1,
            instructions: Instructions::Portable,
        });
        let per_slot = Self::TOKENS.div_ceil(shape.block);
        let limits = SlotLimits {
            slots: Self::SLOTS,
            blocks_per_slot: per_slot,
            blocks: Self::SLOTS * per_slot,
            block_size: shape.block,
            snapshots: 0,
        };
        let step_limits = StepLimits {
            tokens: Self::TOKENS,
            requests: Self::SLOTS,
            samples: Self::SLOTS * 16,
            blocks_per_request: per_slot,
            block_size: shape.block,
        };
        let words = PlanHeader::WORDS
            + Self::SLOTS * (AdmissionWords::WORDS + 64 + PlanRow::WORDS)
            + limits.blocks * BlockUpdate::WORDS
            + Self::TOKENS;
        Self {
            slots: SlotTable::new(&cpu, limits).unwrap(),
            step: StepTables::new(&cpu, step_limits).unwrap(),
            index: NgramIndex::new(&cpu, shape.tokens, shape.lengths).unwrap(),
            host: Host::without_records(&cpu, Self::SLOTS, words),
            tokens: cpu.buffer(Self::SLOTS * 16).unwrap(),
            owners: vec![Owner::default(); Self::SLOTS],
            message: PlanMessage::new(0),
            cpu,
            shape,
        }
    }

    /// Gives the slot to a request, with the next step.
    pub(super) fn admit(&mut self, slot: usize, script: Script) {
        let owner = &mut self.owners[slot];
        let state = Slot {
            generation: owner.generation + 1,
            max_length: script.max_length as i32,
            restore: -1,
            indexed: script.indexed as i32,
            ..Slot::default()
        };
        let stops: Vec<u32> = script.stops.iter().map(|token| *token as u32).collect();
        let lists = SlotLists::encode(&stops, &[], &[]);
        self.message.admit(slot as u32, state, &lists);
        assert!(
            script.blocks.len() * self.shape.block >= script.max_length,
            "blocks for all of it"
        );
        for (index, block) in script.blocks.iter().enumerate() {
            self.message.update_block(BlockUpdate {
                slot: slot as u32,
                index: index as u32,
                block: *block as u32,
            });
        }
        *owner = Owner {
            generation: owner.generation + 1,
            ran: script.cached,
            script,
            ..Owner::default()
        };
    }

    /// A row with the next piece of the prompt, or with drafts once it has run.
    pub(super) fn ask(&self, slot: usize, piece: usize, drafts: usize) -> Ask {
        let owner = &self.owners[slot];
        let left = owner.script.prompt - owner.ran;
        let count = if left > 0 { piece.min(left) } else { drafts };
        Ask::new(slot, count, drafts as i32)
    }

    pub(super) fn finished(&self, slot: usize) -> bool {
        self.owners[slot].finished
    }

    /// The index, word by word.
    pub(super) fn entries(&self) -> Vec<i32> {
        let words = self.index.buckets * NgramIndex::<Cpu>::WAYS * 2;
        self.cpu.read(&self.index.entries, words).wait().unwrap()
    }

    /// The slots.
    pub(super) fn state(&self) -> Vec<Slot> {
        self.cpu.read(&self.slots.state, Self::SLOTS).wait().unwrap()
    }

    /// Runs a step and returns its slots, in the order of its rows.
    pub(super) fn step(&mut self, asks: &[Ask]) -> Vec<Found> {
        let (mut sampled, mut chose) = (Vec::new(), Vec::new());
        for ask in asks {
            let owner = &mut self.owners[ask.slot];
            chose.push(owner.plan(ask, &mut self.message, &mut sampled));
        }
        self.cpu.write(&self.tokens, &sampled);
        self.run();
        self.message.clear();
        let state = self.state();
        let found = asks
            .iter()
            .zip(chose)
            .map(|(ask, chose)| self.owners[ask.slot].compare(&state[ask.slot], chose));
        let found: Vec<Found> = found.collect();
        for (ask, found) in asks.iter().zip(&found) {
            self.owners[ask.slot].drafts.clone_from(&found.drafts);
        }
        found
    }

    fn run(&mut self) {
        let (slots, step) = (&self.slots, &self.step);
        self.host.prepare(&mut self.message, slots, step);
        let plan = &self.host.plan;
        self.cpu.accept(Accept {
            plan,
            slots,
            step,
            tokens: &self.tokens,
            record: &self.host.record,
        });
        self.cpu.propose_ngram(ProposeNgram {
            plan,
            slots,
            step,
            index: &self.index,
            chain_min: self.shape.chain_min,
        });
    }
}

impl Owner {
    /// Adds a row and the model's choices, takes what follows from them, and returns whether it chooses a token.
    fn plan(&mut self, ask: &Ask, message: &mut PlanMessage, sampled: &mut Vec<i32>) -> bool {
        let row = PlanRow {
            slot: ask.slot as u32,
            generation: self.generation.wrapping_add_signed(ask.late),
            count: ask.count as i32,
            following: -1,
            snapshot_at: -1,
            ngram: ask.ngram,
            neural: ask.neural,
            ..PlanRow::default()
        };
        let serves = ask.late == 0 && !self.finished;
        let text = &self.script.text;
        if self.ran < self.script.prompt {
            let end = self.ran + ask.count;
            let last = end == self.script.prompt;
            let row = PlanRow {
                kind: PlanRow::PREFILL,
                start: self.ran as i32,
                flags: i32::from(last) * PlanRow::SAMPLE_LAST,
                ..row
            };
            message.push(row, text[self.ran..end].iter().copied(), []);
            if serves {
                (self.ran, self.known) = (end, end);
                if last {
                    sampled.push(text[end]);
                    self.take(1);
                }
            }
            return serves && last;
        }
        let row = PlanRow {
            kind: PlanRow::VERIFY,
            ..row
        };
        message.push(row, [], []);
        if serves {
            let room = self.script.max_length - self.known - 1;
            let drafts = &self.drafts[..self.drafts.len().min(ask.count).min(room)];
            let choices = &text[self.known..];
            sampled.extend(&choices[..=drafts.len()]);
            let held = drafts
                .iter()
                .zip(choices)
                .take_while(|(draft, choice)| draft == choice);
            self.take(held.count() + 1);
        }
        serves
    }

    /// So many tokens become part of the text, unless it ends before.
    fn take(&mut self, count: usize) {
        for _ in 0..count {
            let stopped = self.script.stops.contains(&self.script.text[self.known]);
            self.known += 1;
            if stopped || self.known == self.script.max_length {
                self.finished = true;
                return;
            }
        }
    }

    /// What a slot holds, after checking it for what follows from the script.
    fn compare(&self, slot: &Slot, chose: bool) -> Found {
        let text = self.script.text[..self.known].to_vec();
        assert_eq!(slot.generation, self.generation);
        assert_eq!(slot.length as usize, text.len());
        assert_eq!(slot.finished != 0, self.finished);
        if chose {
            assert_eq!(Some(&slot.newest), text.last());
        }
        Found {
            text,
            indexed: slot.indexed as usize,
            chose,
            finished: self.finished,
            drafts: slot.drafts[..slot.draft_count as usize].to_vec(),
            source: slot.source,
        }
    }
}
