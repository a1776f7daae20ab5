//! What goes where: weights, blocks, states, rings, snapshots, scratch.

use crate::engine::runner_config;
use crate::speculation::{DrafterShape, Speculation};
use crate::{DeviceInfo, ElementTypes, EngineConfig, Outline, StartError};
use paceline_device::{Backend, KvShape, NgramIndex, Recorder, StateShape};
use paceline_models::{Decoder, ModelDims};
use paceline_runner::RunnerConfig;
use std::fmt;

/// Bytes of a number in a buffer, on every device.
const WORD: u64 = 4;

/// Share of the available memory that may be used where nothing is said.
const MOST: f64 = 0.8;

/// Share of all memory of a device of its own that is used where nothing is said.
const MOST_OF_A_DEVICE: f64 = 0.9;

/// What stays free on a device of its own, for what its driver takes while an engine starts: code and programs.
const OF_THE_DRIVER: u64 = 512 << 20;

/// How often a plan is measured and cut until it fits.
const MEASURES: u64 = 6;

/// What is left for rounding then.
const ROUNDING: u64 = 64 << 20;

/// Share of what is available that blocks take by default. Memory that is the host's is left to others, too.
const BLOCKS: f64 = 0.25;

/// Tokens of a request that blocks are taken for by default, for each that can run at a time: most are shorter, and what
/// they leave is the prefix cache.
const USEFUL_LENGTH: usize = 4096;

/// The memory of an engine, planned before any of it is taken.
///
/// All of it is touched in time: blocks and snapshots are used in turn, so that what was computed last is kept longest.
/// So blocks are, by default, what `max_num_seqs` requests of a useful length need, and no more than a quarter
/// of what is available; but always enough for one request of full length. A number of blocks, bytes for them or a share
/// of the memory say otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// How the device stores all but weights.
    pub elements: ElementTypes,
    /// Bytes that may be used in all.
    pub budget: u64,
    /// Weights as the device keeps them, the drafter's included.
    pub weights: u64,
    /// Keys, values and token ids in blocks.
    pub kv: u64,
    /// Recurrent states of all slots, with the convolution inputs before them.
    pub states: u64,
    /// Entries of all slots since their states, and more convolution inputs.
    pub rings: u64,
    /// Saved recurrent states.
    pub snapshots: u64,
    /// Where n-grams were seen.
    pub ngram_index: u64,
    /// Activations, logits and tables, what operations of the device need while they run, and what is lost to rounding: all
    /// that a start takes beside the above.
    pub scratch: u64,
    /// Blocks that all requests and the prefix cache share.
    pub blocks: usize,
    /// Tokens of a block.
    pub block_size: usize,
    /// Blocks of one request of full length.
    pub blocks_per_slot: usize,
    /// Requests running at a time.
    pub slots: usize,
    /// Saved recurrent states.
    pub snapshot_count: usize,
    /// Longest sequence, prompt included.
    pub max_model_len: usize,
    /// State of one request, ring not included; a snapshot is as large.
    pub state_per_request: u64,
    /// Ring of one request.
    pub ring_per_request: u64,
}

impl MemoryPlan {
    /// Requests of full length that fit at the same time.
    pub fn full_length_requests(&self) -> usize {
        (self.blocks / self.blocks_per_slot).min(self.slots)
    }

    /// Bytes of everything.
    pub fn total(&self) -> u64 {
        let caches = self.kv + self.states + self.rings + self.snapshots + self.ngram_index;
        self.weights + caches + self.scratch
    }

