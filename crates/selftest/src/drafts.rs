//! Drafts, played at random behind random steps: from the slots' own texts, by heads and by draft models. To the last
//! bit, but for what attention makes of keys and values that were cleared.

use crate::attention;
use crate::compare::{Limit, Output};
use crate::judge::{Case, Judge};
use crate::play::Player;
use crate::rig::Rig;
use crate::stage::{Stage, TOKENS, VOCABULARY, WIDTH, table_outputs, tables};
use paceline_device::{
    Attention, Backend, ClearKv, DeviceError, DraftForward, GatherStates, KeepBlockEnds, KeyValueStore,
    KvShape, NgramIndex, PrepareDrafts, ProposeNgram, StepTables, TakeDrafts,
};

pub(crate) fn judge<B: Backend>(judge: &mut Judge<'_, B>) {
    for block_size in [8, 16] {
        for (seed, lengths) in [(0, (1, 3)), (1, (2, 4)), (2, (3, 8))] {
            let case = format!("n-grams of {lengths:?}, blocks of {block_size}");
            let texts = Texts {
                seed,
                block_size,
                lengths,
            };
            judge.compare("propose_ngram", &case, &texts);
        }
        let texts = Texts {
            seed: 3,
            block_size,
            lengths: (2, 3),
        };
        for drafter in [
            Drafter::Head,
            Drafter::Model { recurrent: false },
            Drafter::Model { recurrent: true },
        ] {
            let case = format!("{drafter:?}, blocks of {block_size}");
            let game = Neural { texts, drafter };
            judge.compare("prepare_drafts, take_drafts", &case, &game);
        }
        let limit = attention::limit(judge.elements(), HEADS * HEAD_DIM);
        let case = format!("blocks of {block_size}");
        judge.compare("clear_kv", &case, &Cleared { block_size, limit });
    }
}

const STEPS: usize = 40;
/// Draft forwards of a step.
const PLACES: usize = 3;

/// Drafts from the slots' own texts.
#[derive(Clone, Copy)]
struct Texts {
    seed: u64,
    block_size: usize,
    lengths: (usize, usize),
}

impl Texts {
    fn player<B: Backend>(&self, rig: &Rig<'_, B>) -> Player {
        let random = rig.random(&format!("drafts {}", self.seed));
        Player::new(random, self.block_size)
    }

    fn index<B: Backend>(&self, stage: &Stage<'_, B>) -> Result<NgramIndex<B>, DeviceError> {
        let limits = stage.slots.limits;
        let tokens = limits.blocks * limits.block_size;
        NgramIndex::new(stage.rig.device, tokens, self.lengths)
    }
}

fn propose<'a, B: Backend>(stage: &'a Stage<'_, B>, index: &'a NgramIndex<B>) -> ProposeNgram<'a, B> {
    ProposeNgram {
        plan: &stage.plan,
        slots: &stage.slots,
        step: &stage.step,
        index,
        chain_min: 2,
    }
}

impl Case for Texts {
    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<Vec<Output>, DeviceError> {
        let stage = Stage::new(rig, self.block_size)?;
        let mut player = self.player(rig);
        let index = self.index(&stage)?;
        let prepare = rig.program(|device| device.prepare(stage.prepare_args()));
        let finish = rig.program(|device| {
            device.accept(stage.accept_args());
            device.mark_drafting(&stage.record);
            device.propose_ngram(propose(&stage, &index));
            device.publish(stage.publish_args());
        });
        let mut outputs = Vec::new();
        for step in 0..STEPS {
            let name = format!("step {step}");
            player.plan(&stage.states()?);
            let place = stage.post(&mut player.message, false)?;
            prepare.launch();
            outputs.extend(stage.tables(&name)?);
            let (tokens, logits) = stage.rows()?;
            rig.device.write(&stage.tokens, &player.choices(&tokens, &logits));
            finish.launch();
            outputs.extend(stage.collect(&name, place)?);
            outputs.extend(stage.slots(&name)?);
        }
        Ok(outputs)
    }
}

#[derive(Clone, Copy, Debug)]
enum Drafter {
    /// Behind the step, then on its own drafts.
    Head,
    /// Along with the step, then ahead of it.
    Model { recurrent: bool },
}

impl Drafter {
    /// The draft forward that gives the draft behind `place` others.
    fn forward(self, place: usize) -> DraftForward {
        match (self, place) {
            (Self::Head, 0) => DraftForward::Behind,
            (Self::Head, place) => DraftForward::Again { place },
            (Self::Model { .. }, place) => DraftForward::Ahead { place },
        }
    }
}

