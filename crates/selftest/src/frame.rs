//! The frame of a step, played at random: plans in, records out, to the last bit.

use crate::compare::Output;
use crate::judge::{Case, Judge};
use crate::play::Player;
use crate::rig::Rig;
use crate::stage::{SLOTS, Stage, TOKENS, VOCABULARY, WIDTH};
use paceline_device::abi::{PlanHeader, PlanMessage, PlanRow};
use paceline_device::{Backend, DeviceError, PoolStates, RingPlace};

pub(crate) fn judge<B: Backend>(judge: &mut Judge<'_, B>) {
    for block_size in [8, 16, 32] {
        for game in 0..4 {
            let case = format!("game {game}, blocks of {block_size}");
            judge.compare(
                "prepare, accept, pool, publish",
                &case,
                &Game { game, block_size },
            );
        }
    }
    judge.compare("prepare refuses plans", "one of each kind", &Refusals);
}

/// Steps of a game.
const STEPS: usize = 40;

struct Game {
    game: usize,
    block_size: usize,
}

impl Case for Game {
    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<Vec<Output>, DeviceError> {
        let stage = Stage::new(rig, self.block_size)?;
        let random = rig.random(&format!("game {}", self.game));
        let mut player = Player::new(random, self.block_size);
        let table = rig.inputs("states", (VOCABULARY, WIDTH), (1.0, false))?;
        let states = rig.device.tensor(&stage.step.tokens, WIDTH)?;
        let prepare = rig.program(|device| device.prepare(stage.prepare_args()));
        let finish = rig.program(|device| {
            device.embed(&stage.step, &table, 1.0, &mut states.clone());
            device.accept(stage.accept_args());
            device.pool_states(PoolStates {
                plan: &stage.plan,
                step: &stage.step,
                states: &states,
                table: &stage.pooled,
            });
            device.mark_drafting(&stage.record);
            device.publish(stage.publish_args());
        });
        let mut outputs = Vec::new();
        for step in 0..STEPS {
            let name = format!("step {step}");
            let mut known = stage.states()?;
            player.draft(&mut known);
            rig.device.write(&stage.slots.state, &known);
            rig.device.write(&stage.logprobs, &player.logprobs());
            player.plan(&known);
            let place = stage.post(&mut player.message, false)?;
            prepare.launch();
            outputs.extend(stage.tables(&name)?);
            outputs.extend(stage.slots(&name)?);
            let (tokens, logits) = stage.rows()?;
            rig.device.write(&stage.tokens, &player.choices(&tokens, &logits));
            finish.launch();
            outputs.extend(stage.collect(&name, place)?);
            outputs.extend(stage.slots(&name)?);
        }
        Ok(outputs)
    }
}

/// Plans that a step must not run, each between two that it runs.
struct Refusals;

impl Case for Refusals {
    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<Vec<Output>, DeviceError> {
        let stage = Stage::new(rig, 16)?;
        let mut player = Player::new(rig.random("refusals"), 16);
        let step = rig.program(|device| {
            device.prepare(stage.prepare_args());
            device.accept(stage.accept_args());
            device.mark_drafting(&stage.record);
            device.publish(stage.publish_args());
        });
        let mut outputs = Vec::new();
        let mut run = |name: &str, place: RingPlace| -> Result<(), DeviceError> {
            step.launch();
            outputs.extend(stage.collect(name, place)?);
            outputs.extend(stage.tables(name)?);
            outputs.extend(stage.slots(name)?);
            Ok(())
        };
        for (name, spoil) in SPOILED {
            player.plan(&stage.states()?);
            let place = stage.post(&mut player.message, false)?;
            run("a good plan", place)?;
            let place = match spoil {
                Spoil::Late => stage.post(&mut player.message, true)?,
                Spoil::Rows(rows) => stage.post(&mut too_much(rows), false)?,
                Spoil::Cut => {
                    let header = PlanHeader {
                        step: stage.next_number().into(),
                        rows: 1 << 28,
                        ..PlanHeader::default()
                    };
                    stage.post_words(bytemuck::cast_slice(&[header]))?
                }
            };
            run(name, place)?;
        }
        Ok(outputs)
    }
}

/// What is wrong with a plan.
#[derive(Clone, Copy)]
enum Spoil {
    /// Its number is another step's.
    Late,
    /// These plan rows: how many, of which kind, with how many tokens or drafts, with which flags.
    Rows((usize, i32, usize, i32)),
    /// Its sections end behind its place.
    Cut,
}

const SPOILED: [(&str, Spoil); 5] = [
    (
        "more plan rows than slots",
        Spoil::Rows((SLOTS + 1, PlanRow::VERIFY, 0, 0)),
    ),
    (
        "more tokens than fit",
        Spoil::Rows((2, PlanRow::PREFILL, TOKENS / 2 + 1, 0)),
    ),
    (
        "more tokens than fit, all of them sampled",
        Spoil::Rows((2, PlanRow::PREFILL, TOKENS / 2 + 1, PlanRow::SAMPLE_ALL)),
    ),
    ("sections that end behind the plan's place", Spoil::Cut),
    ("the number of another step", Spoil::Late),
];

fn too_much((rows, kind, count, flags): (usize, i32, usize, i32)) -> PlanMessage {
    let mut message = PlanMessage::new(0);
    for slot in 0..rows {
        let row = PlanRow {
            slot: (slot % SLOTS) as u32,
            generation: 1,
            kind,
            count: count as i32,
            flags,
            ..PlanRow::default()
        };
        let tokens = if kind == PlanRow::PREFILL { count } else { 0 };
        message.push(row, std::iter::repeat_n(1, tokens), []);
    }
    message
}