    /// Plans the memory that an engine takes on a device. `measure` says what a runner would really hold there, if the
    /// device has more to hold than it is asked for.
    pub fn new(
        outline: Outline,
        config: &EngineConfig,
        device: &DeviceInfo,
        measure: &dyn Fn(RunnerConfig) -> Option<Result<Held, StartError>>,
    ) -> Result<Self, StartError> {
        config.check()?;
        if device.power_of_two_blocks && !config.block_size.is_power_of_two() {
            return Err(StartError::Option {
                option: "block-size",
                value: config.block_size.to_string(),
                bound: format!("a power of two on {}", device.name),
            });
        }
        let (model, speculation, elements) = (outline.model(), *outline.speculation(), device.elements);
        let room = Room::of(config, device);
        let max_model_len = longest(config, &model.dims)?;
        let drafter = outline.drafter_shape(config.block_size);
        let drafts = speculation.draft_tokens;
        let own = StateBytes::of(&model.state_shapes(1), drafts, elements);
        let draft_model = StateBytes::of(&drafter.states, drafts, elements);
        let (state, ring) = (own.state + draft_model.state, own.ring + draft_model.ring);
        let mut plan = Self {
            elements,
            budget: room.budget,
            weights: model.stats.kept_bytes + drafter.weights,
            kv: 0,
            states: state * config.max_num_seqs as u64,
            rings: ring * config.max_num_seqs as u64,
            snapshots: 0,
            ngram_index: 0,
            scratch: 0,
            blocks: 0,
            block_size: config.block_size,
            blocks_per_slot: max_model_len.div_ceil(config.block_size),
            slots: config.max_num_seqs,
            snapshot_count: 0,
            max_model_len,
            state_per_request: state,
            ring_per_request: ring,
        };
        let block = BlockBytes::of(model, (&speculation, &drafter), config.block_size, elements);
        let samples = sample_rows(config, drafts, model.dims.vocabulary);
        // Tables grow a little with the blocks: first as many as there would be if all the rest took nothing.
        plan.share_out(block, (config, room), state)?;
        let masks = mask_rows(config, drafts, model.dims.vocabulary);
        let runner = runner_config((config, &speculation), &plan, (samples, masks));
        let asked = outline.rehearse(runner)?;
        plan.scratch = asked.saturating_sub(plan.blocks as u64 * block.words + plan.ngram_index);
        plan.share_out(block, (config, room), state)?;
        // With fewer blocks less is lost to rounding, or more: so a little is left, and more of it where that was too little.
        for measures in 0..MEASURES {
            let runner = runner_config((config, &speculation), &plan, (samples, masks));
            let Some(held) = measure(runner).transpose()? else {
                break;
            };
            plan.take_measure(held);
            if plan.total() <= plan.budget {
                break;
            }
            plan.scratch += measures * ROUNDING;
            plan.share_out(block, (config, room), state)?;
        }
        Ok(plan)
    }

    /// What was not counted before is weights and scratch: caches are as planned.
    fn take_measure(&mut self, held: Held) {
        let caches = self.total() - self.weights - self.scratch;
        self.weights = held.weights;
        self.scratch = held.all.saturating_sub(held.weights + caches);
    }

    /// Gives what is left to snapshots and blocks.
    fn share_out(
        &mut self,
        block: BlockBytes,
        (config, room): (&EngineConfig, Room),
        snapshot: u64,
    ) -> Result<(), StartError> {
        (self.kv, self.ngram_index, self.snapshots) = (0, 0, 0);
        let left = self.budget.saturating_sub(self.total());
        // With caching off, snapshots still serve the siblings of one request.
        let share = if config.prefix_caching {
            config.snapshot_share
        } else {
            config.snapshot_share / 4.0
        };
        if let Some(affordable) = ((left as f64 * share) as u64).checked_div(snapshot) {
            let useful = 8 * self.slots + 64;
            self.snapshot_count = (affordable as usize).min(useful);
            self.snapshots = self.snapshot_count as u64 * snapshot;
        }
        let left = self.budget.saturating_sub(self.total());
        let fitting = |bytes: u64| (bytes / block.most().max(1)) as usize;
        self.blocks = match (config.num_blocks, config.kv_cache_memory) {
            (Some(blocks), _) => blocks,
            (None, Some(bytes)) => fitting(bytes),
            (None, None) if room.fill => fitting(left).min(2 * self.slots * self.blocks_per_slot),
            (None, None) => {
                let some = fitting((room.available as f64 * BLOCKS) as u64).min(self.useful_blocks());
                some.max(self.blocks_per_slot).min(fitting(left))
            }
        };
        self.kv = self.blocks as u64 * block.kv;
        self.ngram_index = block.index(self.blocks);
        let given = config.num_blocks.is_some() || config.kv_cache_memory.is_some();
        if self.blocks < self.blocks_per_slot && !given || self.total() > self.budget {
            return Err(StartError::Memory(self.shortage(block.most())));
        }
        if self.blocks < self.blocks_per_slot {
            let (blocks, needed) = (self.blocks, self.blocks_per_slot);
            return Err(StartError::Memory(format!(
                "{blocks} blocks of {} tokens cannot hold one request of {} tokens, which takes {needed}; raise \
                 --num-blocks or --kv-cache-memory, or lower --max-model-len",
                self.block_size, self.max_model_len
            )));
        }
        Ok(())
    }

