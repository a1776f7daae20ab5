//! The flags of every command that runs a model.

use super::numbers::{self, ByteSize, counted, parsed};
use super::speculation::SpeculationFlags;
use crate::engine::EngineOptions;
use crate::model::{EMBEDDED, ModelSource};
use clap::{Args, ValueEnum};
use paceline::{DeviceChoice, EngineConfig};
use paceline_types::DType;
use std::time::Duration;

// Plain comments on these two: a doc comment would replace the description of the command that takes them in.

// Which model, and how it is put on this machine.
#[derive(Debug, Args)]
pub(crate) struct ModelFlags {
    /// Folder, GGUF file, or a model of the hub: `org/name`, `org/name:Q4_K_M`, `org/name:FILE.gguf`, `hf.co/org/name`, or its
    /// address there [default: the built-in model].
    #[arg(short, long, value_name = "MODEL", help_heading = "Model")]
    model: Option<String>,
    /// Branch, tag or commit of a model of the hub, as in `org/name@REVISION`.
    #[arg(long, value_name = "REVISION", help_heading = "Model")]
    revision: Option<String>,
    #[command(flatten)]
    weights: WeightFlags,
    /// Where weights come from: `auto` reads them, `dummy` makes them up for the model's config.json, to measure with.
    #[arg(long, value_name = "FORMAT", default_value = "auto", help_heading = "Model")]
    load_format: LoadFormat,
    /// Device to run on: auto, the best there is, cpu, or cuda:N [default: $PACELINE_DEVICE, or auto].
    #[arg(long, value_name = "DEVICE", help_heading = "Model")]
    device: Option<DeviceChoice>,
    /// Threads to compute on, on the CPU [default: the cores this process may use].
    #[arg(long, value_name = "N", value_parser = parsed(numbers::threads), help_heading = "Model")]
    threads: Option<usize>,
}

// The types that weights are kept in.
#[derive(Debug, Args)]
pub(crate) struct WeightFlags {
    /// Element type to compute with: `auto` keeps what is stored, the others convert the matrices.
    #[arg(long, value_name = "TYPE", default_value = "auto", help_heading = "Model")]
    dtype: DTypeFlag,
    /// Quantise floating-point matrices while they are loaded: to eight bits, or to four with embeddings and head in eight.
    #[arg(long, value_name = "BITS", conflicts_with = "dtype", help_heading = "Model")]
    quantize: Option<QuantizeFlag>,
}

impl WeightFlags {
    /// The type that matrices are converted to, if any.
    pub(crate) fn dtype(&self) -> Option<DType> {
        match self.quantize {
            Some(QuantizeFlag::Q8) => Some(DType::Q8_0),
            Some(QuantizeFlag::Q4) => Some(DType::Q4_1),
            None => self.dtype.dtype(),
        }
    }
}

/// Choices of `--load-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LoadFormat {
    Auto,
    Dummy,
}

/// Choices of `--dtype`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum DTypeFlag {
    Auto,
    #[value(alias = "float32", alias = "float")]
    F32,
    #[value(alias = "bfloat16")]
    Bf16,
}

impl DTypeFlag {
    /// The type to convert to, if it is not kept.
    pub(super) fn dtype(self) -> Option<DType> {
        match self {
            Self::Auto => None,
            Self::F32 => Some(DType::F32),
            Self::Bf16 => Some(DType::BF16),
        }
    }
}

/// Choices of `--quantize`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum QuantizeFlag {
    Q8,
    Q4,
}

/// Choices of `--kv-cache-dtype`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum KvTypeFlag {
    Auto,
    #[value(alias = "f32", alias = "float")]
    Float32,
    #[value(alias = "bf16")]
    Bfloat16,
    #[value(alias = "f16", alias = "fp16", alias = "half")]
    Float16,
}

impl KvTypeFlag {
    /// The type to store, if it is not left to the device.
    pub(super) fn dtype(self) -> Option<DType> {
        match self {
            Self::Auto => None,
            Self::Float32 => Some(DType::F32),
            Self::Bfloat16 => Some(DType::BF16),
            Self::Float16 => Some(DType::F16),
        }
    }
}

