//! The CUDA driver: looked for where the loader would, without loading it.

use crate::env;
use crate::format::Facts;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

const LIBRARY: &str = "libcuda.so.1";
const VERSION_FILE: &str = "/proc/driver/nvidia/version";
const FOLDERS: [&str; 7] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/cuda/lib64",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
];
const THIS_BUILD: &str = "this build computes on the CPU; the CUDA backend is not part of it yet";

/// What there is of CUDA.
#[derive(Serialize)]
pub(super) struct Cuda {
    library: Option<PathBuf>,
    driver_version: Option<String>,
    /// Why CUDA could not be used.
    missing: Option<String>,
    backend: &'static str,
}

impl Cuda {
    pub(super) fn look() -> Self {
        let folders = env::library_folders().into_iter();
        let folders: Vec<_> = folders.chain(FOLDERS.map(PathBuf::from)).collect();
        Self::look_in(&folders, Path::new(VERSION_FILE))
    }

    fn look_in(folders: &[PathBuf], version_file: &Path) -> Self {
        let library = folders
            .iter()
            .map(|folder| folder.join(LIBRARY))
            .find(|path| path.exists());
        let driver_version = fs::read_to_string(version_file)
            .ok()
            .and_then(|text| driver_version(&text));
        let missing = match (&library, &driver_version) {
            (Some(_), Some(_)) => None,
            (None, None) => Some(format!(
                "no {LIBRARY} in the loader's folders and no {VERSION_FILE}: no NVIDIA driver is installed, or this \
                 container was not given the GPU"
            )),
            (None, Some(_)) => Some(format!(
                "the kernel module is loaded, but there is no {LIBRARY}; install the driver's user-space libraries or \
                 add their folder to LD_LIBRARY_PATH"
            )),
            (Some(_), None) => Some(format!(
                "{LIBRARY} is there, but no {VERSION_FILE}: the kernel module is not loaded"
            )),
        };
        Self {
            library,
            driver_version,
            missing,
            backend: THIS_BUILD,
        }
    }

    pub(super) fn describe(&self, facts: &mut Facts) {
        let found = match (&self.library, &self.driver_version, &self.missing) {
            (Some(library), Some(version), None) => {
                format!("driver {version} found ({})", library.display())
            }
            (.., missing) => format!("not found: {}", missing.as_deref().unwrap_or("unknown")),
        };
        facts.add_all("CUDA", [found, self.backend.to_owned()]);
    }
}

/// The version in the module's own words: the first word made of numbers and dots.
fn driver_version(text: &str) -> Option<String> {
    let is_version =
        |word: &&str| word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok());
    text.lines()
        .next()?
        .split_whitespace()
        .find(is_version)
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_found_in_the_modules_words() {
        let text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 1 00:00:00 UTC 2026\nGCC 12.3.0";
        assert_eq!(driver_version(text).as_deref(), Some("570.86.15"));
        assert_eq!(driver_version("nothing here"), None);
    }

    #[test]
    fn each_way_of_missing_is_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let (library, version) = (folder.path().join(LIBRARY), folder.path().join("version"));
        let look = || {
            Cuda::look_in(&[folder.path().to_owned()], &version)
                .missing
                .unwrap_or_default()
        };
        assert!(look().contains("no NVIDIA driver"));
        fs::write(&library, "").unwrap();
        assert!(look().contains("kernel module is not loaded"));
        fs::write(&version, "NVRM version: Module 1.2.3").unwrap();
        assert_eq!(look(), "");
        fs::remove_file(&library).unwrap();
        assert!(look().contains("user-space"));
    }
}
