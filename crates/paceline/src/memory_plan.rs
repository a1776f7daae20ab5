//! What goes where: weights, pages, states, rings, snapshots, scratch.

use crate::{EngineConfig, StartError};
use paceline_device::{Backend, StateShape};
use paceline_models::Decoder;
use std::fmt;

/// Bytes of an element of pages, states and scratch on the CPU device.
const ELEMENT: u64 = 4;

/// The memory of an engine, planned before any of it is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Bytes that may be used in all.
    pub budget: u64,
    /// Weights as stored.
    pub weights: u64,
    /// Keys, values and token ids in pages.
    pub kv: u64,
    /// Recurrent states and convolution windows of all slots.
    pub states: u64,
    /// Records of drafts, and what drafts add to the windows.
    pub rings: u64,
    /// Saved recurrent states.
    pub snapshots: u64,
    /// Activations, logits and tables.
    pub scratch: u64,
    /// Pages.
    pub blocks: usize,
    /// Tokens of a page.
    pub block_size: usize,
    /// Pages of one request of full length.
    pub blocks_per_slot: usize,
    /// Requests running at a time.
    pub slots: usize,
    /// Saved recurrent states.
    pub snapshot_count: usize,
    /// Longest sequence.
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
        self.weights + self.kv + self.states + self.rings + self.snapshots + self.scratch
    }

    /// Plans the memory of a model, which may have been built from its configuration alone.
    pub fn new<B: Backend>(model: &Decoder<B>, config: &EngineConfig) -> Result<Self, StartError> {
        config.check()?;
        let available = config
            .available_memory
            .or_else(available_memory)
            .unwrap_or(8 << 30);
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
        let (state, ring, window) = state_bytes(model, config.max_drafts);
        let mut plan = Self {
            budget,
            weights: model.stats.bytes(),
            kv: 0,
            states: state * config.max_num_seqs as u64,
            rings: ring * config.max_num_seqs as u64,
            snapshots: 0,
            scratch: scratch_bytes(model, config),
            blocks: 0,
            block_size: config.block_size,
            blocks_per_slot,
            slots: config.max_num_seqs,
            snapshot_count: 0,
            max_model_len,
            state_per_request: state,
            ring_per_request: ring,
        };
        plan.share_out(model, config, window)?;
        Ok(plan)
    }

    /// Gives what is left to snapshots and pages.
    fn share_out<B: Backend>(
        &mut self,
        model: &Decoder<B>,
        config: &EngineConfig,
        snapshot: u64,
    ) -> Result<(), StartError> {
        let block = block_bytes(model, config.block_size);
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
            .unwrap_or_else(|| ((left / block.max(1)) as usize).min(useful));
        self.kv = self.blocks as u64 * block;
        if self.blocks < self.blocks_per_slot && config.num_blocks.is_none() || self.total() > self.budget {
            return Err(StartError::Memory(self.shortage(block)));
        }
        if self.blocks < self.blocks_per_slot {
            let (blocks, needed) = (self.blocks, self.blocks_per_slot);
            return Err(StartError::Memory(format!(
                "{blocks} pages of {} tokens cannot hold one request of {} tokens, which takes {needed}; raise \
                 --num-blocks or lower --max-model-len",
                self.block_size, self.max_model_len
            )));
        }
        Ok(())
    }

    fn shortage(&self, block: u64) -> String {
        let one = self.blocks_per_slot as u64 * block;
        format!(
            "{} may be used; weights take {}, states {}, scratch {}, and the pages of one request of {} tokens {}: \
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

/// Bytes of a page of all layers, token ids and the draft head's layers included.
fn block_bytes<B: Backend>(model: &Decoder<B>, block_size: usize) -> u64 {
    let mut shapes = model.kv_shapes(1, block_size);
    shapes.extend(
        model
            .draft_head()
            .into_iter()
            .flat_map(|head| head.kv_shapes(1, block_size)),
    );
    let elements: usize = shapes
        .iter()
        .map(|shape| 2 * shape.heads * shape.head_dim * block_size)
        .sum();
    elements as u64 * ELEMENT + 4 * block_size as u64
}

/// Of all recurrent layers, per request: the state with its windows, what drafts add, and one snapshot.
fn state_bytes<B: Backend>(model: &Decoder<B>, drafts: usize) -> (u64, u64, u64) {
    let sum = |elements: fn(&StateShape) -> usize| {
        model.state_shapes(1).iter().map(elements).sum::<usize>() as u64 * ELEMENT
    };
    let state = sum(|shape| shape.matrix_elements() + shape.window_elements());
    let per_draft = sum(|shape| shape.record_elements() + shape.conv_channels);
    (state, drafts as u64 * per_draft, state)
}

/// Scratch of a step, an upper bound from the widths of the layers.
fn scratch_bytes<B: Backend>(model: &Decoder<B>, config: &EngineConfig) -> u64 {
    let dims = &model.dims;
    let tokens = config.max_num_batched_tokens.max(config.max_num_seqs) as u64;
    let samples = sample_rows(config, dims.vocabulary) as u64;
    let widest = model.widest_row() as u64;
    // The residual stream, its norm, two tensors of the widest layer and their products, and the logits.
    tokens * (2 * dims.hidden as u64 + 3 * widest) * ELEMENT
        + samples * (dims.hidden + dims.vocabulary) as u64 * ELEMENT
}

/// Rows of logits a step may have: one verify window per request, and more for prompt log-probabilities as long as
/// the logits stay below 64 MiB.
pub(crate) fn sample_rows(config: &EngineConfig, vocabulary: usize) -> usize {
    let windows = config.max_num_seqs * (1 + config.max_drafts);
    let affordable = (64 << 20) / (ELEMENT as usize * vocabulary.max(1));
    windows.max(affordable.min(config.max_num_batched_tokens))
}

/// `MemAvailable` of the system, where it can be read.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
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
                "KV pages",
                self.kv,
                format!("{} × {} tokens", self.blocks, self.block_size),
            ),
            (
                "states",
                self.states,
                format!("{} × {}", self.slots, Bytes(self.state_per_request)),
            ),
            (
                "rings",
                self.rings,
                format!("{} × {}", self.slots, Bytes(self.ring_per_request)),
            ),
            ("snapshots", self.snapshots, format!("{}", self.snapshot_count)),
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
