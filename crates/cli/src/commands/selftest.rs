//! `paceline selftest`.

use crate::flags::SelftestFlags;
use crate::{Ending, engine, env, seed};
use anyhow::{Result, bail};
use paceline_selftest::{Header, Judgement, Misses, Told, judge};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Where the reference models are unless a folder is named.
const FIXTURES: &str = "fixtures";

/// Judges a device and prints a table. What was missed is listed below it.
pub(crate) fn run(flags: &SelftestFlags) -> Result<Ending> {
    let seed = flags.seed.unwrap_or_else(seed::random);
    let judgement = Judgement {
        seed,
        only: flags.only.clone(),
        root: repository(flags.fixtures.as_deref())?,
        mixes: flags.mixes,
        way: flags.way.clone(),
        short: flags.short,
        case: flags.case.clone(),
    };
    let without_models = judgement.root.is_none();
    let device = engine::device(flags.device)?;
    let mut out = io::stdout().lock();
    let mut printed = Ok(());
    let mut print = |told: Told<'_>| {
        if printed.is_ok() {
            printed = line(&mut out, &told);
        }
    };
    let outcomes = judge(device, env::kernel_cache(), judgement, &mut print)?;
    printed?;
    if let (Some(only), []) = (&flags.only, outcomes.as_slice()) {
        bail!("--only is {only}; nothing that is judged here has it in its name");
    }
    if without_models {
        writeln!(
            out,
            "no folder {FIXTURES} here: whole models were not judged (--fixtures DIR)"
        )?;
    }
    write!(out, "{}", Misses(&outcomes))?;
    let missed = outcomes.iter().filter(|outcome| !outcome.is_ok()).count();
    let cases: usize = outcomes.iter().map(|outcome| outcome.cases).sum();
    let lines = outcomes.len();
    writeln!(
        out,
        "seed {seed}: {cases} cases, {missed} of {lines} lines missed"
    )?;
    Ok(if missed == 0 { Ending::Done } else { Ending::Failed })
}

/// The repository that a folder of reference models belongs to; `None` if none was named and none is here.
fn repository(fixtures: Option<&Path>) -> Result<Option<PathBuf>> {
    let folder = fixtures.unwrap_or(Path::new(FIXTURES));
    let root = folder.join("..");
    if folder.join("llama/golden.json").is_file() && root.join("assets/storyteller").is_dir() {
        return Ok(Some(root));
    }
    match fixtures {
        Some(folder) => bail!(
            "{} is not the folder `fixtures` of a checkout of Paceline, with `assets` beside it",
            folder.display()
        ),
        None => Ok(None),
    }
}

/// Prints a line of the table as soon as it is known, its head with the device.
fn line(out: &mut impl Write, told: &Told<'_>) -> io::Result<()> {
    match told {
        Told::Device(info) => writeln!(out, "{info}, kernels for {}\n{Header}", info.kernels)?,
        Told::Outcome(outcome) => writeln!(out, "{outcome}")?,
    }
    out.flush()
}
