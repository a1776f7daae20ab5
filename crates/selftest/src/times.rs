//! The device's clock: steps come one after the other, between the moments at which the host hands them over and has them back.

use crate::mixes::{Asked, Bench, Devices, Drafter, Setup};
use paceline_schedule::StepRecord;
use paceline_types::SamplingParams;

/// What the two clocks may be apart: they were set against each other once, when the device was opened.
const APART_NS: u64 = 200_000;
/// Requests at a time, and tokens of each.
const BATCH: usize = 3;
const TOKENS: usize = 60;

/// Steps of the default model with its own drafter, and what is wrong with the times of each.
pub(crate) fn judge<D: Devices>(bench: &Bench<D>) -> (usize, Vec<(String, String)>) {
    let setup = Setup {
        drafter: Drafter::Mtp,
        drafts: 3,
        depth: 2,
        batch: BATCH,
        ..Setup::plain("storyteller")
    };
    let request = |seed: usize| {
        let params = SamplingParams {
            temperature: 0.0,
            max_tokens: TOKENS,
            ignore_eos: true,
            ..SamplingParams::default()
        };
        Asked::new((1..40).map(|token| token + seed as u32).collect(), params)
    };
    let requests: Vec<Asked> = (0..BATCH).map(request).collect();
    let steps = bench.steps(&setup, &requests);
    let before = std::iter::once(None).chain(steps.iter().map(Some));
    let wrong = before.zip(&steps).filter_map(|(before, step)| {
        let why = complaint(before, step)?;
        Some((format!("step {}", step.step), why))
    });
    (steps.len(), wrong.collect())
}

/// What cannot be of the times of a step.
fn complaint(before: Option<&StepRecord>, step: &StepRecord) -> Option<String> {
    let ((begin, end), handed, back) = (step.device, step.submit.begin, step.wait.end);
    let last = before.map_or(0, |before| before.device.1);
    let why = if end <= begin {
        "ends before it begins"
    } else if begin < last {
        "begins before the one ahead of it ends"
    } else if begin + APART_NS < handed {
        "begins before it is handed over"
    } else if end > back + APART_NS {
        "ends after the host has its record"
    } else if step.draft_ns > end - begin {
        "drafts for longer than it takes"
    } else if step.waits != 1 {
        "is not waited for once"
    } else {
        return None;
    };
    Some(format!(
        "it {why}: {begin}..{end} ns on the device behind {last}, {handed}..{back} on the host, {} ns of drafts, {} waits",
        step.draft_ns, step.waits
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_schedule::Span;

    fn step(device: (u64, u64), draft_ns: u64) -> StepRecord {
        StepRecord {
            device,
            draft_ns,
            waits: 1,
            submit: Span {
                begin: 1_000_000,
                end: 1_010_000,
            },
            wait: Span {
                begin: 1_020_000,
                end: 3_000_000,
            },
            ..StepRecord::default()
        }
    }

    #[test]
    fn times_that_cannot_be_are_found() {
        let before = step((900_000, 1_500_000), 10);
        let of = |step: &StepRecord| complaint(Some(&before), step);
        assert_eq!(of(&step((1_500_000, 2_900_000), 400)), None);
        assert_eq!(complaint(None, &before), None);
        for (device, draft_ns, part) in [
            ((1_600_000, 1_600_000), 0, "ends before it begins"),
            ((1_499_999, 2_000_000), 0, "ahead of it ends"),
            ((1_600_000, 3_300_000), 0, "has its record"),
            ((1_600_000, 2_000_000), 400_001, "longer than it takes"),
        ] {
            let why = of(&step(device, draft_ns)).unwrap_or_default();
            assert!(why.contains(part), "{device:?}: {why}");
        }
        let early = complaint(None, &step((700_000, 2_000_000), 0)).unwrap_or_default();
        assert!(early.contains("handed over"), "{early}");
        let twice = StepRecord {
            waits: 2,
            ..step((1_600_000, 2_000_000), 0)
        };
        assert!(of(&twice).is_some_and(|why| why.contains("2 waits")));
    }
}
