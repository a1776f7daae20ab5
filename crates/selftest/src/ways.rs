//! A device that works in another way: kernels one after the other, fewer instructions, fewer threads. No program may say
//! anything else for it.

use crate::judge::{Outcome, Yardstick, guarded};
use crate::mixes::{Bench, Opened, Programs, Said};
use crate::models::ModelsConfig;
use paceline::{Open, Openers};
use paceline_device::Backend;
use paceline_runner::RowsRead;
use paceline_types::DType;

/// A hybrid model, a dense one and the default model; then hybrids of other kinds, one with experts, and full precision.
/// Some draft with a part of their vocabulary.
const MODELS: [(&str, Option<DType>, RowsRead); 8] = [
    ("qwen3_5", Some(DType::BF16), RowsRead::Whole),
    ("llama", Some(DType::BF16), RowsRead::Whole),
    ("storyteller", None, RowsRead::Part(1000)),
    ("qwen3_5_moe", Some(DType::BF16), RowsRead::Part(100)),
    ("granite_h", Some(DType::BF16), RowsRead::Whole),
    ("falcon_h1", Some(DType::BF16), RowsRead::Part(128)),
    ("qwen3", Some(DType::BF16), RowsRead::Whole),
    ("qwen3_5", None, RowsRead::Part(129)),
];
/// Of these, what a slow device has the time for.
const FEW: usize = 3;

/// Runs every program in every way that a device has, and compares all that they say. On a device with a fault for it, shows
/// that a missing wait is found like this. `report` is told how each way did as soon as it is through.
pub fn ways<B: Backend>(
    openers: &Openers<B>,
    config: &ModelsConfig,
    report: &mut dyn FnMut(&Outcome),
) -> Vec<Outcome> {
    let wanted = |name: &str| config.only.as_ref().is_none_or(|only| name.contains(only));
    let mut outcomes = Vec::new();
    let mut close = |outcome: Outcome| {
        report(&outcome);
        outcomes.push(outcome);
    };
    let mut usual: Vec<Option<Result<Vec<Said>, String>>> = vec![None; MODELS.len()];
    for (way, open) in &openers.other_ways {
        let name = format!("ways: {way}");
        if !wanted(&name) {
            continue;
        }
        let mut outcome = Outcome::new(&name, Yardstick::Law);
        for (index, programs) in programs(&openers.open).into_iter().enumerate() {
            let case = case(&programs);
            let usual = usual[index].get_or_insert_with(|| run(&openers.open, config, &programs));
            match (usual, run(open, config, &programs)) {
                (Ok(usual), Ok(found)) => {
                    outcome.cases += found.len();
                    if let Some(why) = difference(usual, &found) {
                        outcome.miss(&case, &why);
                    }
                }
                (Err(why), _) => outcome.miss(&case, why),
                (_, Err(why)) => outcome.miss(&case, &why),
            }
        }
        close(outcome);
    }
    let name = "planted: a missing wait";
    if let Some([hasty, in_turn]) = openers.hasty.as_ref().filter(|_| wanted(name)) {
        let mut outcome = Outcome::new(name, Yardstick::Law);
        let mut found = false;
        for programs in programs(&openers.open) {
            outcome.cases += 1;
            match (run(in_turn, config, &programs), run(hasty, config, &programs)) {
                // An error word finds it as well.
                (Ok(expected), raced) => found |= raced.as_ref() != Ok(&expected),
                (Err(why), _) => outcome.miss(&case(&programs), &why),
            }
        }
        if !found {
            outcome.miss("every model", "nothing shows that a kernel does not wait");
        }
        close(outcome);
    }
    outcomes
}

/// What is compared: the sizes at which kernels change, where the device is fast enough for them.
fn programs<B: Backend>(open: &Open<'_, B>) -> Vec<Programs> {
    let slow = open(DType::F32).is_ok_and(|device| device.info().shares_host_memory);
    let (tokens, slots, count) = if slow {
        (32, 4, FEW)
    } else {
        (1024, 16, MODELS.len())
    };
    let models = MODELS.into_iter().take(count);
    let programs = models.map(|(model, dtype, rows_read)| Programs {
        model,
        dtype,
        rows_read,
        tokens,
        slots,
    });
    programs.collect()
}

fn case(programs: &Programs) -> String {
    let stored = programs.dtype.map_or("as stored", DType::name);
    format!("{} {stored}", programs.model)
}

fn run<B: Backend>(
    open: &Open<'_, B>,
    config: &ModelsConfig,
    programs: &Programs,
) -> Result<Vec<Said>, String> {
    let bench = Bench::new(Opened(open), config.root.clone());
    guarded(|| bench.every_program(programs))
}

/// The first row that is not the same.
fn difference(usual: &[Said], found: &[Said]) -> Option<String> {
    if usual.len() != found.len() {
        return Some(format!("{} launches, not {}", found.len(), usual.len()));
    }
    let (usual, found) = usual.iter().zip(found).find(|(usual, found)| usual != found)?;
    let shape = usual.shape;
    let rows = usual.rows.iter().zip(&found.rows);
    let (index, (usual, found)) = rows.enumerate().find(|(_, (usual, found))| usual != found)?;
    Some(format!("{shape:?}, row {index}\n  is  {found}\n  not {usual}"))
}
