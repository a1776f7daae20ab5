//! The kernels of the GPU, run by the emulator and judged as on a device.
//!
//! By default a part of the judge runs, on a device of few multiprocessors; with `PACELINE_TEST_LONG` all of it that ends in minutes,
//! in other orders of warps too.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

#[path = "../common/mod.rs"]
mod common;
mod gpu;
mod plants;

use common::{stderr, stdout};
use gpu::{Emulator, is_long};
use std::process::Command;

/// Runs the judge, and says what it found where that is not all as it should be.
fn passes(command: &mut Command) {
    let output = command.output().unwrap();
    let text = stdout(&output);
    assert!(output.status.success(), "{command:?}\n{text}{}", stderr(&output));
    assert!(text.contains("emulator of a GPU"), "{text}");
}

/// Judges lines of the table, each by what is in its name and, in tests that are short, in those of its cases.
fn judges(lines: &[(&str, &str)]) {
    let Some(emulator) = Emulator::new() else { return };
    for (only, case) in lines {
        let mut command = emulator.selftest(only);
        if !is_long() {
            command.args(["--case", case]);
        }
        passes(&mut command);
    }
}

#[test]
fn copies_and_tables_are_right() {
    judges(&[
        ("embed", ""),
        ("copy", ""),
        ("gather", ""),
        ("spread", ""),
        ("rope_angles", ""),
    ]);
}

#[test]
fn products_of_floats_are_right() {
    judges(&[("linear f32", ""), ("linear bf16", ""), ("linear f16", "")]);
}

#[test]
fn products_of_quantised_weights_are_right() {
    judges(&[
        ("linear gguf", ""),
        ("linear f8", ""),
        ("first_outputs", "first 129 "),
    ]);
}

#[test]
fn products_and_what_is_behind_them_are_right() {
    judges(&[("linear_activate", ""), ("linear_add_norm", "[45, ")]);
}

#[test]
fn norms_and_activations_are_right() {
    judges(&[("rms_norm", ""), ("gated_norm", ""), ("activate", "")]);
}

#[test]
fn attention_is_right() {
    let Some(emulator) = Emulator::new() else { return };
    let cases: &[_] = if is_long() {
        // All shapes in all cuts would take an hour.
        &[
            ("attention bf16", "blocks of"),
            ("attention bf16", "2 heads"),
            ("attention f32", "blocks of 8"),
        ]
    } else {
        &[("attention bf16", "blocks of 8")]
    };
    for (only, case) in cases {
        passes(emulator.selftest(only).args(["--case", case]));
    }
}

#[test]
fn recurrences_are_right() {
    judges(&[("causal_conv", "up to 3 "), ("delta_rule", "up to 3 ")]);
}

#[test]
fn recurrent_layers_in_few_kernels_are_right() {
    judges(&[("mix_delta", "up to 3 ")]);
}

#[test]
fn recurrent_layers_of_state_spaces_are_right() {
    judges(&[("mix_state_space", "up to 3 ")]);
}

#[test]
fn experts_are_right() {
    judges(&[("route", ""), ("run_experts bf16", ""), ("run_experts f8", "")]);
}

#[test]
fn steps_and_drafts_are_right() {
    judges(&[("prepare", ""), ("propose_ngram", ""), ("take_drafts", "")]);
}

#[test]
fn a_device_of_more_multiprocessors_has_other_kernels_and_they_are_right() {
    let Some(emulator) = Emulator::new() else { return };
    let mut command = emulator.selftest("mix_delta");
    command.args(["--case", "up to 3 "]);
    passes(command.env("PACELINE_EMULATOR_MULTIPROCESSORS", "132"));
}

#[test]
fn models_say_what_their_references_said() {
    let Some(emulator) = Emulator::new() else { return };
    // Both are mixtures of experts: one with states of the delta rule, one with state spaces.
    let few = ["golden qwen3_5_moe", "golden granite_h_moe"];
    for models in if is_long() { &["golden"][..] } else { &few } {
        passes(&mut emulator.selftest(models));
    }
}

#[test]
fn requests_in_mixes_get_what_they_get_alone() {
    let Some(emulator) = Emulator::new() else { return };
    let mixes = if is_long() { "20" } else { "1" };
    passes(emulator.selftest("identity").args(["--mixes", mixes]));
}

#[test]
fn the_order_of_warps_and_copies_changes_nothing() {
    let Some(emulator) = Emulator::new() else { return };
    for seed in 1..=if is_long() { 8 } else { 1 } {
        for copies in ["early", "random"] {
            let mut command = emulator.selftest("mix_delta");
            command
                .env("PACELINE_EMULATOR_SEED", seed.to_string())
                .env("PACELINE_EMULATOR_COPIES", copies);
            passes(command.args(["--case", "up to 3 "]));
        }
    }
}

#[test]
fn samples_are_right() {
    if is_long() {
        judges(&[("sample", "")]);
    }
}