// How the engine batches and what it may take.
#[derive(Debug, Args)]
pub(crate) struct EngineFlags {
    /// Requests that run at a time [default: 16 on a CPU, 256 on a GPU; fewer if fewer are asked for or fit].
    #[arg(long, value_name = "N", value_parser = parsed(numbers::max_num_seqs), help_heading = "Engine")]
    max_num_seqs: Option<usize>,
    /// Tokens of a step: the next token of every running request, and prompts in what is left [default: 512 on a
    /// CPU, 8192 on a GPU; fewer if fewer are asked for or fit].
    #[arg(long, value_name = "N", value_parser = counted(numbers::max_num_batched_tokens), help_heading = "Engine")]
    max_num_batched_tokens: Option<usize>,
    /// Milliseconds that a step may take while streams wait for it: prompts get fewer tokens then; 0 for any
    /// length [default: 50].
    #[arg(long, value_name = "MS", help_heading = "Engine")]
    max_step_ms: Option<u32>,
    /// Longest sequence, prompt included [default: what is asked for, up to the model's limit].
    #[arg(long, value_name = "N", value_parser = counted(numbers::max_model_len), help_heading = "Engine")]
    max_model_len: Option<usize>,
    /// Tokens of a block of the cache [default: 16].
    #[arg(long, value_name = "N", value_parser = parsed(numbers::block_size), help_heading = "Engine")]
    block_size: Option<usize>,
    /// Blocks of the cache [default: enough for --max-num-seqs requests of 4096 tokens, within a quarter of the memory].
    #[arg(long, value_name = "N", value_parser = parsed(numbers::at_least_one), help_heading = "Engine")]
    num_blocks: Option<usize>,
    /// Bytes of the cache, such as 2G, in place of a number of blocks.
    #[arg(
        long,
        alias = "kv-cache-memory-bytes",
        value_name = "SIZE",
        conflicts_with = "num_blocks",
        help_heading = "Engine"
    )]
    kv_cache_memory: Option<ByteSize>,
    /// Minutes without any request after which cached prefixes are forgotten and the memory of blocks and states goes back to
    /// the system, on the CPU; 0 for never [default: 60].
    #[arg(long, value_name = "MINUTES", help_heading = "Engine")]
    hand_back_after: Option<u32>,
    /// Element type of keys and values in the cache: half width takes half of the memory and rounds what is stored. `auto` is
    /// float32 on the CPU, and on a GPU what the model computes with.
    #[arg(long, value_name = "TYPE", default_value = "auto", help_heading = "Engine")]
    kv_cache_dtype: KvTypeFlag,
    /// Share of the memory to use, as far as there is use for it: on a GPU of all that it has [default: 0.9], on the CPU of
    /// what is available; without it, up to 0.8 may be used there, and the cache has the size that is said above.
    #[arg(long, alias = "gpu-memory-utilization", value_name = "SHARE", value_parser = parsed(numbers::share), help_heading = "Engine")]
    memory_utilization: Option<f64>,
    /// Compute shared beginnings of prompts again instead of keeping them.
    #[arg(long, alias = "no-enable-prefix-caching", help_heading = "Engine")]
    no_prefix_caching: bool,
    #[command(flatten)]
    pub(super) speculation: SpeculationFlags,
}

impl ModelFlags {
    /// Whether --model was given.
    pub(super) fn is_named(&self) -> bool {
        self.model.is_some()
    }

    /// The model as it was typed, as an argument of the command or else with --model.
    pub(crate) fn name(&self, argument: Option<String>) -> Option<String> {
        let name = argument.or_else(|| self.model.clone());
        let Some(revision) = &self.revision else {
            return name;
        };
        let name = name.unwrap_or_else(|| EMBEDDED.to_owned());
        // Behind the repository, before the quantisation or file.
        let slash = name.rfind('/').unwrap_or(0);
        let end = name[slash..].find(':').map_or(name.len(), |colon| slash + colon);
        Some(format!("{}@{revision}{}", &name[..end], &name[end..]))
    }

    /// Where the model comes from.
    pub(crate) fn source(&self) -> ModelSource {
        match self.name(None) {
            Some(name) if self.dummy() => ModelSource::Shape(name),
            name => ModelSource::new(name),
        }
    }

    /// What the flags say of the engine.
    pub(crate) fn config(&self) -> EngineConfig {
        let default = EngineConfig::default();
        EngineConfig {
            threads: self.threads.unwrap_or(default.threads),
            dtype: self.weights.dtype(),
            random_weights: self.dummy(),
            ..default
        }
    }

    /// `--device`, if it is given.
    pub(crate) fn device(&self) -> Option<DeviceChoice> {
        self.device
    }

    /// Whether weights are made up.
    fn dummy(&self) -> bool {
        self.load_format == LoadFormat::Dummy
    }
}

impl EngineFlags {
    /// What the flags say of the engine; what they leave open keeps its default.
    pub(crate) fn options(&self, model: &ModelFlags) -> EngineOptions {
        let default = model.config();
        let speculation = self.speculation.options();
        EngineOptions {
            device: model.device,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            config: EngineConfig {
                hand_back_after: match self.hand_back_after {
                    None => default.hand_back_after,
                    Some(0) => None,
                    Some(minutes) => Some(Duration::from_mins(minutes.into())),
                },
                kv_cache_dtype: self.kv_cache_dtype.dtype(),
                max_step: match self.max_step_ms {
                    None => default.max_step,
                    Some(0) => None,
                    Some(ms) => Some(Duration::from_millis(ms.into())),
                },
                block_size: self.block_size.unwrap_or(default.block_size),
                num_blocks: self.num_blocks,
                kv_cache_memory: self.kv_cache_memory.map(|ByteSize(bytes)| bytes),
                max_model_len: self.max_model_len,
                memory_utilization: self.memory_utilization,
                prefix_caching: !self.no_prefix_caching,
                speculation: speculation.config,
                ..default
            },
            draft_model: speculation.draft_model,
            warnings: speculation.warnings,
        }
    }
}
