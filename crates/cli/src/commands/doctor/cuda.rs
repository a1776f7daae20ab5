//! The CUDA driver: what it lists, and what is missing where it lists nothing.

use crate::env;
use crate::format::{self, Facts};
use paceline::{CudaFound, Gpu};
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
/// CUDA that the embedded kernels need of the driver: 13.0, which is driver 580.
const NEEDED: u32 = 13_000;

/// What there is of CUDA.
#[derive(Serialize)]
pub(super) struct Cuda {
    library: Option<PathBuf>,
    driver_version: Option<String>,
    /// Why CUDA could not be used.
    missing: Option<String>,
    /// What the driver lists, in words.
    gpus: Vec<String>,
}

impl Cuda {
    pub(super) fn look() -> Self {
        let folders = env::library_folders().into_iter();
        let folders: Vec<_> = folders.chain(FOLDERS.map(PathBuf::from)).collect();
        Self::look_in(&folders, Path::new(VERSION_FILE)).ask(paceline::probe_cuda())
    }

    /// Adds what the driver itself says, which counts for more than the files that were found.
    fn ask(mut self, found: CudaFound) -> Self {
        match found {
            CudaFound::NoDriver => {}
            CudaFound::Unusable(why) => self.missing = Some(format!("the driver cannot be used: {why}")),
            CudaFound::Driver { version, gpus } => {
                self.missing = match (version, gpus.is_empty()) {
                    (version, false) if version < NEEDED => Some(format!(
                        "the driver supports CUDA {}, and the kernels need {}: install driver 580 or later",
                        release(version),
                        release(NEEDED)
                    )),
                    (_, true) => Some(
                        "the driver lists no GPU: there is none, or CUDA_VISIBLE_DEVICES hides it".to_owned(),
                    ),
                    _ => None,
                };
                self.gpus = gpus.iter().map(describe).collect();
            }
        }
        self
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
            gpus: Vec::new(),
        }
    }

    pub(super) fn describe(&self, facts: &mut Facts) {
        let found = match (&self.missing, &self.driver_version) {
            (Some(missing), _) => format!("not usable: {missing}"),
            (None, Some(version)) => format!("driver {version}"),
            (None, None) => "driver found".to_owned(),
        };
        facts.add_all("CUDA", std::iter::once(found).chain(self.gpus.iter().cloned()));
    }
}

/// A version of CUDA as people write it.
fn release(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

fn describe(gpu: &Gpu) -> String {
    let (major, minor) = gpu.capability;
    format!(
        "cuda:{} {}, compute capability {major}.{minor}, {}",
        gpu.ordinal,
        gpu.name,
        format::bytes(gpu.memory)
    )
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

    #[test]
    fn what_the_driver_says_counts() {
        let folder = tempfile::tempdir().unwrap();
        let look = || Cuda::look_in(&[folder.path().to_owned()], &folder.path().join("version"));
        let gpu = Gpu {
            ordinal: 1,
            name: "NVIDIA H200".to_owned(),
            capability: (9, 0),
            memory: 139 << 30,
            multiprocessors: 132,
        };
        let driver = |version, gpus: &[Gpu]| CudaFound::Driver {
            version,
            gpus: gpus.to_vec(),
        };
        let good = look().ask(driver(13_000, std::slice::from_ref(&gpu)));
        assert_eq!(good.missing, None);
        assert!(
            good.gpus[0].contains("cuda:1 NVIDIA H200") && good.gpus[0].contains("149 GB"),
            "{:?}",
            good.gpus
        );
        let old = look()
            .ask(driver(12_080, std::slice::from_ref(&gpu)))
            .missing
            .unwrap_or_default();
        assert!(
            old.contains("CUDA 12.8") && old.contains("13.0") && old.contains("580"),
            "{old}"
        );
        let none = look().ask(driver(13_000, &[])).missing.unwrap_or_default();
        assert!(none.contains("CUDA_VISIBLE_DEVICES"), "{none}");
        let broken = look()
            .ask(CudaFound::Unusable("system not ready".to_owned()))
            .missing
            .unwrap_or_default();
        assert!(broken.contains("system not ready"), "{broken}");
        assert!(
            look()
                .ask(CudaFound::NoDriver)
                .missing
                .unwrap_or_default()
                .contains("no NVIDIA driver")
        );
    }
}
