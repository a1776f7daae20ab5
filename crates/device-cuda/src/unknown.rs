//! Kernels for GPUs that no pack is for: made from their sources once, by NVRTC, and kept.

use crate::bundle;
use crate::compiler::{Compiler, kept_name};
use paceline_device::DeviceError;
use std::path::{Path, PathBuf};

/// The library, by the names that loaders know and where toolkits put it.
const LIBRARIES: [&str; 6] = [
    "libnvrtc.so.13",
    "libnvrtc.so",
    "/usr/local/cuda/lib64/libnvrtc.so.13",
    "/usr/local/cuda/lib64/libnvrtc.so",
    "/opt/cuda/lib64/libnvrtc.so.13",
    "/opt/cuda/lib64/libnvrtc.so",
];

/// Files of kernels and their machine code.
pub(crate) type Cubins = Vec<(String, Vec<u8>)>;

/// Where things are.
pub(crate) struct Places<'a> {
    /// What was made is kept here, if anywhere.
    pub(crate) cache: Option<&'a Path>,
    /// Where to look for NVRTC.
    pub(crate) libraries: &'a [&'a str],
}

impl<'a> Places<'a> {
    /// The usual ones.
    pub(crate) const fn usual(cache: Option<&'a Path>) -> Self {
        Self {
            cache,
            libraries: &LIBRARIES,
        }
    }

    /// The kernels in `files` for an architecture such as `sm_110`. What was made before is taken as it is: its name has the
    /// hash of all that it was made of.
    pub(crate) fn kernels(&self, architecture: &str, files: &[&str]) -> Result<Cubins, DeviceError> {
        let kept = self.cache.map(|cache| cache.join(kept_name(architecture)));
        if let Some(cubins) = kept.as_deref().and_then(|path| taken(path, files)) {
            return Ok(cubins);
        }
        let scratch = tempfile::tempdir()
            .map_err(|error| absent(architecture, &format!("no folder for headers: {error}")))?;
        let compiler = self
            .compiler(scratch.path())
            .map_err(|why| absent(architecture, &why))?;
        tracing::warn!("compiling kernels for {architecture}; this takes minutes, and is done once");
        let compiled = compiler
            .compile_files(files, architecture)
            .map_err(|why| absent(architecture, &why))?;
        let cubins: Cubins = compiled
            .into_iter()
            .map(|(file, compiled)| (file, compiled.cubin))
            .collect();
        if let Some(path) = kept
            && let Err(error) = keep(&path, &cubins)
        {
            tracing::warn!("{}: {error}: kernels will be compiled again", path.display());
        }
        Ok(cubins)
    }

    fn compiler(&self, scratch: &Path) -> Result<Compiler, String> {
        let mut found = None;
        for library in self.libraries {
            match Compiler::open(Path::new(library), scratch) {
                Ok(compiler) => return Ok(compiler),
                // One that is there and of no use says more than that another is not there.
                Err(why) if Path::new(library).exists() => found = Some(why),
                Err(_) => {}
            }
        }
        Err(found.unwrap_or_else(|| {
            "NVRTC (libnvrtc.so.13), which would make them, was not found: install the CUDA toolkit, 13.0 or later, or `pip \
             install nvidia-cuda-nvrtc` and put its folder `nvidia/cu13/lib` into LD_LIBRARY_PATH"
                .to_owned()
        }))
    }
}

fn absent(architecture: &str, why: &str) -> DeviceError {
    DeviceError::Absent(format!(
        "this program has no kernels for {architecture}, and {why}"
    ))
}

/// Kernels that were kept, if they are whole.
fn taken(path: &Path, files: &[&str]) -> Option<Cubins> {
    let cubins = bundle::split(&std::fs::read(path).ok()?)?;
    let has = |file: &&str| cubins.iter().any(|(name, _)| name == file);
    files.iter().all(has).then_some(cubins)
}

/// Writes them so that a reader finds all of them or none.
fn keep(path: &Path, cubins: &Cubins) -> std::io::Result<()> {
    let folder = path.parent().map_or_else(PathBuf::new, Path::to_owned);
    std::fs::create_dir_all(&folder)?;
    let file = tempfile::NamedTempFile::new_in(&folder)?;
    std::fs::write(file.path(), bundle::join(cubins))?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [&str; 2] = ["clock", "plants"];

    /// Where `cargo xtask kernels` has put NVRTC. `None`, and says so, where it has not run.
    fn wheel() -> Option<String> {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/nvrtc/nvidia/cu13/lib/libnvrtc.so.13");
        if !path.exists() {
            eprintln!("skipped: there is no NVRTC; cargo xtask kernels fetches it");
            return None;
        }
        Some(path.display().to_string())
    }

    #[test]
    fn kernels_of_an_unknown_architecture_are_compiled_once_and_kept() {
        let Some(wheel) = wheel() else { return };
        let cache = tempfile::tempdir().unwrap();
        let places = Places {
            cache: Some(cache.path()),
            libraries: &["libnothing.so", &wheel],
        };
        let made = places.kernels("sm_110", &FILES).unwrap();
        let names: Vec<&str> = made.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, FILES);
        assert!(made.iter().all(|(_, cubin)| cubin.starts_with(b"\x7fELF")));
        // What is kept needs no compiler.
        let kept = Places {
            libraries: &[],
            ..places
        };
        assert!(kept.kernels("sm_110", &FILES).is_ok_and(|kept| kept == made));
        // What is kept of others, or damaged, is not taken for it.
        assert!(kept.kernels("sm_110", &["publish"]).is_err());
        assert!(kept.kernels("sm_130", &FILES).is_err());
        let entry = std::fs::read_dir(cache.path()).unwrap().next().unwrap().unwrap();
        let bytes = std::fs::read(entry.path()).unwrap();
        std::fs::write(entry.path(), &bytes[..bytes.len() / 2]).unwrap();
        assert!(kept.kernels("sm_110", &FILES).is_err());
        let again = Places {
            cache: Some(cache.path()),
            libraries: &[&wheel],
        };
        assert!(again.kernels("sm_110", &FILES).is_ok_and(|again| again == made));
        assert_eq!(std::fs::read(entry.path()).unwrap(), bytes);
    }

    #[test]
    fn an_architecture_that_the_compiler_does_not_know_is_named() {
        let Some(wheel) = wheel() else { return };
        let places = Places {
            cache: None,
            libraries: &[&wheel],
        };
        let error = places.kernels("sm_9999", &FILES).unwrap_err().to_string();
        assert!(
            error.contains("no kernels for sm_9999") && error.contains("nvrtc"),
            "{error}"
        );
    }

    #[test]
    fn without_nvrtc_it_says_what_to_install() {
        let places = Places {
            cache: None,
            libraries: &["libnothing.so"],
        };
        let error = places.kernels("sm_110", &FILES).unwrap_err().to_string();
        for part in [
            "no kernels for sm_110",
            "libnvrtc.so.13",
            "CUDA toolkit",
            "pip install",
        ] {
            assert!(error.contains(part), "{error}");
        }
    }
}
