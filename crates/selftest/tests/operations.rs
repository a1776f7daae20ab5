//! Devices that keep the contract pass.

use paceline_device::{Backend, Checked};
use paceline_device_cpu::{Cpu, CpuOptions, Instructions};
use paceline_selftest::{Effort, OperationsConfig, Table, operations};

fn assert_passes(device: &impl Backend, seed: u64) {
    let config = OperationsConfig {
        seed,
        effort: Effort::Short,
        only: None,
    };
    let outcomes = operations(device, &config);
    let table = Table(&outcomes).to_string();
    println!("{table}");
    assert!(outcomes.iter().all(|outcome| outcome.is_ok()), "seed {seed}\n{table}");
}

#[test]
fn a_cpu_of_one_thread_without_vectors_passes() {
    let device = Cpu::new(CpuOptions {
        threads: 1,
        instructions: Instructions::Portable,
    });
    assert_passes(&device, 1);
}

#[test]
fn what_is_asked_of_a_device_keeps_the_contract() {
    assert_passes(&Checked::new(Cpu::new(CpuOptions::default())), 2);
}
