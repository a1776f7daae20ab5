//! The kernels of a step, by program, on a GPU that nobody has to have: a kernel that is no longer chosen, or that has less of
//! the GPU than it had, gives the same text, only later. `PACELINE_BLESS=1` writes the lists anew.

use paceline::{DraftVocabulary, EngineConfig, EngineParts, SpeculationConfig, SpeculationMethod};
use paceline_device_cuda::{Cuda, CudaOptions, CudaProgram, Gpu};
use paceline_runner::{DeviceRunner, Shape};
use paceline_weights::Checkpoint;
use std::fmt::Write as _;

/// An H200.
fn gpu() -> Cuda {
    let gpu = Gpu {
        ordinal: 0,
        name: "NVIDIA H200".to_owned(),
        capability: (9, 0),
        memory: 140 << 30,
        multiprocessors: 132,
    };
    Cuda::rehearse(gpu, CudaOptions::default()).unwrap()
}

/// A program in lines: how often each kernel runs, with its thread blocks, their threads and their shared memory, and whether it
/// leaves its result as inputs of the next product alone, in the order in which kernels run for the first time.
fn listed(program: &CudaProgram) -> String {
    let kernels = program.kernels();
    let mut counts: Vec<(_, usize)> = Vec::new();
    for kernel in &kernels {
        match counts.iter_mut().find(|(known, _)| known == kernel) {
            Some((_, count)) => *count += 1,
            None => counts.push((*kernel, 1)),
        }
    }
    let mut text = format!("{} kernels\n", kernels.len());
    for (kernel, count) in counts {
        let blocks = kernel.blocks.map(|blocks| blocks.to_string()).join("x");
        let blocks = blocks.trim_end_matches("x1");
        let (name, threads, shared) = (kernel.name, kernel.threads, kernel.shared);
        let late = if kernel.late { ", late" } else { "" };
        let spares = if kernel.spares { ", rounded alone" } else { "" };
        writeln!(
            text,
            "{count:>5} {name:<28} {blocks:>9} of {threads:>4} threads, {shared:>6} bytes{late}{spares}"
        )
        .unwrap();
    }
    text
}

/// The programs of steps with 1, 16, 64 and 256 token rows and of a prompt of 1024, without drafts or with as many as there may be.
fn programs(runner: &DeviceRunner<Cuda>) -> String {
    let set = runner.programs();
    let most = set.shapes()[0].draft_forwards;
    let wanted = |shape: &&Shape| {
        let tokens = if shape.prompts {
            shape.tokens == 1024
        } else {
            [1, 16, 64, 256].contains(&shape.tokens)
        };
        tokens && shape.draft_forwards == most
    };
    let mut text = String::new();
    for shape in set.shapes().iter().rev().filter(wanted) {
        let Shape {
            tokens,
            draft_forwards,
            prompts,
            ..
        } = shape;
        let what = if *prompts { "with prompts" } else { "decode" };
        let program = listed(set.get(*shape).unwrap());
        write!(
            text,
            "{what}, {tokens} token rows, {draft_forwards} draft forwards: {program}"
        )
        .unwrap();
    }
    text
}

fn compare(model: &str, speculation: SpeculationMethod, list: &str) {
    let repository = paceline_testkit::repository();
    let config = EngineConfig {
        random_weights: true,
        max_num_seqs: 256,
        max_num_batched_tokens: 1024,
        max_model_len: Some(8192),
        speculation: SpeculationConfig {
            method: speculation,
            draft_tokens: (speculation == SpeculationMethod::Mtp).then_some(3),
            draft_vocabulary: DraftVocabulary::Whole,
            ..SpeculationConfig::default()
        },
        ..EngineConfig::default()
    };
    let checkpoint = Checkpoint::config_only(&repository.join("benchmarks/configs").join(model)).unwrap();
    let parts = EngineParts::load(gpu(), &checkpoint, config, &|_| {}).unwrap();
    let mut found = String::new();
    parts
        .start_around(|runner| {
            found = programs(&runner);
            runner
        })
        .unwrap();
    let path = repository.join("crates/paceline/tests/kernels").join(list);
    if std::env::var_os("PACELINE_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    let place = found
        .lines()
        .zip(expected.lines())
        .find(|(found, expected)| found != expected);
    assert!(
        found == expected,
        "{list} says otherwise (PACELINE_BLESS=1 makes it anew), first here: {place:?}"
    );
}

#[test]
fn decode_steps_run_the_kernels_that_they_are_known_to_run() {
    compare("qwen3.5-4b.json", SpeculationMethod::Off, "qwen3.5-4b.txt");
}

#[test]
fn steps_that_draft_run_the_kernels_that_they_are_known_to_run() {
    compare("qwen3.5-4b.json", SpeculationMethod::Mtp, "qwen3.5-4b-mtp.txt");
}

#[test]
fn steps_of_8_bit_weights_run_the_kernels_that_they_are_known_to_run() {
    compare(
        "qwen3.5-4b-fp8.json",
        SpeculationMethod::Off,
        "qwen3.5-4b-fp8.txt",
    );
}

#[test]
fn steps_of_mixtures_and_of_mamba2_run_the_kernels_that_they_are_known_to_run() {
    for model in ["qwen3.5-35b-a3b", "nemotron-h-8b"] {
        compare(
            &format!("{model}.json"),
            SpeculationMethod::Off,
            &format!("{model}.txt"),
        );
    }
}
