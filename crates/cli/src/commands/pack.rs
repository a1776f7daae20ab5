//! `paceline pack`.

use crate::engine::explain_start;
use crate::flags::PackFlags;
use crate::model::ModelSource;
use crate::ui::{self, Ui};
use crate::{format, packed};
use anyhow::{Context, Result, bail};
use paceline::{EngineConfig, PackedWriter};
use paceline_weights::Checkpoint;
use std::io::{self, Write};

/// Packs a model's weights into a file.
pub(crate) fn run(flags: &PackFlags, ui: Ui) -> Result<()> {
    let Some(model) = ModelSource::new(Some(flags.model.clone())).resolve(ui)? else {
        bail!("{} is built in: there is no file to pack it beside", flags.model);
    };
    let config = EngineConfig {
        dtype: flags.weights.dtype(),
        threads: flags.threads.unwrap_or(EngineConfig::default().threads),
        ..EngineConfig::default()
    };
    let checkpoint = Checkpoint::open(&model)?;
    let key = packed::key(&model, config.dtype)?;
    let path = match &flags.output {
        Some(path) => path.clone(),
        None => packed::in_cache(&key).context("neither XDG_CACHE_HOME nor HOME is set; give --output")?,
    };
    let writer = PackedWriter::create(&path, &key).with_context(|| path.display().to_string())?;
    let tensors = checkpoint.tensors().map(|tensor| tensor.data.len() as u64);
    let bar = ui.bar(tensors.sum(), ui::PACKING);
    let bytes = paceline::pack_weights(&checkpoint, &config, writer, &|bytes| bar.advance(bytes));
    drop(bar);
    let bytes = bytes.map_err(|error| explain_start(error, checkpoint.source()))?;
    ui.note(format_args!("{} of packed weights", format::bytes(bytes)));
    writeln!(io::stdout().lock(), "{}", path.display())?;
    Ok(())
}
