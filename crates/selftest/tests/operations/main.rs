//! Devices that keep the contract pass, and one that gets a single operation wrong does not.

mod ways;
mod wrong;

use paceline_device::{Backend, Checked};
use paceline_device_cpu::{Cpu, CpuOptions};
use paceline_selftest::{
    Effort, Misses, ModelsConfig, OperationsConfig, Outcome, Yardstick, models, operations,
};
use paceline_testkit::repository;
use wrong::Wrong;

const SEED: u64 = 3;

fn judge<B: Backend>(open: impl Fn() -> B, only: Option<&str>, keep_going: bool) -> Vec<Outcome> {
    let config = OperationsConfig {
        seed: SEED,
        effort: Effort::Short,
        only: only.map(str::to_owned),
        case: None,
        keep_going,
    };
    let mut print = |outcome: &Outcome| println!("{outcome}");
    operations(&|_| Ok(open()), &config, &mut print).expect("a CPU opens")
}

fn assert_passes<B: Backend>(open: impl Fn() -> B) {
    let outcomes = judge(open, None, true);
    let missed = Misses(&outcomes).to_string();
    assert!(missed.is_empty(), "{missed}");
    assert!(outcomes.len() > 40 && outcomes.iter().all(|outcome| outcome.cases > 0));
}

#[test]
fn a_cpu_of_one_thread_passes() {
    let options = CpuOptions {
        threads: 1,
        ..CpuOptions::default()
    };
    assert_passes(|| Cpu::new(options));
}

#[test]
fn what_is_asked_of_a_device_keeps_the_contract() {
    assert_passes(|| Checked::new(Cpu::new(CpuOptions::default())));
}

/// Faults, and the line of the table where each is found.
const FAULTS: [(&str, &str); 34] = [
    ("embed", "embed"),
    ("weight", "embed"),
    ("copy", "copy"),
    ("gather", "gather"),
    ("gather_sampled", "gather_sampled"),
    ("spread", "spread"),
    ("linear", "linear f32"),
    ("first_outputs", "first_outputs"),
    ("rms_norm", "rms_norm"),
    ("add_rms_norm", "add_rms_norm"),
    ("add", "add"),
    ("activate", "activate"),
    ("gated_norm", "gated_norm"),
    ("rope_angles", "rope_angles"),
    ("store_kv", "store_kv, attention"),
    ("attention", "store_kv, attention"),
    ("causal_conv", "causal_conv"),
    ("delta_rule", "delta_rule"),
    ("state_space", "state_space"),
    ("route", "route"),
    ("run_experts", "run_experts"),
    ("prepare", "prepare, accept"),
    ("accept", "prepare, accept"),
    ("pool_states", "prepare, accept"),
    ("publish", "prepare, accept"),
    ("mark_drafting", "prepare, accept"),
    ("propose_ngram", "propose_ngram"),
    ("prepare_drafts", "prepare_drafts"),
    ("keep_block_ends", "prepare_drafts"),
    ("gather_states", "prepare_drafts"),
    ("take_drafts", "prepare_drafts"),
    ("clear_kv", "clear_kv"),
    ("sample", "sample"),
    ("sampled drafts", "sample"),
];

#[test]
fn whatever_a_device_gets_wrong_is_found_and_named() {
    for (fault, line) in FAULTS {
        let outcomes = judge(|| Wrong::new(fault), Some(line), false);
        let missed = Misses(&outcomes).to_string();
        let named = missed
            .lines()
            .any(|miss| miss.starts_with(&format!("MISS {line}")));
        assert!(named, "{fault}: {missed}");
    }
}

#[test]
fn a_difference_between_programs_is_found_where_no_tolerance_notices_it() {
    let outcomes = judge(
        || Wrong::new("rms_norm in every other program"),
        Some("rms_norm"),
        true,
    );
    let missed = |outcome: &&Outcome| outcome.yardstick == Yardstick::Law && !outcome.is_ok();
    let law = outcomes.iter().find(missed).expect("a line for the law");
    assert!(law.misses[0].contains("rows in a bucket of"), "{:?}", law.misses);
    let right = judge(|| Wrong::new("nothing"), Some("rms_norm"), true);
    assert_eq!(Misses(&right).to_string(), "");
}

#[test]
fn a_difference_between_programs_makes_requests_differ_from_themselves_alone() {
    let config = ModelsConfig {
        root: repository(),
        seed: SEED,
        mixes: 12,
        only: Some("identity".to_owned()),
    };
    let judge = |fault| models(&|_| Ok(Wrong::new(fault)), &config, &mut |_| {});
    let outcomes = judge("rms_norm in every other program");
    let missed = Misses(&outcomes).to_string();
    assert!(missed.starts_with("MISS identity of mixes, mix "), "{missed}");
    assert!(missed.contains("log-probabilities equal: false"), "{missed}");
    assert!(missed.contains("Mix { setup: Setup { model: "), "{missed}");
    assert_eq!(Misses(&judge("nothing")).to_string(), "");
}
