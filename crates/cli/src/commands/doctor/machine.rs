//! Processor and memory, as Linux tells them; elsewhere some answers are missing.

use crate::format::{self, Facts};
use paceline::UsableMemory;
use serde::Serialize;
use std::fs;

/// The processor and what will be used of it.
#[derive(Serialize)]
pub(super) struct Processor {
    model: Option<String>,
    features: Vec<Feature>,
    logical_cores: Option<usize>,
    usable_cores: usize,
}

#[derive(Serialize)]
struct Feature {
    name: &'static str,
    present: bool,
}

#[derive(Serialize)]
#[expect(clippy::struct_field_names, reason = "these are the names in the JSON object")]
pub(super) struct Memory {
    total_bytes: Option<u64>,
    available_bytes: Option<u64>,
    /// What the process's control groups may use.
    limit_bytes: Option<u64>,
    /// What an engine would plan with.
    usable_bytes: Option<u64>,
}

impl Processor {
    pub(super) fn look() -> Self {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let values = |key: &'static str| {
            info.lines().filter_map(move |line| {
                let (name, value) = line.split_once(':')?;
                (name.trim() == key).then(|| value.trim().to_owned())
            })
        };
        let logical_cores = values("processor").count();
        Self {
            model: values("model name").next(),
            features: features(&values("flags").next().unwrap_or_default()),
            logical_cores: Some(logical_cores).filter(|count| *count > 0),
            usable_cores: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }

    pub(super) fn describe(&self, facts: &mut Facts) {
        let model = self.model.clone();
        facts.add(
            "processor",
            model.unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        );
        if !self.features.is_empty() {
            let named = |wanted: bool| {
                let names = self.features.iter().filter(|feature| feature.present == wanted);
                names.map(|feature| feature.name).collect::<Vec<_>>().join(" ")
            };
            let (present, absent) = (named(true), named(false));
            let absent = if absent.is_empty() {
                absent
            } else {
                format!("; not: {absent}")
            };
            facts.add("features", format!("{present}{absent}"));
        }
        let logical = self.logical_cores.map(|count| format!(" of {count}"));
        let logical = logical.unwrap_or_default();
        facts.add("cores", format!("{}{logical} usable", self.usable_cores));
    }
}

/// `flags`: what Linux calls the features of a processor, for those that the standard library cannot tell.
#[cfg(target_arch = "x86_64")]
fn features(flags: &str) -> Vec<Feature> {
    let feature = |name, present| Feature { name, present };
    vec![
        feature("AVX2", std::arch::is_x86_feature_detected!("avx2")),
        feature("FMA", std::arch::is_x86_feature_detected!("fma")),
        feature("F16C", std::arch::is_x86_feature_detected!("f16c")),
        feature("AVX-512", std::arch::is_x86_feature_detected!("avx512f")),
        feature("AVX-512-VNNI", std::arch::is_x86_feature_detected!("avx512vnni")),
        feature("AVX-VNNI", std::arch::is_x86_feature_detected!("avxvnni")),
        feature("AVX-512-BF16", std::arch::is_x86_feature_detected!("avx512bf16")),
        feature(
            "AMX",
            ["amx_tile", "amx_int8", "amx_bf16"]
                .iter()
                .all(|name| flags.split(' ').any(|flag| flag == *name)),
        ),
    ]
}

#[cfg(not(target_arch = "x86_64"))]
fn features(_flags: &str) -> Vec<Feature> {
    Vec::new()
}

impl Memory {
    pub(super) fn look() -> Self {
        let memory = UsableMemory::look();
        Self {
            total_bytes: memory.total,
            available_bytes: memory.available,
            limit_bytes: memory.limit.map(|limit| limit.bytes),
            usable_bytes: memory.bytes(),
        }
    }

    pub(super) fn describe(&self, facts: &mut Facts) {
        let memory = match (self.total_bytes, self.available_bytes) {
            (Some(total), Some(available)) => {
                format!(
                    "{} available of {}",
                    format::bytes(available),
                    format::bytes(total)
                )
            }
            _ => "unknown".to_owned(),
        };
        let limit = self.limit_bytes.zip(self.usable_bytes).map(|(limit, usable)| {
            let (limit, usable) = (format::bytes(limit), format::bytes(usable));
            format!(", limited to {limit}, {usable} usable")
        });
        facts.add("memory", memory + &limit.unwrap_or_default());
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn amx_is_a_feature_of_processors_whose_tiles_multiply_both_kinds() {
        let amx = |flags: &str| {
            let features = features(flags);
            features
                .iter()
                .any(|feature| feature.name == "AMX" && feature.present)
        };
        assert!(amx("fpu avx512_fp16 amx_bf16 amx_tile amx_int8 flush_l1d"));
        assert!(!amx("fpu amx_tile amx_int8") && !amx("fpu avx2 amx_tile_more") && !amx(""));
    }
}
