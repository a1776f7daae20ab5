//! Which device an engine runs on. This is the one place that names them; everything else is generic over
//! [`Backend`] or sees a [`LoadedEngine`].

use crate::engine::{EngineParts, rehearse};
use crate::faults::{Failing, Fault};
use crate::{EngineConfig, Handle, Held, MemoryPlan, ModelFiles, Speculation, StartError};
use paceline_device::{Backend, DeviceError, DeviceInfo};
use paceline_device_cpu::{Cpu, CpuOptions, Instructions};
use paceline_device_cuda::{Cuda, CudaOptions, Found, plants};
use paceline_runner::RunnerConfig;
use paceline_types::DType;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

pub use paceline_device_cpu::{MemoryLimit, UsableMemory, return_large_allocations};
pub use paceline_device_cpu::{PackedKey, PackedWeights, PackedWriter};
pub use paceline_device_cuda::{Found as CudaFound, Gpu, probe as probe_cuda};

/// The device that is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The best there is.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// A GPU of NVIDIA, by its number.
    Cuda(usize),
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse().ok().map(Self::Cuda);
        match text {
            "auto" => Some(Self::Auto),
            "cpu" => Some(Self::Cpu),
            "cuda" => Some(Self::Cuda(0)),
            _ => text.strip_prefix("cuda:").and_then(number),
        }
        .ok_or_else(|| format!("`{text}` is no device; it must be auto, cpu or cuda:N such as cuda:0"))
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

impl DeviceChoice {
    /// Does something that opens the device again and again.
    /// `kernel_cache` is [`EngineConfig::kernel_cache`].
    pub fn run_afresh<T: OnFreshDevices>(self, kernel_cache: Option<PathBuf>, task: T) -> T::Output {
        match self {
            Self::Auto if has_gpu() => Self::Cuda(0).run_afresh(kernel_cache, task),
            Self::Auto | Self::Cpu => task.run(&cpus()),
            Self::Cuda(ordinal) => task.run(&gpus(ordinal, kernel_cache)),
        }
    }
}

/// A device that is there.
pub enum Device {
    /// The processor.
    Cpu(Cpu),
    /// A GPU of NVIDIA.
    Cuda(Cuda),
}

impl Device {
    /// Opens the device that the configuration asks for.
    pub fn open(config: &EngineConfig) -> Result<Self, StartError> {
        config.check()?;
        match config.device {
            DeviceChoice::Auto if has_gpu() => Self::open_cuda(0, config),
            DeviceChoice::Auto | DeviceChoice::Cpu => {
                let cpu = Cpu::new(CpuOptions {
                    threads: config.threads,
                    instructions: Instructions::detect(),
                });
                Ok(Self::Cpu(
                    cpu.with_kv(config.kv_cache_dtype.unwrap_or(DType::F32)),
                ))
            }
            DeviceChoice::Cuda(ordinal) => Self::open_cuda(ordinal, config),
        }
    }

    fn open_cuda(ordinal: usize, config: &EngineConfig) -> Result<Self, StartError> {
        if config.kv_cache_dtype == Some(DType::F16) {
            return Err(StartError::Option {
                option: "kv-cache-dtype",
                value: DType::F16.name().to_owned(),
                bound: "auto, float32 or bfloat16 on a GPU".to_owned(),
            });
        }
        let options = CudaOptions {
            ordinal,
            kv: config.kv_cache_dtype.unwrap_or(CudaOptions::default().kv),
            kernel_cache: config.kernel_cache.clone(),
            kernel_times: config.kernel_times.clone(),
            ..CudaOptions::default()
        };
        Ok(Self::Cuda(Cuda::open(options)?))
    }

    /// What it is.
    pub fn info(&self) -> DeviceInfo {
        match self {
            Self::Cpu(cpu) => cpu.info(),
            Self::Cuda(cuda) => cuda.info(),
        }
    }

    /// Does something on it.
    pub fn run<T: OnDevice>(self, task: T) -> T::Output {
        match self {
            Self::Cpu(cpu) => task.run(cpu),
            Self::Cuda(cuda) => task.run(cuda),
        }
    }

