//! Packing the weights of a model into a file, for starts that map them.

use crate::engine::load_model;
use crate::outline::check_quantised;
use crate::{EngineConfig, StartError};
use paceline_device::Backend;
use paceline_device_cpu::{Cpu, CpuOptions, Instructions, PackedWriter};
use paceline_weights::Checkpoint;
use std::sync::Arc;

/// Packs a checkpoint's weights as [`Engine::start`](crate::Engine::start) would for the CPU, and writes them. `progress` is
/// told the bytes of each tensor as it is packed.
pub fn pack_weights(
    checkpoint: &Checkpoint,
    config: &EngineConfig,
    writer: PackedWriter,
    progress: &dyn Fn(u64),
) -> Result<u64, StartError> {
    config.check()?;
    let cpu = Cpu::new(CpuOptions {
        threads: config.threads,
        instructions: Instructions::detect(),
    });
    let writer = Arc::new(writer);
    let packing = cpu.packing_to(Arc::clone(&writer));
    let model = load_model(&packing, checkpoint, config, progress)?;
    check_quantised(config, &cpu.info(), &model.stats)?;
    writer.finish().map_err(StartError::Packed)
}
