//! A GPU that is emulated: the program sees it as `cuda:0`, with the kernels of this tree or with some that were changed.

use super::common::{paceline, repository};
use paceline_device_cuda::bundle;
use paceline_device_cuda::compiler::{Compiled, Compiler, kept_name, kernel_files, source};
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// What the emulator says that it is, and the architecture that its kernels are compiled for.
const ARCHITECTURE: (&str, &str) = ("sm_91", "compute_90a");

/// The driver's library and the kernels' PTX in a folder.
pub(crate) struct Emulator {
    folder: TempDir,
}

/// Another text in a source of kernels.
pub(crate) struct Edit {
    /// The source.
    pub(crate) name: &'static str,
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
    /// The file of kernels that is compiled with it.
    pub(crate) kernels: &'static str,
}

/// Whether tests may take minutes.
pub(crate) fn is_long() -> bool {
    std::env::var_os("PACELINE_TEST_LONG").is_some()
}

/// NVRTC, where `cargo xtask kernels` has put it.
fn compiler() -> Option<Compiler> {
    let folder = repository("target/nvrtc");
    let library = folder.join("nvidia/cu13/lib/libnvrtc.so.13");
    library
        .exists()
        .then(|| Compiler::open(&library, &folder).unwrap())
}

/// The PTX of all kernels as they are, from `cargo xtask kernels` or compiled here; its name has the hash of the sources. `None`
/// where there is no NVRTC.
fn ptx() -> Option<PathBuf> {
    let folder = repository("target/ptx/paceline/kernels");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join(kept_name(ARCHITECTURE.0));
    // Tests that run at the same time wait for the first.
    let lock = File::create(folder.join("lock")).unwrap();
    lock.lock().unwrap();
    if !path.exists() {
        let compiled = compiler()?
            .compile_files(&kernel_files(), ARCHITECTURE.1)
            .unwrap();
        let of = |(file, compiled): (String, Compiled)| (file, compiled.ptx);
        let files: Vec<_> = compiled.into_iter().map(of).collect();
        let whole = tempfile::NamedTempFile::new_in(&folder).unwrap();
        fs::write(whole.path(), bundle::join(&files)).unwrap();
        whole.persist(&path).unwrap();
    }
    Some(path.canonicalize().unwrap())
}

impl Emulator {
    /// With the kernels of this tree. `None`, and says so, where there is no NVRTC to make them.
    pub(crate) fn new() -> Option<Self> {
        let Some(ptx) = ptx() else {
            eprintln!("skipped: there is no NVRTC; cargo xtask kernels fetches it");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let tests = std::env::current_exe().unwrap();
        let library = tests
            .parent()
            .unwrap()
            .join("libpaceline_device_cuda_emulator.so");
        assert!(library.exists(), "{}", library.display());
        for name in ["libcuda.so.1", "libcuda.so"] {
            symlink(&library, folder.path().join(name)).unwrap();
        }
        let kernels = folder.path().join("paceline/kernels");
        fs::create_dir_all(&kernels).unwrap();
        symlink(ptx, kernels.join(kept_name(ARCHITECTURE.0))).unwrap();
        Some(Self { folder })
    }

    /// With a kernel that was changed.
    pub(crate) fn edited(edit: &Edit) -> Option<Self> {
        let emulator = Self::new()?;
        let compiler = compiler()?;
        let before = source(edit.name).unwrap();
        assert_eq!(
            before.matches(edit.from).count(),
            1,
            "{}: {}",
            edit.name,
            edit.from
        );
        let after = before.replace(edit.from, edit.to);
        let compiled = compiler.compile_edited(edit.kernels, ARCHITECTURE.1, &[(edit.name, &after)]);
        let changed = compiled.unwrap().ptx;
        let path = emulator
            .folder
            .path()
            .join("paceline/kernels")
            .join(kept_name(ARCHITECTURE.0));
        let mut files = bundle::split(&fs::read(&path).unwrap()).unwrap();
        let file = files.iter_mut().find(|(name, _)| name == edit.kernels).unwrap();
        assert_ne!(file.1, changed, "{}: nothing has changed", edit.name);
        file.1 = changed;
        fs::remove_file(&path).unwrap();
        fs::write(path, bundle::join(&files)).unwrap();
        Some(emulator)
    }

    /// The program, which finds the GPU.
    pub(crate) fn paceline(&self) -> Command {
        let mut command = paceline();
        let folder: &Path = self.folder.path();
        command
            .env("LD_LIBRARY_PATH", folder)
            .env("XDG_CACHE_HOME", folder);
        command
    }

    /// Judges what has `only` in its name.
    pub(crate) fn selftest(&self, only: &str) -> Command {
        let mut command = self.paceline();
        let fixtures = repository("fixtures").display().to_string();
        command.args(["selftest", "--device", "cuda:0", "--short", "--seed", "7"]);
        command.args(["--fixtures", &fixtures, "--only", only]);
        command
    }
}
