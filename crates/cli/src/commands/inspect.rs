//! `paceline inspect`.

mod memory;
mod report;

use crate::flags::InspectFlags;
use crate::model::{self, EMBEDDED, LoadedModel, ModelSource};
use crate::ui::Ui;
use crate::{engine, env, terminal};
use anyhow::Result;
use memory::{Plan, PlanReport};
use paceline::{Device, EngineConfig};
use paceline_device::Recorder;
use paceline_models::Summary;
use paceline_weights::Checkpoint;
use report::ModelReport;
use std::io::{self, Write};
use std::path::Path;

/// Runs the command.
pub(crate) fn run(flags: &InspectFlags, ui: Ui) -> Result<()> {
    let model = open(&ModelSource::new(flags.model.clone()), ui)?;
    let config = EngineConfig {
        device: engine::device(flags.device)?,
        kernel_cache: env::kernel_cache(),
        ..EngineConfig::default()
    };
    let opened = Device::open(&config).map_err(|error| engine::explain_start(error, &model.source))?;
    let device = opened.info();
    let recorder = Recorder::like(device.clone());
    let decoder = engine::outline_on(&recorder, &model)?;
    let summary = Summary::of(&decoder, device.elements);
    let plan = memory::plan(flags, (recorder, decoder), (&config, &opened), &model)?;
    let report = ModelReport::new(&model, &summary, &device, plan.as_ref().map(PlanReport::from));
    let mut out = io::stdout().lock();
    if flags.json {
        serde_json::to_writer_pretty(&mut out, &report).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        writeln!(out, "{}", terminal::fitted(report.facts().to_string().trim_end()))?;
        if let Some(plan) = plan {
            let Plan { speculation, memory } = plan;
            let name = &device.name;
            let plan = format!("memory plan ({name}; speculation: {speculation})\n{memory}");
            writeln!(out, "{}", terminal::fitted(&plan))?;
        }
    }
    out.flush()?;
    Ok(())
}

fn open(source: &ModelSource, ui: Ui) -> Result<LoadedModel> {
    let Some(path) = source.resolve(ui)? else {
        return LoadedModel::new(model::embedded()?, format!("{EMBEDDED} (built in)"));
    };
    let checkpoint = if is_config_only(&path) {
        Checkpoint::config_only(&path)?
    } else {
        Checkpoint::open(&path)?
    };
    let source = checkpoint.source().to_owned();
    LoadedModel::new(checkpoint, source)
}

/// A configuration by itself, or a folder that has one and no weights.
fn is_config_only(path: &Path) -> bool {
    let has_extension =
        |path: &Path, extension: &str| path.extension().is_some_and(|found| found == extension);
    if !path.is_dir() {
        return has_extension(path, "json");
    }
    let has_weights = std::fs::read_dir(path).is_ok_and(|files| {
        files.flatten().any(|file| {
            let path = file.path();
            has_extension(&path, "safetensors") || path.ends_with("model.safetensors.index.json")
        })
    });
    path.join("config.json").is_file() && !has_weights
}
