//! Slots whose model says what a script says, with drafts from their own texts.

use paceline_device::{
    Accept, Backend, NgramIndex, Pending, Prepare, ProposeNgram, SlotLimits, SlotTable, StepLimits,
    StepTables, plan, record, slot,
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
    generation: i32,
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
    plan: CpuBuffer<i32>,
    tokens: CpuBuffer<i32>,
    record: CpuBuffer<i32>,
    owners: Vec<Owner>,
    admissions: Vec<i32>,
    admitted: usize,
    blocks: Vec<[i32; plan::BLOCK]>,
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
        let words = plan::HEADER + Self::SLOTS * (plan::ADMISSION + 64 + plan::ROW) + Self::TOKENS;
        Self {
            slots: SlotTable::new(&cpu, limits).unwrap(),
            step: StepTables::new(&cpu, step_limits).unwrap(),
            index: NgramIndex::new(&cpu, shape.tokens, shape.lengths).unwrap(),
            plan: cpu.buffer(words + limits.blocks * plan::BLOCK).unwrap(),
            tokens: cpu.buffer(Self::SLOTS * 16).unwrap(),
            record: cpu.buffer(record::HEADER + Self::SLOTS * record::ROW).unwrap(),
            owners: vec![Owner::default(); Self::SLOTS],
            admissions: Vec::new(),
            admitted: 0,
            blocks: Vec::new(),
            cpu,
            shape,
        }
    }

    /// Gives the slot to a request, with the next step.
    pub(super) fn admit(&mut self, slot: usize, script: Script) {
        let owner = &mut self.owners[slot];
        let mut state = [0; slot::INTS];
        state[slot::GENERATION] = owner.generation + 1;
        state[slot::MAX_LENGTH] = script.max_length as i32;
        state[slot::RESTORE] = -1;
        state[slot::INDEXED] = script.indexed as i32;
        let lists = [&[script.stops.len() as i32], &script.stops[..], &[0, 0]].concat();
        self.admissions.extend([slot as i32, lists.len() as i32]);
        self.admissions.extend(state);
        self.admissions.extend(lists);
        assert!(
            script.blocks.len() * self.shape.block >= script.max_length,
            "blocks for all of it"
        );
        self.admitted += 1;
        let blocks = script.blocks.iter().enumerate();
        self.blocks
            .extend(blocks.map(|(index, block)| [slot as i32, index as i32, *block]));
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
        self.read(
            &self.index.entries,
            self.index.buckets * NgramIndex::<Cpu>::WAYS * 2,
        )
    }

    /// The slots, word by word.
    pub(super) fn state(&self) -> Vec<i32> {
        self.read(&self.slots.state, Self::SLOTS * slot::INTS)
    }

    fn read(&self, buffer: &CpuBuffer<i32>, len: usize) -> Vec<i32> {
        self.cpu.read(buffer, len).wait().unwrap()
    }

    /// Runs a step and returns its slots, in the order of its rows.
    pub(super) fn step(&mut self, asks: &[Ask]) -> Vec<Found> {
        let mut words = vec![
            self.admitted as i32,
            self.blocks.len() as i32,
            asks.len() as i32,
            0,
        ];
        words.append(&mut self.admissions);
        words.extend(self.blocks.drain(..).flatten());
        self.admitted = 0;
        let (mut prompts, mut sampled, mut chose) = (Vec::new(), Vec::new(), Vec::new());
        for ask in asks {
            let (row, choosing) = self.owners[ask.slot].plan(ask, &mut prompts, &mut sampled);
            words.extend(row);
            chose.push(choosing);
        }
        words[plan::TOKENS] = prompts.len() as i32;
        words.append(&mut prompts);
        self.cpu.write(&self.plan, &words);
        self.cpu.write(&self.tokens, &sampled);
        self.run();
        let state = self.state();
        let found = asks.iter().zip(chose).map(|(ask, chose)| {
            let row = &state[ask.slot * slot::INTS..][..slot::INTS];
            self.owners[ask.slot].compare(row, chose)
        });
        let found: Vec<Found> = found.collect();
        for (ask, found) in asks.iter().zip(&found) {
            self.owners[ask.slot].drafts.clone_from(&found.drafts);
        }
        found
    }

    fn run(&self) {
        let (plan, slots, step) = (&self.plan, &self.slots, &self.step);
        self.cpu.prepare(Prepare { plan, slots, step });
        self.cpu.accept(Accept {
            plan,
            slots,
            step,
            tokens: &self.tokens,
            record: &self.record,
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
    /// The words of a row, and whether it chooses a token. Adds its tokens and the model's choices, and takes what
    /// follows from them.
    fn plan(
        &mut self,
        ask: &Ask,
        prompts: &mut Vec<i32>,
        sampled: &mut Vec<i32>,
    ) -> ([i32; plan::ROW], bool) {
        let mut words = [0; plan::ROW];
        words[plan::ROW_SLOT] = ask.slot as i32;
        words[plan::ROW_GENERATION] = self.generation + ask.late;
        words[plan::ROW_COUNT] = ask.count as i32;
        words[plan::ROW_FOLLOWING] = -1;
        words[plan::ROW_SNAPSHOT_AT] = -1;
        words[plan::ROW_NGRAM] = ask.ngram;
        words[plan::ROW_NEURAL] = ask.neural;
        let serves = ask.late == 0 && !self.finished;
        let text = &self.script.text;
        if self.ran < self.script.prompt {
            let end = self.ran + ask.count;
            let last = end == self.script.prompt;
            words[plan::ROW_KIND] = plan::PREFILL;
            words[plan::ROW_START] = self.ran as i32;
            words[plan::ROW_FLAGS] = if last { plan::SAMPLE_LAST } else { 0 };
            prompts.extend(&text[self.ran..end]);
            if serves {
                (self.ran, self.known) = (end, end);
                if last {
                    sampled.push(text[end]);
                    self.take(1);
                }
            }
            return (words, serves && last);
        }
        words[plan::ROW_KIND] = plan::VERIFY;
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
        (words, serves)
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
    fn compare(&self, row: &[i32], chose: bool) -> Found {
        let text = self.script.text[..self.known].to_vec();
        assert_eq!(row[slot::GENERATION], self.generation);
        assert_eq!(row[slot::LENGTH] as usize, text.len());
        assert_eq!(row[slot::FINISHED] != 0, self.finished);
        if chose {
            assert_eq!(Some(&row[slot::NEWEST]), text.last());
        }
        let drafts = row[slot::DRAFTS..][..row[slot::DRAFT_COUNT] as usize].to_vec();
        Found {
            text,
            indexed: row[slot::INDEXED] as usize,
            chose,
            finished: self.finished,
            drafts,
            source: row[slot::SOURCE],
        }
    }
}