    /// What an engine would hold on it, if the device can tell: for [`MemoryPlan::new`].
    pub fn rehearse(
        &self,
        files: ModelFiles<'_>,
        config: &EngineConfig,
        runner: (&Speculation, RunnerConfig),
    ) -> Option<Result<Held, StartError>> {
        match self {
            Self::Cpu(cpu) => rehearse(cpu, files, config, runner),
            Self::Cuda(cuda) => rehearse(cuda, files, config, runner),
        }
    }

    /// Loads a checkpoint's model and its drafter, and plans the memory. `progress` is told the bytes of each tensor
    /// as it is loaded.
    pub fn load<'a>(
        self,
        files: impl Into<ModelFiles<'a>>,
        config: EngineConfig,
        progress: &dyn Fn(u64),
    ) -> Result<Box<dyn LoadedEngine>, StartError> {
        let files = files.into();
        Ok(match self {
            Self::Cpu(cpu) => {
                // A drafter's weights may have the names of the model's: they are not looked for in its file.
                let mapping = config.packed.clone().map(|packed| cpu.mapping(packed));
                let of_model = mapping.unwrap_or_else(|| cpu.clone());
                Box::new(EngineParts::load_with((cpu, &of_model), files, config, progress)?)
            }
            Self::Cuda(cuda) => {
                let kv = config.kv_cache_dtype.unwrap_or_else(|| kv_type(files, &config));
                let cuda = cuda.with_kv(kv);
                Box::new(EngineParts::load(cuda, files, config, progress)?)
            }
        })
    }
}

/// Whether the driver lists a GPU.
fn has_gpu() -> bool {
    matches!(paceline_device_cuda::probe(), Found::Driver { gpus, .. } if !gpus.is_empty())
}

/// How a GPU stores keys and values: in full where the weights are, so that nothing is rounded on the way.
fn kv_type(files: ModelFiles<'_>, config: &EngineConfig) -> DType {
    let full = if let Some(json) = files.model.config().filter(|_| config.random_weights) {
        paceline_models::stored_type(json) == DType::F32
    } else {
        let mut matrices = files.model.tensors().filter(|tensor| tensor.shape.len() > 1);
        matrices.all(|tensor| tensor.dtype == DType::F32)
    };
    match config.dtype {
        None if full => DType::F32,
        Some(DType::F32) => DType::F32,
        _ => DType::BF16,
    }
}

/// What is done on a device, whichever it is.
pub trait OnDevice {
    /// What comes of it.
    type Output;
    /// Does it.
    fn run<B: Backend>(self, backend: B) -> Self::Output;
}

/// What is done on a device that is opened afresh for each part of it: what was allocated or failed before is gone.
pub trait OnFreshDevices {
    /// What comes of it.
    type Output;
    /// Does it.
    fn run<B: Backend>(self, openers: &Openers<B>) -> Self::Output;
}

/// Opens a device, with keys and values stored in a type where it has the choice.
pub type Open<'a, B> = dyn Fn(DType) -> Result<B, DeviceError> + 'a;