/// Neural drafts where the text has none.
struct Neural {
    texts: Texts,
    drafter: Drafter,
}

/// What a draft forward works on.
struct Pass<B: Backend> {
    tables: StepTables<B>,
    source: B::Buffer<i32>,
    /// The states that its tokens start from.
    hidden: B::Tensor,
    /// What it chooses.
    tokens: B::Buffer<i32>,
}

impl<B: Backend> Pass<B> {
    fn new(stage: &Stage<'_, B>) -> Result<Self, DeviceError> {
        let device = stage.rig.device;
        let tables = tables(stage.rig, &stage.slots)?;
        Ok(Self {
            source: device.buffer(TOKENS)?,
            hidden: device.tensor(&tables.tokens, WIDTH)?,
            tokens: device.buffer(TOKENS)?,
            tables,
        })
    }

    fn prepare<'a>(
        &'a self,
        stage: &'a Stage<'_, B>,
        pass: DraftForward,
        before: Option<&'a Self>,
    ) -> PrepareDrafts<'a, B> {
        PrepareDrafts {
            pass,
            plan: &stage.plan,
            slots: &stage.slots,
            step: &stage.step,
            record: &stage.record,
            before: before.map(|before| &before.tables),
            draft: &self.tables,
            source: &self.source,
        }
    }

    fn take<'a>(&'a self, stage: &'a Stage<'_, B>, place: usize) -> TakeDrafts<'a, B> {
        TakeDrafts {
            place,
            slots: &stage.slots,
            draft: &self.tables,
            tokens: &self.tokens,
        }
    }

    /// What was laid out. Only a head has sources and starts from states.
    fn outputs(&self, rig: &Rig<'_, B>, name: &str, head: bool) -> Result<Vec<Output>, DeviceError> {
        let mut outputs = table_outputs(rig, name, &self.tables)?;
        if head {
            let tokens = rig.count(&self.tables.tokens.live)?.min(TOKENS);
            let sources = rig.read(&self.source, tokens)?;
            outputs.push(Output::words(format!("{name}: sources"), sources));
            outputs.push(rig.output(&format!("{name}: states"), &self.hidden, Limit::Exact)?);
        }
        Ok(outputs)
    }
}

/// What a drafter has on the device.
struct Drafting<B: Backend> {
    drafter: Drafter,
    index: NgramIndex<B>,
    /// States of tokens, by their ids.
    table: B::Weight,
    states: B::Tensor,
    kept: B::Buffer<f32>,
    along: Pass<B>,
    passes: Vec<Pass<B>>,
}

impl<B: Backend> Drafting<B> {
    fn new(stage: &Stage<'_, B>, game: &Neural) -> Result<Self, DeviceError> {
        let rig = stage.rig;
        let passes: Result<Vec<_>, _> = (0..PLACES).map(|_| Pass::new(stage)).collect();
        Ok(Self {
            drafter: game.drafter,
            index: game.texts.index(stage)?,
            table: rig.inputs("states", (VOCABULARY, WIDTH), (1.0, false))?,
            states: rig.device.tensor(&stage.step.tokens, WIDTH)?,
            kept: rig.device.buffer(stage.slots.limits.blocks * WIDTH)?,
            along: Pass::new(stage)?,
            passes: passes?,
        })
    }

    fn is_head(&self) -> bool {
        matches!(self.drafter, Drafter::Head)
    }

    /// What a draft model does before the step's tokens are chosen.
    fn enqueue_along(&self, device: &B, stage: &Stage<'_, B>) {
        if let Drafter::Model { recurrent } = self.drafter {
            let forward = DraftForward::Along { recurrent };
            device.prepare_drafts(self.along.prepare(stage, forward, None));
        }
    }

    /// From the text, then one draft forward after the other.
    fn enqueue(&self, device: &B, stage: &Stage<'_, B>) {
        device.propose_ngram(propose(stage, &self.index));
        if self.is_head() {
            device.embed(&stage.step, &self.table, 1.0, &mut self.states.clone());
            device.keep_block_ends(KeepBlockEnds {
                states: &self.states,
                step: &stage.step,
                kept: &self.kept,
            });
        }
        for (place, pass) in self.passes.iter().enumerate() {
            let before = place.checked_sub(1).map(|before| &self.passes[before]);
            let forward = self.drafter.forward(place);
            device.prepare_drafts(pass.prepare(stage, forward, before.filter(|_| self.is_head())));
            if self.is_head() {
                device.gather_states(GatherStates {
                    states: before.map_or(&self.states, |before| &before.hidden),
                    kept: &self.kept,
                    source: &pass.source,
                    out: &mut pass.hidden.clone(),
                });
            }
            device.take_drafts(pass.take(stage, place));
        }
    }