    /// Blocks of as many requests of a useful length as can run at a time.
    fn useful_blocks(&self) -> usize {
        self.slots * self.max_model_len.min(USEFUL_LENGTH).div_ceil(self.block_size)
    }

    fn shortage(&self, block: u64) -> String {
        let one = self.blocks_per_slot as u64 * block;
        format!(
            "{} may be used; weights take {}, states {}, scratch {}, and the blocks of one request of {} tokens {}: \
             lower --max-model-len, --max-num-seqs, --num-blocks or --kv-cache-memory, or raise --memory-utilization",
            Bytes(self.budget),
            Bytes(self.weights),
            Bytes(self.states + self.rings + self.snapshots),
            Bytes(self.scratch),
            self.max_model_len,
            Bytes(one.max(self.kv)),
        )
    }
}

/// Bytes that a device holds for an engine.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// When the weights are there.
    pub weights: u64,
    /// When the engine has started.
    pub all: u64,
}

/// Memory that may be used.
#[derive(Clone, Copy)]
struct Room {
    /// Bytes that are free.
    available: u64,
    /// Of these, bytes that the engine may take.
    budget: u64,
    /// Blocks take what is left of the budget, as far as there is any use for it.
    fill: bool,
}

impl Room {
    /// Memory of the host is left to others as far as nothing is said. A device of its own is there to be used: a share
    /// of all that it has, as vLLM counts it.
    fn of(config: &EngineConfig, device: &DeviceInfo) -> Self {
        let available = config.available_memory.or(device.free_memory).unwrap_or(8 << 30);
        let share = config.memory_utilization;
        if device.shares_host_memory {
            return Self {
                available,
                budget: (available as f64 * share.unwrap_or(MOST)) as u64,
                fill: share.is_some(),
            };
        }
        let total = config
            .available_memory
            .or(device.total_memory)
            .unwrap_or(available);
        let budget = (total as f64 * share.unwrap_or(MOST_OF_A_DEVICE)) as u64;
        Self {
            available,
            budget: budget.min(available.saturating_sub(OF_THE_DRIVER)),
            fill: true,
        }
    }
}

/// Bytes of a block.
#[derive(Clone, Copy)]
struct BlockBytes {
    /// Keys and values of all layers, the drafter's included, and token ids.
    kv: u64,
    /// Of these, what is in buffers: token ids, and what a head starts from at the block's end.
    words: u64,
    block_size: usize,
    /// Lengths of n-grams that are looked up.
    ngram: Option<(usize, usize)>,
}

impl BlockBytes {
    fn of<B: Backend>(
        model: &Decoder<B>,
        (speculation, drafter): (&Speculation, &DrafterShape),
        block_size: usize,
        elements: ElementTypes,
    ) -> Self {
        let kv = |shape: &KvShape| 2 * shape.heads * shape.head_dim * block_size;
        let own: usize = model.kv_shapes(1, block_size).iter().map(kv).sum();
        let drafters: usize = drafter.kv.iter().map(kv).sum();
        let words = (drafter.block_end + block_size) as u64 * WORD;
        Self {
            kv: (own + drafters) as u64 * elements.kv_bytes() + words,
            words,
            block_size,
            ngram: speculation.ngram,
        }
    }

    /// Bytes of the index over `blocks` blocks.
    fn index(self, blocks: usize) -> u64 {
        self.ngram.map_or(0, |lengths| {
            NgramIndex::<Recorder>::bytes(blocks * self.block_size, lengths)
        })
    }

