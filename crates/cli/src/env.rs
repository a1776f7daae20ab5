//! The environment variables this program reads, all of them.
//!
//! | variable | meaning |
//! |---|---|
//! | `PACELINE_LOG` | level of the log on stderr where `--log` is not given |
//! | `PACELINE_DEVICE` | the device to run on where `--device` is not given |
//! | `PACELINE_API_KEY` | a key that requests to `serve` may carry, besides those of its flags; what `bench serve` and `chat` send where `--api-key` is not given |
//! | `VLLM_API_KEY` | a key that requests to `serve` may carry, for users that come from vLLM |
//! | `NO_COLOR`, `TERM` | `chat` prints without colours if the first is set or the second is `dumb` |
//! | `XDG_STATE_HOME`, `HOME` | where `chat` keeps what was typed |
//! | `XDG_CACHE_HOME`, `HOME` | where `pack` writes to and packed weights are looked for, and where kernels that had to be compiled are kept |
//! | `PACELINE_TEST_FAULT` | the engine fails with a step, such as `panic:7`; in builds with debug assertions alone |
//! | `LD_LIBRARY_PATH` | looked through by `doctor` for the CUDA driver, as the loader would |
//! | `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY` | proxies of downloads from the hub; servers are asked without one |
//! | `OTEL_*` | where `serve` sends spans of requests, and which: `commands/serve/traces.rs` |
//! | `HF_*` | the hub's, see [`HubConfig::from_env`](paceline_weights::hub::HubConfig::from_env) |

use crate::flags::LogLevel;
use anyhow::{Result, anyhow};
use clap::ValueEnum;
use paceline::DeviceChoice;
use std::path::PathBuf;

/// The level in `PACELINE_LOG`, if it is set.
pub(crate) fn log_level() -> Result<Option<LogLevel>> {
    let Some(value) = std::env::var_os("PACELINE_LOG").filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let value = value.to_string_lossy();
    LogLevel::from_str(&value, true)
        .map(Some)
        .map_err(|_| anyhow!("PACELINE_LOG is `{value}`; it must be off, error, warn, info, debug or trace"))
}

/// The device in `PACELINE_DEVICE`, if it is set.
pub(crate) fn device() -> Result<Option<DeviceChoice>> {
    let value = text("PACELINE_DEVICE")?.filter(|value| !value.is_empty());
    let device = value.map(|value| value.parse());
    device
        .transpose()
        .map_err(|error: String| anyhow!("PACELINE_DEVICE: {error}"))
}

const API_KEY: &str = "PACELINE_API_KEY";

/// The key that a client sends, if the environment has one.
pub(crate) fn api_key() -> Result<Option<String>> {
    Ok(text(API_KEY)?.filter(|key| !key.is_empty()))
}

/// The keys that open a server, each with the name of its variable. One that is set and empty is there: whoever wanted a
/// key and lost it on the way must hear of it.
pub(crate) fn server_keys() -> Result<Vec<(&'static str, String)>> {
    let mut keys = Vec::new();
    for name in [API_KEY, "VLLM_API_KEY"] {
        keys.extend(text(name)?.map(|key| (name, key)));
    }
    Ok(keys)
}

/// The text of a variable, if it is set.
pub(crate) fn text(name: &str) -> Result<Option<String>> {
    let value = std::env::var_os(name).map(std::ffi::OsString::into_string);
    value.transpose().map_err(|_| anyhow!("{name} is not UTF-8"))
}

/// Whether the user wants colours, as far as the environment tells.
pub(crate) fn colours() -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    set("NO_COLOR").is_none() && set("TERM").is_none_or(|terminal| terminal != "dumb")
}

/// The folder for what lasts between runs and is of no use to other programs.
pub(crate) fn state_folder() -> Option<PathBuf> {
    own_folder("XDG_STATE_HOME", ".local/state")
}

/// Where a table with the times of a device's kernels goes, if it is wanted.
pub(crate) fn kernel_times() -> Option<PathBuf> {
    std::env::var_os("PACELINE_KERNEL_TIMES").map(PathBuf::from)
}

/// The folder for kernels that had to be compiled for a device.
pub(crate) fn kernel_cache() -> Option<PathBuf> {
    own_folder("XDG_CACHE_HOME", ".cache").map(|cache| cache.join("kernels"))
}

/// The folder for packed weights.
pub(crate) fn packed_folder() -> Option<PathBuf> {
    own_folder("XDG_CACHE_HOME", ".cache").map(|cache| cache.join("packed"))
}

/// Our folder in the one that a variable names, or else in this one of the user's.
fn own_folder(variable: &str, usual: &str) -> Option<PathBuf> {
    let folder = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let place = folder(variable).or_else(|| folder("HOME").map(|home| home.join(usual)));
    place.map(|place| place.join("paceline"))
}

/// The folders of `LD_LIBRARY_PATH`.
pub(crate) fn library_folders() -> Vec<PathBuf> {
    std::env::var_os("LD_LIBRARY_PATH")
        .map(|value| std::env::split_paths(&value).collect())
        .unwrap_or_default()
}

/// How and with which step the engine is to fail, by `PACELINE_TEST_FAULT`.
#[cfg(debug_assertions)]
pub(crate) fn fault() -> Result<Option<(paceline::faults::Fault, u64)>> {
    let Some(value) = std::env::var_os("PACELINE_TEST_FAULT").filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let value = value.to_string_lossy();
    let parts = value.split_once(':').and_then(|(name, step)| {
        let (fault, _) = paceline::faults::Fault::ALL
            .iter()
            .find(|(_, known)| *known == name)?;
        Some((*fault, step.parse().ok()?))
    });
    let wrong =
        || anyhow!("PACELINE_TEST_FAULT is `{value}`; it must be a fault and a step, such as panic:7");
    parts.map(Some).ok_or_else(wrong)
}
