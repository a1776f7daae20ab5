//! What goes where: weights, blocks, states, rings, snapshots, scratch.

use crate::speculation::{DrafterShape, Speculation};
use crate::{DeviceInfo, ElementTypes, EngineConfig, StartError};
use paceline_device::abi::{PlanLimits, RecordLimits};
use paceline_device::{Backend, KvShape, NgramIndex, Recorder, StateShape};
use paceline_models::Decoder;
use std::fmt;

/// Bytes of an element of the residual stream, of logits and of tables, on every device.
const WORD: u64 = 4;

/// The memory of an engine, planned before any of it is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// How the device stores all but weights.
    pub elements: ElementTypes,
    /// Bytes that may be used in all.
    pub budget: u64,
    /// Weights as stored, the drafter's included.
    pub weights: u64,
    /// Keys, values and token ids in blocks.
    pub kv: u64,
    /// Recurrent states and convolution windows of all slots.
    pub states: u64,
    /// Records of drafts, and what drafts add to the windows.
    pub rings: u64,
    /// Saved recurrent states.
    pub snapshots: u64,
    /// Where n-grams were seen.
    pub ngram_index: u64,
    /// Activations, logits and tables.
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
    /// State of one request, ring not included.
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

    /// Plans the memory that a model, which may have been built from its configuration alone, and its drafter take on a
    /// device.
    pub fn new<B: Backend>(
        model: &Decoder<B>,
        (speculation, drafter): (&Speculation, &DrafterShape),
        config: &EngineConfig,
        device: &DeviceInfo,
    ) -> Result<Self, StartError> {
        config.check()?;
        let available = config.available_memory.or(device.free_memory).unwrap_or(8 << 30);
        let elements = device.elements;
        let budget = (available as f64 * config.memory_utilization) as u64;
        let max_model_len = match config.max_model_len {
            Some(given) if given == 0 || given > model.dims.max_positions => {
                return Err(StartError::Option {
                    option: "max-model-len",
                    value: given.to_string(),
                    bound: format!("within 1..={}, the model's limit", model.dims.max_positions),
                });
            }
            Some(given) => given,
            None => model.dims.max_positions,
        };
        let blocks_per_slot = max_model_len.div_ceil(config.block_size);
        let drafts = speculation.draft_tokens;
        let own = StateBytes::of(&model.state_shapes(1), drafts, elements);
        // A draft model looks ahead from wherever in the window it was right.
        let draft_model = StateBytes::of(&drafter.states, 2 * drafts, elements);
        let (state, ring) = (own.state + draft_model.state, own.ring + draft_model.ring);
        let mut plan = Self {
            elements,
            budget,
            weights: model.stats.bytes() + drafter.weights,
            kv: 0,
            states: state * config.max_num_seqs as u64,
            rings: ring * config.max_num_seqs as u64,
            snapshots: 0,
            ngram_index: 0,
            scratch: scratch_bytes(model, drafter, (config, drafts), elements),
            blocks: 0,
            block_size: config.block_size,
            blocks_per_slot,
            slots: config.max_num_seqs,
            snapshot_count: 0,
            max_model_len,
            state_per_request: state,
            ring_per_request: ring,
        };
        let block = BlockBytes::of(model, (speculation, drafter), config.block_size, elements);
        plan.share_out(block, config, state)?;
        Ok(plan)
    }

    /// Gives what is left to snapshots and blocks.
    fn share_out(
        &mut self,
        block: BlockBytes,
        config: &EngineConfig,
        snapshot: u64,
    ) -> Result<(), StartError> {
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
        let useful = 2 * self.slots * self.blocks_per_slot;
        self.blocks = config
            .num_blocks
            .unwrap_or_else(|| ((left / block.most().max(1)) as usize).min(useful));
        self.kv = self.blocks as u64 * block.kv;
        self.ngram_index = block.index(self.blocks);
        if self.blocks < self.blocks_per_slot && config.num_blocks.is_none() || self.total() > self.budget {
            return Err(StartError::Memory(self.shortage(block.most())));
        }
        if self.blocks < self.blocks_per_slot {
            let (blocks, needed) = (self.blocks, self.blocks_per_slot);
            return Err(StartError::Memory(format!(
                "{blocks} blocks of {} tokens cannot hold one request of {} tokens, which takes {needed}; raise \
                 --num-blocks or lower --max-model-len",
                self.block_size, self.max_model_len
            )));
        }
        Ok(())
    }

    fn shortage(&self, block: u64) -> String {
        let one = self.blocks_per_slot as u64 * block;
        format!(
            "{} may be used; weights take {}, states {}, scratch {}, and the blocks of one request of {} tokens {}: \
             lower --max-model-len, --max-num-seqs or --num-blocks, or raise --memory-utilization",
            Bytes(self.budget),
            Bytes(self.weights),
            Bytes(self.states + self.rings + self.snapshots),
            Bytes(self.scratch),
            self.max_model_len,
            Bytes(one.max(self.kv)),
        )
    }
}

