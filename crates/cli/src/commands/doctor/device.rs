//! The device that an engine would run on.

use crate::engine::{self, explain_start};
use crate::env;
use crate::format::{self, Facts};
use anyhow::Result;
use paceline::{Device, DeviceInfo, EngineConfig};
use serde::Serialize;

/// What would be picked, or why nothing can be.
#[derive(Serialize)]
pub(super) struct Picked {
    /// What was asked for: by the environment, or auto.
    asked: String,
    name: Option<String>,
    description: Option<String>,
    kernels: Option<String>,
    free_bytes: Option<u64>,
    /// Why there is none.
    missing: Option<String>,
}

impl Picked {
    pub(super) fn look() -> Result<Self> {
        let config = EngineConfig {
            device: engine::device(None)?,
            kernel_cache: env::kernel_cache(),
            ..EngineConfig::default()
        };
        let opened = Device::open(&config).map(|device| device.info());
        let (found, missing) = match opened {
            Ok(info) => (Some(info), None),
            Err(error) => (None, Some(explain_start(error, "").to_string())),
        };
        let part = |part: fn(&DeviceInfo) -> &String| found.as_ref().map(|info| part(info).clone());
        Ok(Self {
            asked: config.device.to_string(),
            name: part(|info| &info.name),
            description: part(|info| &info.description),
            kernels: part(|info| &info.kernels),
            free_bytes: found.as_ref().and_then(|info| info.free_memory),
            missing,
        })
    }

    pub(super) fn describe(&self, facts: &mut Facts) {
        let asked = &self.asked;
        match (&self.name, &self.description) {
            (Some(name), Some(description)) => {
                let free = self
                    .free_bytes
                    .map(|bytes| format!(", {} free", format::bytes(bytes)));
                let free = free.unwrap_or_default();
                facts.add("device", format!("{asked} is {name}: {description}{free}"));
            }
            _ => facts.add("device", self.missing.as_deref().unwrap_or_default()),
        }
        if let Some(kernels) = &self.kernels {
            facts.add("kernels", kernels);
        }
    }
}
