//! `paceline doctor`.

mod cache;
mod cuda;
mod device;
mod machine;

use crate::flags::DoctorFlags;
use crate::format::{self, Facts};
use crate::{model, terminal};
use anyhow::Result;
use cache::Cache;
use cuda::Cuda;
use device::Picked;
use machine::{Memory, Processor};
use paceline_weights::hub::HubConfig;
use serde::Serialize;
use std::io::{self, Write};

/// Everything `doctor` finds; `--json` prints it as it is.
#[derive(Serialize)]
struct Diagnosis {
    version: &'static str,
    processor: Processor,
    memory: Memory,
    device: Picked,
    cuda: Cuda,
    cache: Cache,
    hub: Hub,
    embedded_model: EmbeddedModel,
}

#[derive(Serialize)]
struct Hub {
    endpoint: String,
    token: bool,
    offline: bool,
}

#[derive(Serialize)]
struct EmbeddedModel {
    name: &'static str,
    bytes: u64,
}

/// Runs the command.
pub(crate) fn run(flags: &DoctorFlags) -> Result<()> {
    let hub = HubConfig::from_env();
    let tensors = model::embedded()?;
    let diagnosis = Diagnosis {
        version: env!("CARGO_PKG_VERSION"),
        processor: Processor::look(),
        memory: Memory::look(),
        device: Picked::look()?,
        cuda: Cuda::look(),
        cache: Cache::look(&hub.cache_dir),
        hub: Hub {
            endpoint: hub.endpoint,
            token: hub.token.is_some(),
            offline: hub.offline,
        },
        embedded_model: EmbeddedModel {
            name: model::EMBEDDED,
            bytes: tensors.raw_tensors().map(|tensor| tensor.data.len() as u64).sum(),
        },
    };
    let mut out = io::stdout().lock();
    if flags.json {
        serde_json::to_writer_pretty(&mut out, &diagnosis).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        writeln!(
            out,
            "{}",
            terminal::fitted(diagnosis.facts().to_string().trim_end())
        )?;
    }
    out.flush()?;
    Ok(())
}

impl Diagnosis {
    fn facts(&self) -> Facts {
        let mut facts = Facts::default();
        facts.add("paceline", self.version);
        self.processor.describe(&mut facts);
        self.memory.describe(&mut facts);
        self.device.describe(&mut facts);
        self.cuda.describe(&mut facts);
        self.cache.describe(&mut facts);
        let Hub {
            endpoint,
            token,
            offline,
        } = &self.hub;
        let token = if *token { "with a token" } else { "without a token" };
        let offline = if *offline { ", offline" } else { "" };
        facts.add("hub", format!("{endpoint}, {token}{offline}"));
        let EmbeddedModel { name, bytes } = self.embedded_model;
        facts.add("built-in model", format!("{name}, {}", format::bytes(bytes)));
        facts
    }
}
