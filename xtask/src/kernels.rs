//! `cargo xtask kernels`: compiles the CUDA kernels to the packs that the binary holds.
//!
//! NVRTC comes from a Python wheel, so neither a GPU nor a toolkit is needed. What it was made of and what the assembler said
//! of every kernel stands in `report.txt` beside the packs.

use paceline_device_cuda::bundle;
use paceline_device_cuda::compiler::{Compiled, Compiler, digest, kept_name, kernel_files};
use paceline_device_cuda::pack::Architecture;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The compiler that packs are made with. Another one makes other code.
const NVRTC: &str = "nvidia-cuda-nvrtc==13.4.92";
const PACKS: &str = "crates/device-cuda/kernels/packs";
/// What the emulator of a GPU runs in tests, which look for it here, and the architecture that it says it is. They make it
/// themselves where it is not there; here it comes with the packs.
const EMULATED: (&str, &str) = ("target/ptx/paceline/kernels", "sm_91");

/// What to do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Compile everything and write the packs.
    Write,
    /// Compile everything and compare with the packs.
    Check,
}

/// Compiles every kernel for one architecture and writes its pack: for trying kernels out. What is committed has all.
pub(crate) fn run_one(root: &Path, architecture: &str) -> Result<(), String> {
    let compiler = open(root)?;
    let known = Architecture::ALL
        .into_iter()
        .find(|known| known.name() == architecture);
    let architecture = known.ok_or_else(|| format!("there are no packs for {architecture}"))?;
    let cubins: Vec<_> = compile_files(&compiler, architecture)?
        .into_iter()
        .map(|(file, compiled)| (file, compiled.cubin))
        .collect();
    let pack = compress(&cubins)?;
    let path = root.join(PACKS).join(format!("{}.zst", architecture.name()));
    settle(Mode::Write, &path, &pack)
}

/// Compiles every kernel for every architecture, or only the file whose name is given, without writing packs.
pub(crate) fn run(root: &Path, mode: Mode, only: Option<&str>) -> Result<(), String> {
    let compiler = open(root)?;
    if let Some(file) = only {
        for architecture in Architecture::ALL {
            let compiled = compiler.compile(file, architecture.name())?;
            let bytes = compiled.cubin.len();
            println!("{file} {} {bytes} bytes\n{}", architecture.name(), compiled.log);
        }
        return Ok(());
    }
    let version = compiler.version()?;
    let mut report = format!("NVRTC {version}, sources {}\n", digest());
    for (architecture, compiled) in compile_all(&compiler)? {
        if architecture == Architecture::Sm90a {
            keep_ptx(root, &compiled)?;
        }
        let mut cubins = Vec::new();
        for (file, compiled) in compiled {
            refuse(&file, architecture, &compiled.log)?;
            report.push_str(&findings(&file, architecture, &compiled.log));
            cubins.push((file, compiled.cubin));
        }
        let pack = compress(&cubins)?;
        let path = root.join(PACKS).join(format!("{}.zst", architecture.name()));
        settle(mode, &path, &pack)?;
    }
    settle(mode, &root.join(PACKS).join("report.txt"), report.as_bytes())
}

/// Keeps the PTX of Hopper's kernels for tests.
fn keep_ptx(root: &Path, compiled: &Results) -> Result<(), String> {
    let files: Vec<_> = compiled
        .iter()
        .map(|(file, compiled)| (file.clone(), compiled.ptx.clone()))
        .collect();
    let folder = root.join(EMULATED.0);
    let path = folder.join(kept_name(EMULATED.1));
    std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(&path, bundle::join(&files)))
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// A pack of the kernels of an architecture.
fn compress(cubins: &[(String, Vec<u8>)]) -> Result<Vec<u8>, String> {
    const LEVEL: i32 = 19;
    zstd::encode_all(bundle::join(cubins).as_slice(), LEVEL).map_err(|error| error.to_string())
}

type Results = Vec<(String, Compiled)>;

fn compile_all(compiler: &Compiler) -> Result<Vec<(Architecture, Results)>, String> {
    let compile = |architecture| Ok((architecture, compile_files(compiler, architecture)?));
    Architecture::ALL.into_iter().map(compile).collect()
}

/// The files for one architecture, on all cores.
fn compile_files(compiler: &Compiler, architecture: Architecture) -> Result<Results, String> {
    compiler.compile_files(&kernel_files(), architecture.name())
}

/// What must not be in a kernel: registers that spill, and matrix instructions that the assembler had to serialise.
fn refuse(file: &str, architecture: Architecture, log: &str) -> Result<(), String> {
    let spills =
        |line: &str| line.contains("spill") && !line.contains(" 0 bytes spill stores, 0 bytes spill loads");
    let serialised = |line: &str| line.contains("C75") || line.contains("serialized");
    match log.lines().find(|line| spills(line) || serialised(line)) {
        Some(line) => Err(format!("{file} for {}: {}", architecture.name(), line.trim())),
        None => Ok(()),
    }
}

/// A line per kernel: architecture, file, kernel and what it takes.
fn findings(file: &str, architecture: Architecture, log: &str) -> String {
    let mut lines: BTreeMap<String, String> = BTreeMap::new();
    let mut kernel = "";
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            kernel = rest.split('\'').next().unwrap_or_default();
        } else if let Some((_, used)) = line.split_once(": Used ") {
            lines.insert(kernel.to_owned(), used.trim().to_owned());
        }
    }
    let mut text = String::new();
    for (kernel, used) in lines {
        let _ = writeln!(text, "{} {file} {kernel}: {used}", architecture.name());
    }
    text
}

fn settle(mode: Mode, path: &Path, contents: &[u8]) -> Result<(), String> {
    let name = path.display();
    match mode {
        Mode::Write => {
            println!("{name}: {} bytes", contents.len());
            std::fs::write(path, contents).map_err(|error| format!("{name}: {error}"))
        }
        Mode::Check if std::fs::read(path).is_ok_and(|found| found == contents) => Ok(()),
        Mode::Check => Err(format!(
            "{name} is not what the sources give: run `cargo xtask kernels`"
        )),
    }
}

/// NVRTC, fetched if it is not there.
fn open(root: &Path) -> Result<Compiler, String> {
    let folder = root.join("target/nvrtc");
    let library = folder.join("nvidia/cu13/lib/libnvrtc.so.13");
    if !library.exists() {
        fetch(&folder)?;
    }
    Compiler::open(&library, &folder)
}

fn fetch(folder: &PathBuf) -> Result<(), String> {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"])
        .arg(folder)
        .arg(NVRTC);
    let status = pip.status().map_err(|error| format!("python3 -m pip: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{NVRTC} could not be installed"))
    }
}
