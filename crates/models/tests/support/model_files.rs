//! Reference models as tensors in memory, to be changed and written in other layouts.

#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "shared by several test programs"
)]

use paceline_device_cpu::{Cpu, CpuOptions, Instructions};
use paceline_testkit::{Fixture, in_memory};
use paceline_weights::Checkpoint;
use serde_json::Value;
use std::collections::BTreeMap;

pub use paceline_testkit::Stored;

/// A model in Hugging Face layout.
#[derive(Clone)]
pub struct ModelFiles {
    /// `config.json`.
    pub config: Value,
    /// The tensors by name.
    pub tensors: BTreeMap<String, Stored>,
}

impl ModelFiles {
    /// The model of a fixture.
    pub fn of(fixture: &Fixture) -> Self {
        Self::read(&fixture.checkpoint())
    }

    /// The files of a checkpoint.
    pub fn read(checkpoint: &Checkpoint) -> Self {
        let tensors = checkpoint.raw_tensors().map(|tensor| {
            let stored = Stored {
                dtype: tensor.dtype.to_owned(),
                shape: tensor.shape.to_vec(),
                data: tensor.data.to_vec(),
            };
            (tensor.name.to_owned(), stored)
        });
        Self {
            config: checkpoint.config().unwrap().clone(),
            tensors: tensors.collect(),
        }
    }

    /// Sets a field of the configuration.
    pub fn with(mut self, field: &str, value: Value) -> Self {
        self.config[field] = value;
        self
    }

    /// Removes a field of the configuration.
    pub fn without(mut self, field: &str) -> Self {
        self.config.as_object_mut().unwrap().remove(field);
        self
    }

    /// The same experts, one tensor per matrix.
    pub fn with_single_experts(mut self) -> Self {
        let stacks: Vec<String> = self
            .tensors
            .keys()
            .filter(|name| name.contains(".experts.") && !name.ends_with(".weight"))
            .cloned()
            .collect();
        for name in stacks {
            let stack = self.tensors.remove(&name).unwrap();
            let (prefix, kind) = name.rsplit_once('.').unwrap();
            let kinds = match kind {
                "gate_up_proj" => vec!["gate_proj", "up_proj"],
                other => vec![other],
            };
            let [experts, rows, columns] = stack.shape[..] else {
                panic!("{name} is no stack")
            };
            let rows = rows / kinds.len();
            let names = (0..experts).flat_map(|expert| {
                kinds
                    .iter()
                    .map(move |kind| format!("{prefix}.{expert}.{kind}.weight"))
            });
            let matrices = stack.values();
            for (name, matrix) in names.zip(matrices.chunks_exact(rows * columns)) {
                self.tensors.insert(name, Stored::f32(&[rows, columns], matrix));
            }
        }
        self
    }

    /// The same experts, one stack per kind of matrix; gates and ups in one.
    pub fn with_stacked_experts(self) -> Self {
        let mut model = self.with_single_experts();
        let firsts: Vec<String> = model
            .tensors
            .keys()
            .filter_map(|name| name.strip_suffix(".experts.0.up_proj.weight"))
            .map(str::to_owned)
            .collect();
        for prefix in firsts {
            let gated = model
                .tensors
                .contains_key(&format!("{prefix}.experts.0.gate_proj.weight"));
            let first = if gated {
                ("gate_up_proj", vec!["gate_proj", "up_proj"])
            } else {
                ("up_proj", vec!["up_proj"])
            };
            for (stack, kinds) in [first, ("down_proj", vec!["down_proj"])] {
                let (mut shape, mut values) = (vec![0, 0, 0], Vec::new());
                let name = |expert: usize, kind: &str| format!("{prefix}.experts.{expert}.{kind}.weight");
                while model.tensors.contains_key(&name(shape[0], kinds[0])) {
                    for kind in &kinds {
                        let matrix = model.tensors.remove(&name(shape[0], kind)).unwrap();
                        (shape[1], shape[2]) = (matrix.shape[0] * kinds.len(), matrix.shape[1]);
                        values.extend(matrix.values());
                    }
                    shape[0] += 1;
                }
                let name = format!("{prefix}.experts.{stack}");
                model.tensors.insert(name, Stored::f32(&shape, &values));
            }
        }
        model
    }

    /// The model opened from memory.
    pub fn checkpoint(&self) -> Checkpoint {
        in_memory("model", &self.config, &self.tensors)
    }
}

/// The message of the error that loading gives, on a device that reads every weight.
pub fn failure(checkpoint: &Checkpoint) -> String {
    let backend = Cpu::new(CpuOptions {
        threads: 1,
        instructions: Instructions::detect(),
    });
    match paceline_models::load(&backend, checkpoint, None, &|_| {}) {
        Ok(_) => panic!("the model loads"),
        Err(error) => error.to_string(),
    }
}
