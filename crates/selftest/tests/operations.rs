//! Devices that keep the contract pass.

use paceline_device::{Backend, Checked};
use paceline_device_cpu::{Cpu, CpuOptions};
use paceline_selftest::{Effort, Misses, OperationsConfig, Outcome, operations};

fn assert_passes<B: Backend>(open: impl Fn() -> B, seed: u64) {
    let config = OperationsConfig {
        seed,
        effort: Effort::Short,
        only: None,
    };
    let mut print = |outcome: &Outcome| println!("{outcome}");
    let outcomes = operations(&|_| Ok(open()), &config, &mut print).expect("a CPU opens");
    let missed = Misses(&outcomes).to_string();
    assert!(missed.is_empty(), "seed {seed}\n{missed}");
    assert!(outcomes.len() > 40 && outcomes.iter().all(|outcome| outcome.cases > 0));
}

#[test]
fn a_cpu_of_one_thread_passes() {
    let options = CpuOptions {
        threads: 1,
        ..CpuOptions::default()
    };
    assert_passes(|| Cpu::new(options), 1);
}

#[test]
fn what_is_asked_of_a_device_keeps_the_contract() {
    assert_passes(|| Checked::new(Cpu::new(CpuOptions::default())), 2);
}
