//! Judges a device: every operation against the CPU on fresh random inputs, and against itself for the bitwise law.

mod compare;
mod copies;
mod judge;
mod norms;
mod products;
mod random;
mod rig;
mod rows;
mod table;

pub use compare::Limit;
pub use judge::{Effort, OperationsConfig, Outcome, Yardstick};
pub use random::Random;
pub use table::Table;

use judge::Judge;
use paceline_device::Backend;

/// Runs every operation of a device and says how it did, group by group.
pub fn operations<B: Backend>(device: &B, config: &OperationsConfig) -> Vec<Outcome> {
    let mut judge = Judge::new(device, config);
    copies::judge(&mut judge);
    products::judge(&mut judge);
    norms::judge(&mut judge);
    judge.outcomes()
}
