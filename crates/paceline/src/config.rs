//! How an engine is set up.

use crate::{
    DeviceChoice, DraftWeights, PackedWeights, SpeculationConfig, SpeculationMethod, StartError, UsualLoad,
};
use paceline_models::WeightTypes;
use paceline_schedule::CacheFeed;
use paceline_types::DType;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Options of an engine. The defaults suit a machine that serves a few users.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Where it runs.
    pub device: DeviceChoice,
    /// Where a device keeps kernels that it had to compile, if anywhere.
    pub kernel_cache: Option<PathBuf>,
    /// Where a table with the times of a GPU's kernels goes; steps run kernel by kernel then, and slower.
    pub kernel_times: Option<PathBuf>,
    /// Threads that operations are spread over.
    pub threads: usize,
    /// Convert weight matrices to this type; `None` keeps them as stored. Q8_0 and Q4_1 quantise matrices that are stored in
    /// floating point: with either, embeddings and head become Q8_0, and routers, norms and what recurrences need stay.
    pub dtype: Option<DType>,
    /// Weights of the model that are packed for the CPU already: what is in the file is mapped.
    pub packed: Option<Arc<PackedWeights>>,
    /// What keys and values are stored as: F32, BF16, or on the CPU F16; `None` leaves it to the device.
    pub kv_cache_dtype: Option<DType>,
    /// Make weights up, the same in every run, instead of reading them: what a model of this configuration would cost.
    pub random_weights: bool,
    /// Steps in flight, 1 to 4.
    pub pipeline_depth: usize,
    /// Requests running at a time.
    pub max_num_seqs: usize,
    /// Tokens of a step: all running requests' next tokens, and prompt chunks in what is left.
    pub max_num_batched_tokens: usize,
    /// How far these two may be lowered where memory is short; `None`: not at all.
    pub lowest: Option<UsualLoad>,
    /// How long a step may take while requests in it wait for their next token: prompts get fewer tokens of it then.
    /// `None` for any length.
    pub max_step: Option<Duration>,
    /// Tokens of a block.
    pub block_size: usize,
    /// Blocks; `None` leaves it to `kv_cache_memory`.
    pub num_blocks: Option<usize>,
    /// Bytes of blocks; `None` leaves it to `memory_utilization`.
    pub kv_cache_memory: Option<u64>,
    /// How long nothing has to run before cached texts are forgotten and the memory of blocks and states goes back to the
    /// system; on the CPU. `None`: never.
    pub hand_back_after: Option<Duration>,
    /// Longest sequence; `None` takes the model's limit.
    pub max_model_len: Option<usize>,
    /// Share of the available memory that is used, as far as there is any use for it. `None` takes what requests of a
    /// useful length need, see [`MemoryPlan`](crate::MemoryPlan).
    pub memory_utilization: Option<f64>,
    /// Available memory in bytes; `None` asks the device.
    pub available_memory: Option<u64>,
    /// Keep and reuse what was computed for shared beginnings.
    pub prefix_caching: bool,
    /// Where changes of the prefix cache are told, for a router that is to know what is cached here.
    pub cache_feed: Option<CacheFeed>,
    /// Share of the memory left after weights and states that saved recurrent states may take.
    pub snapshot_share: f64,
    /// Tokens between two saved recurrent states; `max_num_batched_tokens` at least, so that steps can be full.
    pub snapshot_interval: usize,
    /// Requests that may wait.
    pub max_waiting: usize,
    /// Drafters, and the number of drafts.
    pub speculation: SpeculationConfig,
    /// Whether requests may have constraints; their masks take memory on the device.
    pub constraints: bool,
    /// Keep the times of every step for [`Handle::trace`](crate::Handle::trace).
    pub trace: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            device: DeviceChoice::default(),
            kernel_cache: None,
            kernel_times: None,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            dtype: None,
            packed: None,
            kv_cache_dtype: None,
            random_weights: false,
            pipeline_depth: 2,
            max_num_seqs: 16,
            max_num_batched_tokens: 512,
            lowest: None,
            max_step: Some(Duration::from_millis(50)),
            block_size: 16,
            num_blocks: None,
            kv_cache_memory: None,
            hand_back_after: Some(Duration::from_hours(1)),
            max_model_len: None,
            memory_utilization: None,
            available_memory: None,
            prefix_caching: true,
            cache_feed: None,
            snapshot_share: 0.1,
            snapshot_interval: 512,
            max_waiting: 1024,
            speculation: SpeculationConfig::default(),
            constraints: true,
            trace: false,
        }
    }
}