    fn outputs(&self, stage: &Stage<'_, B>, name: &str) -> Result<Vec<Output>, DeviceError> {
        let (rig, head) = (stage.rig, self.is_head());
        let mut outputs = Vec::new();
        for (place, pass) in self.passes.iter().enumerate() {
            outputs.extend(pass.outputs(rig, &format!("{name}, forward {place}"), head)?);
        }
        if head {
            let kept = rig.read(&self.kept, stage.slots.limits.blocks * WIDTH)?;
            outputs.push(Output::numbers(
                format!("{name}: kept states"),
                kept,
                Limit::Exact,
            ));
        } else {
            outputs.extend(self.along.outputs(rig, &format!("{name}, along"), head)?);
        }
        Ok(outputs)
    }
}

impl Case for Neural {
    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<Vec<Output>, DeviceError> {
        let stage = Stage::new(rig, self.texts.block_size)?;
        let mut player = self.texts.player(rig);
        let drafting = Drafting::new(&stage, self)?;
        let prepare = rig.program(|device| {
            device.prepare(stage.prepare_args());
            drafting.enqueue_along(device, &stage);
        });
        let finish = rig.program(|device| {
            device.accept(stage.accept_args());
            device.mark_drafting(&stage.record);
            drafting.enqueue(device, &stage);
            device.publish(stage.publish_args());
        });
        let mut outputs = Vec::new();
        for step in 0..STEPS {
            let name = format!("step {step}");
            player.plan(&stage.states()?);
            let place = stage.post(&mut player.message, false)?;
            prepare.launch();
            outputs.extend(stage.tables(&name)?);
            let (tokens, logits) = stage.rows()?;
            rig.device.write(&stage.tokens, &player.choices(&tokens, &logits));
            for pass in &drafting.passes {
                rig.device.write(&pass.tokens, &player.any_tokens());
            }
            finish.launch();
            outputs.extend(stage.collect(&name, place)?);
            outputs.extend(stage.slots(&name)?);
            outputs.extend(drafting.outputs(&stage, &name)?);
        }
        Ok(outputs)
    }
}

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 32;

/// Keys and values of tokens that a drafter does not see, as attention finds them.
struct Cleared {
    block_size: usize,
    limit: Limit,
}

impl Case for Cleared {
    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<Vec<Output>, DeviceError> {
        let (queries, keys) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
        let stage = Stage::new(rig, self.block_size)?;
        let mut player = Player::new(rig.random("cleared"), self.block_size);
        let table = rig.inputs("tokens", (VOCABULARY, queries + 2 * keys), (2.0, false))?;
        let tokens = &stage.step.tokens;
        let x = rig.device.tensor(tokens, queries + 2 * keys)?;
        let ranges = [
            0..queries,
            queries..queries + keys,
            queries + keys..queries + 2 * keys,
        ];
        let [q, k, v] = ranges.map(|range| rig.device.columns(&x, range));
        let out = rig.device.tensor(tokens, queries)?;
        let cache = rig.device.kv_cache(KvShape {
            blocks: stage.slots.limits.blocks,
            block_size: self.block_size,
            heads: KV_HEADS,
            head_dim: HEAD_DIM,
        })?;
        let program = rig.program(|device| {
            device.prepare(stage.prepare_args());
            device.embed(&stage.step, &table, 1.0, &mut x.clone());
            device.store_kv(KeyValueStore {
                q: &mut q.clone(),
                k: &k,
                v: &v,
                norms: None,
                angles: None,
                cache: &cache,
                step: &stage.step,
            });
            device.clear_kv(ClearKv {
                plan: &stage.plan,
                step: &stage.step,
                cache: &cache,
            });
            device.attention(Attention {
                q: &q,
                gate: None,
                cache: &cache,
                scale: 0.2,
                out: &mut out.clone(),
                step: &stage.step,
            });
            device.accept(stage.accept_args());
            device.mark_drafting(&stage.record);
            device.publish(stage.publish_args());
        });
        let mut outputs = Vec::new();
        for step in 0..STEPS {
            player.plan(&stage.states()?);
            rig.device.write(&stage.tokens, &player.any_tokens());
            let place = stage.post(&mut player.message, false)?;
            program.launch();
            outputs.push(rig.output(&format!("step {step}"), &out, self.limit)?);
            stage.collect("", place)?;
        }
        Ok(outputs)
    }
}
