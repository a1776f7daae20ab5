//! The flags of the commands about models of the hub.

use clap::Args;

const PULL: &str = "\
Examples:
  paceline pull org/name
  paceline pull org/name:Q4_K_M
  paceline pull https://huggingface.co/org/name/blob/main/model-Q8_0.gguf

A download that broke off goes on where it was. What arrives is compared with the size and the SHA-256
that the hub states. Models go to $HF_HOME/hub, as those of other programs do; $HF_TOKEN opens
private ones, and $HF_ENDPOINT is another hub.";

/// Get models of the hub without running them.
///
/// stdout gets the path of each.
#[derive(Debug, Args)]
#[command(after_help = PULL)]
pub(crate) struct PullFlags {
    /// Models: `org/name`, `org/name@revision`, `org/name:Q4_K_M`, `org/name:FILE.gguf`, `hf.co/...`, or an address there.
    #[arg(required = true, value_name = "MODEL")]
    pub(crate) models: Vec<String>,
}

const LIST: &str = "\
Examples:
  paceline list
  paceline list --json";

/// List the models on this machine: size, kind, last use.
#[derive(Debug, Args)]
#[command(after_help = LIST)]
pub(crate) struct ListFlags {
    /// Print one JSON object per model.
    #[arg(long)]
    pub(crate) json: bool,
}

const RM: &str = "\
Examples:
  paceline rm org/name:Q4_K_M
  paceline rm org/name";

/// Remove models of the hub from this machine.
///
/// `org/name` is all there is of it, `org/name:Q4_K_M` one file. Other programs that use the hub's cache lose the
/// model too.
#[derive(Debug, Args)]
#[command(after_help = RM)]
pub(crate) struct RmFlags {
    /// Models, by the names that `paceline list` shows.
    #[arg(required = true, value_name = "MODEL")]
    pub(crate) models: Vec<String>,
}
