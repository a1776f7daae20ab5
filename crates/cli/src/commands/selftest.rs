//! `paceline selftest`.

use crate::flags::SelftestFlags;
use crate::{Ending, engine, env, seed};
use anyhow::{Result, anyhow, bail};
use paceline::{OnFreshDevices, Open, Openers};
use paceline_device::Backend;
use paceline_selftest::{
    Effort, Header, Misses, ModelsConfig, OperationsConfig, Outcome, faults, models, operations, ways,
};
use paceline_types::DType;
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
    };
    let without_models = judgement.root.is_none();
    let device = engine::device(flags.device)?;
    let outcomes = device.run_afresh(env::kernel_cache(), judgement)?;
    if let (Some(only), []) = (&flags.only, outcomes.as_slice()) {
        bail!("--only is {only}; nothing that is judged here has it in its name");
    }
    let mut out = io::stdout().lock();
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

struct Judgement {
    seed: u64,
    only: Option<String>,
    root: Option<PathBuf>,
    mixes: usize,
    way: Option<String>,
}

/// The device as it is asked for: as engines open it, or working in another way.
fn opener<'a, B: Backend>(openers: &'a Openers<B>, way: Option<&str>) -> Result<&'a Open<'static, B>> {
    let Some(way) = way else { return Ok(&*openers.open) };
    let known = openers.other_ways.iter().find(|(name, _)| *name == way);
    known.map(|(_, open)| &**open).ok_or_else(|| {
        let names: Vec<&str> = openers.other_ways.iter().map(|(name, _)| *name).collect();
        anyhow!("--way is {way}; it must be one of: {}", names.join(", "))
    })
}

impl OnFreshDevices for Judgement {
    type Output = Result<Vec<Outcome>>;

    fn run<B: Backend>(self, openers: &Openers<B>) -> Self::Output {
        let open = opener(openers, self.way.as_deref())?;
        let info = open(DType::F32)?.info();
        let mut out = io::stdout().lock();
        writeln!(out, "{info}, kernels for {}\n{Header}", info.kernels)?;
        let mut printed = Ok(());
        let mut print = |outcome: &Outcome| {
            if printed.is_ok() {
                printed = writeln!(out, "{outcome}").and_then(|()| out.flush());
            }
        };
        let config = OperationsConfig {
            seed: self.seed,
            effort: if info.shares_host_memory {
                Effort::Short
            } else {
                Effort::Whole
            },
            only: self.only.clone(),
            keep_going: true,
        };
        let mut outcomes = operations(open, &config, &mut print)?;
        if let Some(root) = self.root {
            let config = ModelsConfig {
                root,
                seed: self.seed,
                mixes: self.mixes,
                only: self.only,
            };
            outcomes.extend(models(open, &config, &mut print));
            outcomes.extend(ways(openers, &config, &mut print));
            outcomes.extend(faults(openers, &config, &mut print));
        }
        printed?;
        Ok(outcomes)
    }
}