/// Bytes of a block.
#[derive(Clone, Copy)]
struct BlockBytes {
    /// Keys and values of all layers, the drafter's included, and token ids.
    kv: u64,
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
        // The states of ends of blocks are a buffer, and so are token ids.
        let words = (drafter.block_end + block_size) as u64 * WORD;
        Self {
            kv: (own + drafters) as u64 * elements.kv_bytes() + words,
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
    /// The state with its windows; a snapshot is as large.
    state: u64,
    /// What drafts add.
    ring: u64,
}

impl StateBytes {
    fn of(shapes: &[StateShape], drafts: usize, elements: ElementTypes) -> Self {
        let sum = |count: fn(&StateShape) -> usize| shapes.iter().map(count).sum::<usize>() as u64;
        let (state, input) = (elements.state_bytes(), elements.activation_bytes());
        let per_draft = sum(StateShape::record_elements) * state + sum(|shape| shape.conv_channels) * input;
        Self {
            state: sum(StateShape::matrix_elements) * state + sum(StateShape::window_elements) * input,
            ring: drafts as u64 * per_draft,
        }
    }
}

/// Scratch of a step, an upper bound from the widths of the layers.
fn scratch_bytes<B: Backend>(
    model: &Decoder<B>,
    drafter: &DrafterShape,
    (config, drafts): (&EngineConfig, usize),
    elements: ElementTypes,
) -> u64 {
    let activation = elements.activation_bytes();
    let dims = &model.dims;
    let slots = config.max_num_seqs as u64;
    let tokens = config.max_num_batched_tokens as u64 + slots;
    let samples = sample_rows(config, drafts, dims.vocabulary) as u64;
    let widest = model.widest_row().max(drafter.widest_row) as u64;
    let hidden = dims.hidden as u64;
    let row = hidden * activation + dims.vocabulary as u64 * WORD;
    // Per token row the residual stream, its norm and three tensors of the widest layer; per logits row a state and the
    // logits.
    let step = tokens * (hidden * WORD + (hidden + 3 * widest) * activation) + samples * row;
    // A drafter has two logits rows and three tensors of its widest layer per slot; a head starts from up to three states
    // per token row.
    let drafting = if drafter.kv.is_empty() && drafter.states.is_empty() {
        0
    } else {
        slots * (2 * row + 3 * widest * activation) + tokens * 3 * hidden * activation
    };
    let messages = message_words(model, (config, drafts), samples as usize) as u64 * WORD;
    // Sums and means of the states of texts that become vectors.
    let pooled = 2 * slots * hidden * WORD;
    step + drafting + messages + pooled
}

/// Words of the rings between host and device, and of the running step's plan on the device.
fn message_words<B: Backend>(
    model: &Decoder<B>,
    (config, drafts): (&EngineConfig, usize),
    samples: usize,
) -> usize {
    let vocabulary = model.dims.vocabulary;
    let plan = PlanLimits {
        slots: config.max_num_seqs,
        tokens: config.max_num_batched_tokens,
        block_size: config.block_size,
        // A word or two per block, which is nothing next to the block.
        blocks: 0,
        masks: mask_rows(config, drafts, vocabulary),
        mask_words: vocabulary.div_ceil(32),
    };
    let record = RecordLimits {
        rows: config.max_num_seqs,
        samples,
        embedding_width: model.dims.hidden,
    };
    config.pipeline_depth * (plan.words() + record.words()) + plan.words()
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
                format!("of {} that may be used", Bytes(self.budget)),
            ),
        ];
        for (name, bytes, note) in rows {
            writeln!(f, "  {name:<10} {:>12}  {note}", Bytes(bytes).to_string())?;
        }
        let (slots, length, full) = (self.slots, self.max_model_len, self.full_length_requests());
        write!(
            f,
            "  {slots} requests at a time of up to {length} tokens; {full} of them at full length"
        )
    }
}
