//! Judges a device: every operation against the CPU on fresh random inputs, and against itself for the bitwise law.

mod attention;
mod compare;
mod copies;
mod drafts;
mod experts;
mod frame;
mod judge;
mod mixers;
mod norms;
mod play;
mod products;
mod random;
mod recurrences;
mod rig;
mod rows;
mod sampling;
mod scene;
mod sequence;
mod stage;
mod table;

pub use compare::Limit;
pub use judge::{Effort, Open, OperationsConfig, Outcome, Yardstick};
pub use random::Random;
pub use table::Table;

use judge::Judge;
use paceline_device::{Backend, DeviceError};

/// Runs every operation of a device and says how it did, group by group.
pub fn operations<B: Backend>(
    open: &Open<'_, B>,
    config: &OperationsConfig,
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
    for group in groups {
        group(&mut judge);
        judge.close();
    }
    Ok(judge.outcomes())
}
