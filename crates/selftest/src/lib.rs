//! Judges a device: every operation against the CPU on fresh random inputs, and against itself for the bitwise law.

mod attention;
mod compare;
mod copies;
mod device;
mod drafts;
mod experts;
mod faults;
mod frame;
mod judge;
mod mixers;
pub mod mixes;
mod models;
mod norms;
mod play;
mod products;
mod recurrences;
mod rig;
mod rows;
mod sampling;
mod scene;
mod sequence;
mod stage;
pub mod stories;
mod table;
mod times;
mod ways;

pub use compare::Limit;
pub use device::{Judgement, JudgementError, Told, judge};
pub use faults::faults;
pub use judge::{Effort, OperationsConfig, Outcome, Yardstick};
pub use models::{ModelsConfig, models};
pub use table::{Header, Misses};
pub use ways::ways;

/// A model that runs over given tokens, in a plain loop.
pub use paceline_testkit::Solo;

/// Seeded random numbers.
pub use paceline_testkit::Random;

use judge::Judge;
use paceline::Open;
use paceline_device::{Backend, DeviceError};

/// Runs every operation of a device, group by group. `report` is told how each did as soon as its group is through.
pub fn operations<B: Backend>(
    open: &Open<'_, B>,
    config: &OperationsConfig,
    report: &mut dyn FnMut(&Outcome),
) -> Result<Vec<Outcome>, DeviceError> {
    let mut judge = Judge::new(open, config)?;
    let groups = [
        copies::judge,
        products::judge,
        norms::judge,
        attention::judge,
        recurrences::judge,
        experts::judge,
        frame::judge,
        drafts::judge,
        sampling::judge,
    ];
    let mut reported = 0;
    for group in groups {
        group(&mut judge);
        judge.close();
        judge.outcomes()[reported..].iter().for_each(&mut *report);
        reported = judge.outcomes().len();
    }
    Ok(judge.into_outcomes())
}
