//! The flags of the commands around generation.

use super::engine::WeightFlags;
use super::numbers::{self, ByteSize, parsed};
use super::speculation::{DraftTokens, MethodFlag};
use clap::Args;
use clap_complete::Shell;
use paceline::DeviceChoice;
use std::path::PathBuf;

const INSPECT: &str = "\
Examples:
  paceline inspect
  paceline inspect path/to/model.gguf
  paceline inspect path/to/config.json --json
  paceline inspect path/to/config.json --memory 64G --draft-tokens 3";

/// Describe a model without loading it: sizes, layers, memory.
///
/// Memory is told per token and per request. A folder without weights or a lone config.json will do.
#[derive(Debug, Args)]
#[command(after_help = INSPECT)]
pub(crate) struct InspectFlags {
    /// Folder, config.json, GGUF file, or hub id [default: the built-in model].
    pub(crate) model: Option<String>,
    /// Print one JSON object with exact numbers.
    #[arg(long)]
    pub(crate) json: bool,
    /// Device whose memory is meant: auto, cpu or cuda:N [default: $PACELINE_DEVICE, or auto].
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<DeviceChoice>,
    /// Plan an engine's memory, within SIZE (such as 64G) [default: what the device has available].
    #[arg(long, value_name = "SIZE", num_args = 0..=1, help_heading = "Memory")]
    #[expect(clippy::option_option, reason = "the flag may be given without a size")]
    pub(crate) memory: Option<Option<ByteSize>>,
    /// Requests that run at a time [default: 16 on a CPU, 256 on a GPU].
    #[arg(long, value_name = "N", requires = "memory", value_parser = parsed(numbers::max_num_seqs), help_heading = "Memory")]
    pub(crate) max_num_seqs: Option<usize>,
    /// Longest sequence [default: the model's limit].
    #[arg(long, value_name = "N", requires = "memory", value_parser = parsed(numbers::max_model_len), help_heading = "Memory")]
    pub(crate) max_model_len: Option<usize>,
    /// Drafter, of those that the model itself offers: auto, off, ngram, mtp or chain [default: auto].
    #[arg(
        long,
        value_name = "METHOD",
        requires = "memory",
        hide_possible_values = true,
        help_heading = "Memory"
    )]
    pub(crate) speculation: Option<MethodFlag>,
    /// Most drafts per request and step, 0 to 15; auto leaves it to the engine [default: auto].
    #[arg(long, value_name = "K|auto", requires = "memory", help_heading = "Memory")]
    pub(crate) draft_tokens: Option<DraftTokens>,
}

const PACK: &str = "\
Examples:
  paceline pack path/to/model.gguf
  paceline pack path/to/folder --quantize q4 --output path/to/folder/paceline.pack

Commands that load the model on the CPU look for FILE.gguf.pack beside a GGUF file, for paceline.pack in
a folder, and then in the cache, where this writes to unless it is told otherwise. A file that was made
of other files, in another type or by another version is not used, and they say so.";

/// Pack a model's weights once, so that later starts map them.
///
/// The file is for the CPU. stdout gets the path of the file.
#[derive(Debug, Args)]
#[command(after_help = PACK)]
pub(crate) struct PackFlags {
    /// Folder, GGUF file, or hub id.
    pub(crate) model: String,
    /// File to write [default: in $XDG_CACHE_HOME/paceline/packed].
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) weights: WeightFlags,
    /// Threads to pack with [default: the cores this process may use].
    #[arg(long, value_name = "N", value_parser = parsed(numbers::threads))]
    pub(crate) threads: Option<usize>,
}

const DOCTOR: &str = "\
Examples:
  paceline doctor
  paceline doctor --json";

/// Report what this machine offers: processor, memory, GPU, caches.
#[derive(Debug, Args)]
#[command(after_help = DOCTOR)]
pub(crate) struct DoctorFlags {
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

const SELFTEST: &str = "\
Examples:
  paceline selftest
  paceline selftest --device cuda:0 --mixes 2000
  paceline selftest --device cuda:0 --only attention --seed 7";

/// Judge a device: every operation, then whole models.
///
/// Operations are compared with those of the CPU and with themselves, on random inputs. Integers, copies, f32
/// products and choices of tokens must be the CPU's to the last bit; for everything else a tolerance is stated. Token rows alone, together and cut into other steps must give equal bits. Reference models
/// must give what they gave their reference, and requests in random mixes what each gives alone. The exit code is 1 if
/// anything was missed.
#[derive(Debug, Args)]
#[command(after_help = SELFTEST)]
pub(crate) struct SelftestFlags {
    /// Device: auto, cpu or cuda:N [default: $PACELINE_DEVICE, or auto].
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<DeviceChoice>,
    /// Folder with the reference models of the repository [default: fixtures, where there is one; else only operations
    /// are judged].
    #[arg(long, value_name = "DIR")]
    pub(crate) fixtures: Option<PathBuf>,
    /// Random mixes of requests.
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub(crate) mixes: usize,
    /// Judge only what has NAME in its name.
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Option<String>,
    /// Names the random inputs [default: another one every time].
    #[arg(long, value_name = "S")]
    pub(crate) seed: Option<u64>,
    /// Judge the device as it works in another way, such as `without wgmma`.
    #[arg(long, value_name = "WAY", hide = true)]
    pub(crate) way: Option<String>,
    /// Try shapes of large models with few tokens alone, as on a CPU: for devices that are no faster.
    #[arg(long, hide = true)]
    pub(crate) short: bool,
    /// Of operations, try only cases that have TEXT in their name.
    #[arg(long, value_name = "TEXT", hide = true)]
    pub(crate) case: Option<String>,
}

const COMPLETIONS: &str = "\
Examples:
  paceline completions bash > ~/.local/share/bash-completion/completions/paceline
  paceline completions zsh > ~/.zfunc/_paceline
  paceline completions fish > ~/.config/fish/completions/paceline.fish";

/// Print a completion script for a shell.
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS)]
pub(crate) struct CompletionsFlags {
    /// Shell to complete in.
    pub(crate) shell: Shell,
}

const MAN: &str = "\
Examples:
  paceline man ~/.local/share/man/man1";

/// Write manual pages, one per command.
#[derive(Debug, Args)]
#[command(after_help = MAN)]
pub(crate) struct ManFlags {
    /// Folder to write them to.
    pub(crate) folder: PathBuf,
}
