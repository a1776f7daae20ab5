//! Devices that keep the contract pass.

use paceline_device::{Backend, Checked};
use paceline_device_cpu::{Cpu, CpuOptions};
use paceline_selftest::{Effort, OperationsConfig, Outcome, Table, operations};

fn assert_passes<B: Backend>(open: impl Fn() -> B, seed: u64) {
    let config = OperationsConfig {
        seed,
        effort: Effort::Short,
        only: None,
    };
    let outcomes = operations(&|| Ok(open()), &config).expect("a CPU opens");
    let table = Table(&outcomes).to_string();
    println!("{table}");
    assert!(outcomes.iter().all(Outcome::is_ok), "seed {seed}\n{table}");
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
