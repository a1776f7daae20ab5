//! `paceline selftest`.

use crate::flags::SelftestFlags;
use crate::{Ending, engine, seed};
use anyhow::Result;
use paceline::OnFreshDevices;
use paceline_device::{Backend, DeviceError};
use paceline_selftest::{Effort, Header, Misses, OperationsConfig, Outcome, operations};
use paceline_types::DType;
use std::io::{self, Write};

/// Judges a device and prints a table. What was missed is listed below it.
pub(crate) fn run(flags: &SelftestFlags) -> Result<Ending> {
    let seed = flags.seed.unwrap_or_else(seed::random);
    let task = Judgement {
        seed,
        only: flags.only.clone(),
    };
    let outcomes = engine::device(flags.device)?.run_afresh(task)?;
    let missed = outcomes.iter().filter(|outcome| !outcome.is_ok()).count();
    let cases: usize = outcomes.iter().map(|outcome| outcome.cases).sum();
    let mut out = io::stdout().lock();
    write!(out, "{}", Misses(&outcomes))?;
    writeln!(
        out,
        "seed {seed}: {cases} cases, {missed} of {} lines missed",
        outcomes.len()
    )?;
    Ok(if missed == 0 { Ending::Done } else { Ending::Failed })
}

struct Judgement {
    seed: u64,
    only: Option<String>,
}

impl OnFreshDevices for Judgement {
    type Output = Result<Vec<Outcome>>;

    fn run<B: Backend>(self, open: &dyn Fn(DType) -> Result<B, DeviceError>) -> Self::Output {
        let info = open(DType::F32)?.info();
        let mut out = io::stdout().lock();
        writeln!(out, "{info}, kernels for {}\n{Header}", info.kernels)?;
        let config = OperationsConfig {
            seed: self.seed,
            effort: if info.shares_host_memory {
                Effort::Short
            } else {
                Effort::Whole
            },
            only: self.only,
            keep_going: true,
        };
        let mut printed = Ok(());
        let mut print = |outcome: &Outcome| {
            if printed.is_ok() {
                printed = writeln!(out, "{outcome}");
            }
        };
        let outcomes = operations(open, &config, &mut print)?;
        printed?;
        Ok(outcomes)
    }
}