    /// Bytes of a block with its part of the index, which is rounded up to a bucket.
    fn most(self) -> u64 {
        self.kv + self.index(1)
    }
}

/// Bytes of all recurrent layers, per request.
struct StateBytes {
    /// The state at a position, with the convolution inputs before it: what a snapshot holds.
    state: u64,
    /// What else a slot keeps: the entries since, and more convolution inputs.
    ring: u64,
}

impl StateBytes {
    fn of(shapes: &[StateShape], drafts: usize, elements: ElementTypes) -> Self {
        let sum = |count: fn(&StateShape) -> usize| {
            let shapes = shapes.iter().map(|shape| StateShape { drafts, ..*shape });
            shapes.map(|shape| count(&shape)).sum::<usize>() as u64
        };
        let (state, input) = (elements.state_bytes(), elements.activation_bytes());
        let inputs = |shape: &StateShape| shape.conv_inputs() * shape.conv_channels - shape.window_elements();
        let entries = |shape: &StateShape| shape.entries() * shape.entry_elements();
        Self {
            state: sum(StateShape::matrix_elements) * state + sum(StateShape::window_elements) * input,
            ring: sum(entries) * state + sum(inputs) * input,
        }
    }
}

/// The longest sequence: the model's limit, or a bound below it.
fn longest(config: &EngineConfig, dims: &ModelDims) -> Result<usize, StartError> {
    match config.max_model_len {
        Some(given) if given == 0 || given > dims.max_positions => Err(StartError::Option {
            option: "max-model-len",
            value: given.to_string(),
            bound: format!("within 1..={}, the model's limit", dims.max_positions),
        }),
        Some(given) => Ok(given),
        None => Ok(dims.max_positions),
    }
}

/// Masks that a step has room for: what all requests can have, but no more than travels to a device in a fraction of a
/// millisecond. One plan row's always fit.
pub(crate) fn mask_rows(config: &EngineConfig, drafts: usize, vocabulary: usize) -> usize {
    const BYTES: usize = 16 << 20;
    if !config.constraints {
        return 0;
    }
    let own = 1 + drafts;
    (config.max_num_seqs * own)
        .min(BYTES / vocabulary.div_ceil(8).max(1))
        .max(own)
}

/// Logits rows of a step: one verify window per request, and for prompt log-probabilities as many as fit 64 MiB, if that
/// is more, up to the tokens of a step.
pub(crate) fn sample_rows(config: &EngineConfig, drafts: usize, vocabulary: usize) -> usize {
    let windows = config.max_num_seqs * (1 + drafts);
    let affordable = (64 << 20) / (WORD as usize * vocabulary.max(1));
    windows.max(affordable.min(config.max_num_batched_tokens))
}

/// A number of bytes for people.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        if unit == 0 {
            write!(f, "{} B", self.0)
        } else {
            write!(f, "{value:.1} {}", UNITS[unit])
        }
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = [
            ("weights", self.weights, String::new()),
            (
                "KV blocks",
                self.kv,
                format!(
                    "{} × {} tokens, {}",
                    self.blocks,
                    self.block_size,
                    self.elements.kv.name()
                ),
            ),
            (
                "states",
                self.states,
                format!(
                    "{} × {}, {}",
                    self.slots,
                    Bytes(self.state_per_request),
                    self.elements.states.name()
                ),
            ),
            (
                "rings",
                self.rings,
                format!("{} × {}", self.slots, Bytes(self.ring_per_request)),
            ),
            ("snapshots", self.snapshots, format!("{}", self.snapshot_count)),
            ("n-grams", self.ngram_index, String::new()),
            ("scratch", self.scratch, String::new()),
            (
                "total",
                self.total(),
                format!("will be touched, of {} that may be used", Bytes(self.budget)),
            ),
        ];
        for (name, bytes, note) in rows {
            writeln!(f, "  {name:<10} {:>12}  {note}", Bytes(bytes).to_string())?;
        }
        let (slots, length, full) = (self.slots, self.max_model_len, self.full_length_requests());
        let requests = if slots == 1 { "request" } else { "requests" };
        write!(
            f,
            "  {slots} {requests} at a time of up to {length} tokens; {full} of them at full length"
        )
    }
}
