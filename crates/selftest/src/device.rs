//! A whole device, judged: its operations, models on it, its other ways of working, and what faults end with.
//!
//! It is called with a choice and not with a type, so that all of this is compiled here, once for each kind of device.

use crate::judge::{Effort, OperationsConfig, Outcome};
use crate::{ModelsConfig, faults, models, operations, ways};
use paceline::{DeviceChoice, OnFreshDevices, Open, Openers};
use paceline_device::{Backend, DeviceError, DeviceInfo};
use paceline_types::DType;
use std::path::PathBuf;

/// What is judged.
pub struct Judgement {
    /// Of all that is random.
    pub seed: u64,
    /// Nothing but what has this in its name.
    pub only: Option<String>,
    /// The repository with the reference models; without it no models are judged.
    pub root: Option<PathBuf>,
    /// Random mixes of requests.
    pub mixes: usize,
    /// One of the device's other ways of working, by its name.
    pub way: Option<String>,
    /// Shapes of large models with few tokens alone, also on a device that is usually faster than the host.
    pub short: bool,
    /// Of operations, nothing but cases that have this in their name.
    pub case: Option<String>,
}

/// What is told while a device is judged.
pub enum Told<'a> {
    /// The device, before anything else.
    Device(&'a DeviceInfo),
    /// How one line did.
    Outcome(&'a Outcome),
}

/// Why a device cannot be judged.
#[derive(Debug, thiserror::Error)]
pub enum JudgementError {
    /// It does not open, or has no memory for it.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// It does not work in this way.
    #[error("--way is {way}; it must be one of: {}", known.join(", "))]
    Way {
        /// What was asked for.
        way: String,
        /// What there is.
        known: Vec<&'static str>,
    },
}

/// Judges a device. Kernels that it compiles are kept in `kernel_cache`.
pub fn judge(
    device: DeviceChoice,
    kernel_cache: Option<PathBuf>,
    judgement: Judgement,
    report: &mut dyn FnMut(Told<'_>),
) -> Result<Vec<Outcome>, JudgementError> {
    device.run_afresh(kernel_cache, Task { judgement, report })
}

struct Task<'a> {
    judgement: Judgement,
    report: &'a mut dyn FnMut(Told<'_>),
}

impl OnFreshDevices for Task<'_> {
    type Output = Result<Vec<Outcome>, JudgementError>;

    fn run<B: Backend>(self, openers: &Openers<B>) -> Self::Output {
        let Judgement {
            seed,
            only,
            root,
            mixes,
            way,
            short,
            case,
        } = self.judgement;
        let open = opener(openers, way)?;
        let info = open(DType::F32)?.info();
        (self.report)(Told::Device(&info));
        let mut report = |outcome: &Outcome| (self.report)(Told::Outcome(outcome));
        let config = OperationsConfig {
            seed,
            effort: if short || info.shares_host_memory {
                Effort::Short
            } else {
                Effort::Whole
            },
            only: only.clone(),
            case,
            keep_going: true,
        };
        let mut outcomes = operations(open, &config, &mut report)?;
        if let Some(root) = root {
            let config = ModelsConfig {
                root,
                seed,
                mixes,
                only,
            };
            outcomes.extend(models(open, &config, &mut report));
            outcomes.extend(ways(openers, &config, &mut report));
            outcomes.extend(faults(openers, &config, &mut report));
        }
        Ok(outcomes)
    }
}

/// The device as it is asked for: as engines open it, or working in another way.
fn opener<B: Backend>(
    openers: &Openers<B>,
    way: Option<String>,
) -> Result<&Open<'static, B>, JudgementError> {
    let Some(way) = way else { return Ok(&*openers.open) };
    let known = openers.other_ways.iter().find(|(name, _)| *name == way);
    known.map(|(_, open)| &**open).ok_or_else(|| JudgementError::Way {
        way,
        known: openers.other_ways.iter().map(|(name, _)| *name).collect(),
    })
}