/// The ways to open a device that is judged.
pub struct Openers<B: Backend> {
    /// As engines open it.
    pub open: Box<Open<'static, B>>,
    /// Working in another way, by what is otherwise: none of them may change a bit.
    pub other_ways: Vec<(&'static str, Box<Open<'static, B>>)>,
    /// With a kernel that does not wait for the one ahead of it: as engines open the device, and with kernels one after
    /// the other. Who compares the two must find a difference.
    pub hasty: Option<[Box<Open<'static, B>>; 2]>,
    /// Enqueues what the device does not survive.
    pub lose: Option<fn(&B)>,
}

fn cpus() -> Openers<Cpu> {
    let with = |options: CpuOptions| -> Box<Open<'static, Cpu>> { Box::new(move |_| Ok(Cpu::new(options))) };
    let usual = CpuOptions::default();
    let one_thread = CpuOptions { threads: 1, ..usual };
    let portable = CpuOptions {
        instructions: Instructions::Portable,
        ..usual
    };
    Openers {
        open: with(usual),
        other_ways: vec![
            ("on one thread", with(one_thread)),
            ("in plain instructions", with(portable)),
        ],
        hasty: None,
        lose: None,
    }
}

fn gpus(ordinal: usize, kernel_cache: Option<PathBuf>) -> Openers<Cuda> {
    type Opening = fn(CudaOptions) -> Result<Cuda, DeviceError>;
    let with = |open: Opening, options: CudaOptions| -> Box<Open<'static, Cuda>> {
        Box::new(move |kv| {
            open(CudaOptions {
                kv,
                ..options.clone()
            })
        })
    };
    let usual = CudaOptions {
        ordinal,
        kernel_cache,
        ..CudaOptions::default()
    };
    let in_turn = CudaOptions {
        dependent_launch: false,
        ..usual.clone()
    };
    let without_wgmma = CudaOptions {
        wgmma: false,
        ..usual.clone()
    };
    Openers {
        open: with(Cuda::open, usual.clone()),
        other_ways: vec![
            ("without dependent launches", with(Cuda::open, in_turn.clone())),
            ("without wgmma", with(Cuda::open, without_wgmma)),
        ],
        hasty: Some([with(plants::open_hasty, usual), with(plants::open_hasty, in_turn)]),
        lose: Some(plants::lose),
    }
}

/// A model on its device with its memory planned, whichever device that is.
pub trait LoadedEngine {
    /// The device.
    fn device(&self) -> &DeviceInfo;
    /// The drafters.
    fn speculation(&self) -> &Speculation;
    /// The memory the engine will take.
    fn memory(&self) -> &MemoryPlan;
    /// Starts the step loop on its own thread.
    fn start(self: Box<Self>) -> Result<Handle, StartError>;
    /// The same for tests of what becomes of requests when step number `step` fails.
    fn start_failing(self: Box<Self>, fault: Fault, step: u64) -> Result<Handle, StartError>;
}

impl<B: Backend> LoadedEngine for EngineParts<B> {
    fn device(&self) -> &DeviceInfo {
        &self.device
    }

    fn speculation(&self) -> &Speculation {
        &self.speculation
    }

    fn memory(&self) -> &MemoryPlan {
        &self.memory
    }

    fn start(self: Box<Self>) -> Result<Handle, StartError> {
        self.start_around(|runner| runner)
    }

    fn start_failing(self: Box<Self>, fault: Fault, step: u64) -> Result<Handle, StartError> {
        self.start_around(|runner| Failing::new(runner, fault, step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_the_names_that_they_print() {
        for (text, choice) in [
            ("auto", DeviceChoice::Auto),
            ("cpu", DeviceChoice::Cpu),
            ("cuda:0", DeviceChoice::Cuda(0)),
            ("cuda:13", DeviceChoice::Cuda(13)),
        ] {
            assert_eq!(text.parse(), Ok(choice));
            assert_eq!(choice.to_string(), text);
        }
        assert_eq!("cuda".parse(), Ok(DeviceChoice::Cuda(0)));
        for text in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:0:1", "CPU"] {
            let error = text.parse::<DeviceChoice>().unwrap_err();
            assert!(error.contains("auto, cpu or cuda:N"), "{error}");
        }
    }

    #[test]
    fn what_is_not_there_is_an_error_that_says_so() {
        let open = |device| {
            Device::open(&EngineConfig {
                device,
                ..EngineConfig::default()
            })
        };
        assert_eq!(
            open(DeviceChoice::Cpu).map(|device| device.info().name).unwrap(),
            "cpu"
        );
        let automatic = if has_gpu() { "cuda:0" } else { "cpu" };
        assert_eq!(
            open(DeviceChoice::Auto).map(|device| device.info().name).unwrap(),
            automatic
        );
        let error = open(DeviceChoice::Cuda(99)).err().map(|error| error.to_string());
        let error = error.unwrap_or_default();
        assert!(error.contains("there is no cuda:99"), "{error}");
    }
}
