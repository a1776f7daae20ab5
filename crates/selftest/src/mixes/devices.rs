//! Where the devices of mixes come from.

use super::scripted::{Script, Scripted, Texts};
use paceline::Open;
use paceline_device::{Backend, Checked, DeviceError};
use paceline_device_cpu::{Cpu, CpuOptions, Instructions};
use paceline_runner::Proposer;
use paceline_types::DType;

/// A kind of device.
pub trait Devices {
    /// Its type.
    type Device: Backend;

    /// Opens one, with keys and values stored in a type if it has the choice. Threads are for CPUs.
    fn open(&self, threads: usize, kv: DType) -> Result<Self::Device, DeviceError>;

    /// All programs are captured, and nothing is allocated any more.
    fn started(&self, device: &Self::Device);

    /// A drafter that knows the texts, for devices that can call the host in a step.
    fn scripted(&self, script: Script, texts: Texts) -> Option<Box<dyn Proposer<Self::Device>>>;

    /// Whether there is such a drafter.
    fn has_scripts(&self) -> bool;
}

/// CPUs, with an eye on what is asked of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckedCpu {
    /// What keys and values are stored as, whatever a mix asks for; `None` for f32.
    pub kv: Option<DType>,
}

impl Devices for CheckedCpu {
    type Device = Checked<Cpu>;

    fn open(&self, threads: usize, _: DType) -> Result<Checked<Cpu>, DeviceError> {
        let cpu = Cpu::new(CpuOptions {
            threads,
            instructions: Instructions::detect(),
        });
        Ok(Checked::new(cpu.with_kv(self.kv.unwrap_or(DType::F32))))
    }

    fn started(&self, device: &Checked<Cpu>) {
        assert_eq!(
            device.host_waits(),
            0,
            "nothing is waited for before the first step"
        );
        device.seal();
    }

    fn scripted(&self, script: Script, texts: Texts) -> Option<Box<dyn Proposer<Checked<Cpu>>>> {
        Some(Box::new(Scripted::new(script, texts)))
    }

    fn has_scripts(&self) -> bool {
        true
    }
}

/// Devices of any kind.
pub struct Opened<'a, B: Backend>(pub &'a Open<'a, B>);

impl<B: Backend> Devices for Opened<'_, B> {
    type Device = B;

    fn open(&self, _: usize, kv: DType) -> Result<B, DeviceError> {
        (self.0)(kv)
    }

    fn started(&self, _: &B) {}

    fn scripted(&self, _: Script, _: Texts) -> Option<Box<dyn Proposer<B>>> {
        None
    }

    fn has_scripts(&self) -> bool {
        false
    }
}