impl EngineConfig {
    /// What weights are converted to while they are loaded.
    pub(crate) fn weight_types(&self) -> WeightTypes {
        let SpeculationConfig {
            method,
            draft_weights,
            ..
        } = self.speculation;
        let neural = !matches!(method, SpeculationMethod::Off | SpeculationMethod::Ngram);
        WeightTypes {
            store_as: self.dtype,
            drafts_as: (neural && draft_weights == DraftWeights::Fp8).then_some(DType::F8E4M3),
        }
    }

    /// Asks for half as much at a time, as far as it may; false if it may not.
    pub(crate) fn lower(&mut self) -> bool {
        let Some(lowest) = self.lowest else { return false };
        let halved = |value: usize, lowest: usize| {
            if value > lowest {
                (value / 2).max(lowest)
            } else {
                value
            }
        };
        let before = (self.max_num_seqs, self.max_num_batched_tokens);
        self.max_num_seqs = halved(self.max_num_seqs, lowest.sequences);
        self.max_num_batched_tokens = halved(self.max_num_batched_tokens, lowest.tokens);
        before != (self.max_num_seqs, self.max_num_batched_tokens)
    }

    /// Checks every option against its bounds.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        let within = |option, value: usize, low: usize, high: usize| {
            if (low..=high).contains(&value) {
                return Ok(());
            }
            Err(StartError::Option {
                option,
                value: value.to_string(),
                bound: format!("within {low}..={high}"),
            })
        };
        if let Some(dtype) = self.dtype
            && dtype.is_quantised()
            && !matches!(dtype, DType::Q8_0 | DType::Q4_1)
        {
            return Err(StartError::Option {
                option: "dtype",
                value: dtype.to_string(),
                bound: "a floating-point type, Q8_0 or Q4_1".to_owned(),
            });
        }
        within("threads", self.threads, 1, 1024)?;
        within("pipeline-depth", self.pipeline_depth, 1, 4)?;
        within("max-num-seqs", self.max_num_seqs, 1, 4096)?;
        within("max-num-batched-tokens", self.max_num_batched_tokens, 1, 1 << 16)?;
        within("block-size", self.block_size, 1, 1024)?;
        within("max-waiting", self.max_waiting, 1, 1 << 20)?;
        within("snapshot-interval", self.snapshot_interval, 1, 1 << 24)?;
        let share = |option, value: f64| {
            if value > 0.0 && value <= 1.0 {
                return Ok(());
            }
            let bound = "above 0 and at most 1".to_owned();
            Err(StartError::Option {
                option,
                value: value.to_string(),
                bound,
            })
        };
        if self.cache_feed.is_some() && !self.prefix_caching {
            return Err(StartError::Option {
                option: "kv-events-config",
                value: "with events".to_owned(),
                bound: "without any where prefix caching is off: nothing would be told".to_owned(),
            });
        }
        if let Some(other) = self.kv_cache_dtype
            && !matches!(other, DType::F32 | DType::F16 | DType::BF16)
        {
            return Err(StartError::Option {
                option: "kv-cache-dtype",
                value: other.name().to_owned(),
                bound: "auto, float32, bfloat16 or float16".to_owned(),
            });
        }
        share("memory-utilization", self.memory_utilization.unwrap_or(1.0))?;
        share("snapshot-share", self.snapshot_share)
    }
}
