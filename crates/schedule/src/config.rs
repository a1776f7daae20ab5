//! The bounds a scheduler works within.

use paceline_types::MAX_DRAFTS;

/// Bounds and sizes; all of them are fixed at start.
#[derive(Clone, Debug)]
pub struct SchedulerConfig {
    /// Requests that can run at once.
    pub slots: usize,
    /// Most tokens a step runs.
    pub max_batched_tokens: usize,
    /// How long a step may take, in nanoseconds, if requests in it wait for their next token: prompts get fewer
    /// tokens then. `None` for any length.
    pub max_step_ns: Option<u64>,
    /// Most positions a step samples.
    pub max_samples: usize,
    /// Most masks of constrained requests that a step has room for: one more than drafts for each of its plan rows.
    /// Those that do not fit wait for the next step.
    pub max_masks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Blocks of the whole cache, shared by all requests.
    pub num_blocks: usize,
    /// Most blocks one request can hold (the width of the device's table).
    pub blocks_per_request: usize,
    /// Most requests that wait for a slot.
    pub max_waiting: usize,
    /// Most drafts a plan row verifies.
    pub drafts: usize,
    /// For models with recurrent state.
    pub recurrent: Option<RecurrentConfig>,
    /// Whether requests share cached prefixes. Without it only the members of a group do.
    pub prefix_caching: bool,
}

/// How recurrent states are saved.
#[derive(Clone, Copy, Debug)]
pub struct RecurrentConfig {
    /// Places for saved states.
    pub snapshots: usize,
    /// Number of tokens between saved states, each of which is saved at the last position at or before that is a multiple
    /// of both the block size and [`paceline_types::STATE_GRID`]. A prefill row stops short of a second point to save
    /// at, so this is also close to the longest useful plan row.
    pub interval: usize,
}

/// A bound that cannot be worked with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}, but it must be {bound}")]
pub struct InvalidConfig {
    /// The field.
    pub field: &'static str,
    /// Its value.
    pub value: usize,
    /// What it must be.
    pub bound: String,
}

impl SchedulerConfig {
    /// Checks each field.
    pub fn check(&self) -> Result<(), InvalidConfig> {
        let positive = [
            ("slots", self.slots),
            ("max_batched_tokens", self.max_batched_tokens),
            ("max_samples", self.max_samples),
            ("block_size", self.block_size),
            ("num_blocks", self.num_blocks),
            ("blocks_per_request", self.blocks_per_request),
            ("max_waiting", self.max_waiting),
        ];
        for (field, value) in positive {
            if value == 0 {
                return Err(InvalidConfig {
                    field,
                    value,
                    bound: "at least 1".into(),
                });
            }
        }
        if self.drafts > MAX_DRAFTS {
            return Err(InvalidConfig {
                field: "drafts",
                value: self.drafts,
                bound: format!("at most {MAX_DRAFTS}"),
            });
        }
        match self.recurrent {
            Some(recurrent) if recurrent.interval == 0 => Err(InvalidConfig {
                field: "interval",
                value: recurrent.interval,
                bound: "at least 1".to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Requests that can run at once and still each get a token and a sample in every step.
    pub(crate) fn running_limit(&self) -> usize {
        self.slots.min(self.max_batched_tokens).min(self.max_samples)
    }
}
