//! A drafter that knows how the texts go on, and makes of it what it likes.

use paceline_device::abi::{Plan, PlanRow, Slot};
use paceline_device::{Checked, DeviceError};
use paceline_device_cpu::Cpu;
use paceline_runner::{Proposer, Stage};
use paceline_types::{MAX_DRAFTS, TokenId};
use std::collections::HashMap;
use std::sync::Arc;

/// How drafts are made from the text that is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// Always what the model will choose.
    Right,
    /// Never.
    Wrong,
    /// Each draft is right with one chance in two, as the position has it; the number of drafts is ragged too.
    Random,
    /// A right window, then one that is wrong from its middle on.
    Alternating,
}

impl Script {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Right, Self::Wrong, Self::Random, Self::Alternating];

    /// Up to `most` drafts for the positions from `length` on.
    fn drafts(self, text: &[TokenId], length: usize, most: usize) -> impl Iterator<Item = i32> {
        let noise = |position: usize| (position as u32).wrapping_mul(2_654_435_761);
        let count = match self {
            Self::Random => noise(length + 7) as usize % (most + 1),
            _ => most,
        };
        (0..count).map(move |place| {
            let position = length + place;
            let holds = match self {
                Self::Right => true,
                Self::Wrong => false,
                Self::Random => noise(position) >> 31 == 0,
                Self::Alternating => length.is_multiple_of(2) || place < most / 2,
            };
            let next = text.get(position).copied().unwrap_or(3);
            (if holds { next } else { (next + 1) % 200 }) as i32
        })
    }
}

/// Whole texts, prompts included, by the seed of the request and the length of its prompt.
pub type Texts = HashMap<(u64, usize), Vec<TokenId>>;

/// The drafter.
pub(super) struct Scripted {
    script: Script,
    texts: Arc<Texts>,
}

impl Scripted {
    pub(super) fn new(script: Script, texts: Texts) -> Self {
        Self {
            script,
            texts: Arc::new(texts),
        }
    }
}

impl Proposer<Checked<Cpu>> for Scripted {
    fn is_neural(&self) -> bool {
        false
    }

    fn propose(&self, stage: &Stage<'_, Checked<Cpu>>) -> Result<(), DeviceError> {
        let (script, texts) = (self.script, Arc::clone(&self.texts));
        let (plan, slots) = (stage.plan.inner(), stage.slots.state.inner());
        stage
            .backend
            .inner()
            .host_function(plan, slots, move |words, slots| {
                let plan = Plan::parse(words).expect("the step has a plan");
                for row in plan.rows {
                    draft(script, &texts, row, &mut slots[row.slot as usize]);
                }
            });
        Ok(())
    }
}

fn draft(script: Script, texts: &Texts, row: &PlanRow, slot: &mut Slot) {
    if !row.chooses() || !slot.runs(row.generation) {
        return;
    }
    let name = (slot.sampling.seed.into(), slot.prompt_length as usize);
    let Some(text) = texts.get(&name) else { return };
    // One more than wanted, if there is room for it: the next plan cuts what it has no room for.
    let wanted = row.ngram.max(row.neural) as usize;
    let most = if wanted == 0 {
        0
    } else {
        (wanted + 1).min(MAX_DRAFTS)
    };
    let drafts = script.drafts(text, slot.length as usize, most);
    let mut count = 0;
    for token in drafts {
        slot.drafts[count] = token;
        count += 1;
    }
    slot.draft_count = count as i32;
    slot.source = Slot::FROM_NGRAM;
}
