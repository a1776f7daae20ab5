//! `paceline pull`, `list` and `rm`: models of the hub on this machine.

use crate::flags::{ListFlags, PullFlags, RmFlags};
use crate::format;
use crate::model::EMBEDDED;
use crate::ui::Ui;
use anyhow::{Context, Result, bail};
use paceline_weights::hub::{self, HubConfig, HubModel, Installed, ModelRef};
use serde_json::json;
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

/// Gets models.
pub(crate) fn pull(flags: &PullFlags, ui: Ui) -> Result<()> {
    let config = HubConfig::from_env();
    // What cannot be had is known before anything is downloaded.
    let models = flags.models.iter().map(|name| of_hub(name, &config));
    for model in models.collect::<Result<Vec<_>>>()? {
        let path = hub::fetch(&model, &config, &ui.downloads())?;
        writeln!(io::stdout().lock(), "{}", path.display())?;
    }
    Ok(())
}

/// Shows what there is.
pub(crate) fn list(flags: &ListFlags) -> Result<()> {
    let models = hub::installed(&HubConfig::from_env().cache_dir)?;
    let mut out = io::stdout().lock();
    if flags.json {
        for model in &models {
            serde_json::to_writer(&mut out, &to_json(model)).map_err(io::Error::from)?;
            writeln!(out)?;
        }
    } else {
        write!(out, "{}", table(&models))?;
    }
    out.flush()?;
    Ok(())
}

/// Removes models.
pub(crate) fn rm(flags: &RmFlags, ui: Ui) -> Result<()> {
    let config = HubConfig::from_env();
    for name in &flags.models {
        if name != EMBEDDED && ModelRef::parse(name, &config.endpoint).is_err() {
            bail!("there is no model {name} here: `paceline list` shows those that there are");
        }
        let model = of_hub(name, &config)?;
        let gone = hub::remove(&model, &config.cache_dir).with_context(|| format!("rm {name}"))?;
        for Installed { model, bytes, .. } in gone {
            ui.note(format_args!("removed {model}, {}", format::bytes(bytes)));
        }
    }
    Ok(())
}

/// A model that is one of the hub.
fn of_hub(name: &str, config: &HubConfig) -> Result<HubModel> {
    if name == EMBEDDED {
        bail!("{EMBEDDED} is built in: it is always there");
    }
    match ModelRef::parse(name, &config.endpoint)? {
        ModelRef::Hub(model) => Ok(model),
        ModelRef::Path(_) => bail!("{name} is a file or folder of this machine, not a model of the hub"),
    }
}

fn to_json(model: &Installed) -> serde_json::Value {
    let seconds = model.used.and_then(|used| used.duration_since(UNIX_EPOCH).ok());
    json!({
        "name": model.model.to_string(),
        "type": model.kind,
        "bytes": model.bytes,
        "last_used": seconds.map(|time| time.as_secs()),
        "path": model.path,
    })
}

fn table(models: &[Installed]) -> String {
    let now = SystemTime::now();
    let used = |model: &Installed| {
        let time = model.used.and_then(|used| now.duration_since(used).ok());
        time.map_or_else(|| "-".to_owned(), format::ago)
    };
    let title = ["NAME", "SIZE", "TYPE", "LAST USED"].map(str::to_owned);
    let rows = models.iter().map(|model| {
        [
            model.model.to_string(),
            format::bytes(model.bytes),
            model.kind.clone(),
            used(model),
        ]
    });
    let built_in = [EMBEDDED, "-", "built in", "-"].map(str::to_owned);
    let rows: Vec<[String; 4]> = [title].into_iter().chain(rows).chain([built_in]).collect();
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let (name, size, kind) = (width(0), width(1), width(2));
    let line = |[a, b, c, d]: &[String; 4]| format!("{a:name$}  {b:>size$}  {c:kind$}  {d}\n");
    rows.iter().map(line).collect()
}
