//! What depth control learns and decides, on its smallest cases.

use super::*;

#[test]
fn requests_that_have_ended_are_forgotten() {
    let mut control = DepthControl::new();
    for id in 0..10 {
        control.choose(&RequestView {
            id: RequestId(id),
            stage: Stage::PromptEnd,
            known: 8,
            upper_bound: 8,
            ready: 0,
            most: DraftBudget { ngram: 3, neural: 3 },
        });
    }
    assert_eq!(control.requests.len(), 10);
    for id in 0..10 {
        control.forget(RequestId(id));
    }
    assert!(control.requests.is_empty());
}

/// A drafter that has not seen a prompt fares as it may.
#[test]
fn how_requests_differ_is_learned_from_those_whose_prompt_the_drafter_has_seen() {
    let learned = |blind: bool| {
        let mut control = DepthControl::new();
        control.choose(&RequestView {
            id: RequestId(0),
            stage: Stage::PromptEnd,
            known: 8,
            upper_bound: 8,
            ready: 0,
            most: DraftBudget { ngram: 3, neural: 3 },
        });
        let record = control.requests.get_mut(&RequestId(0)).expect("it was met");
        record.blind = blind;
        for chain in &mut record.chains {
            (0..20).for_each(|_| chain.observe(1, 0, None));
        }
        control.forget(RequestId(0));
        control.differ.map(|differ| differ != Differences::UNKNOWN)
    };
    assert_eq!((learned(false), learned(true)), ([true, true], [true, false]));
}

/// Texts of a kind repeat themselves or do not, so a newcomer is expected to fare like those before it.
#[test]
fn a_newcomer_expects_look_ups_to_find_what_they_found_for_others() {
    let mut control = DepthControl::new();
    let mut tell = |id: u64, source: Option<DraftSource>| {
        let view = |stage, ready| RequestView {
            id: RequestId(id),
            stage,
            known: 8,
            upper_bound: 8,
            ready,
            most: DraftBudget { ngram: 3, neural: 0 },
        };
        control.choose(&view(Stage::PromptEnd, 0));
        let newcomer = control.requests[&RequestId(id)].found;
        control.plain = false;
        for _ in 0..400 {
            control.choose(&view(Stage::Decode, 3));
            let drafted = if source.is_some() { 3 } else { 0 };
            let row = RowDrafts {
                planned: 3,
                drafted,
                accepted: drafted,
                source,
            };
            control.observe_row(RequestId(id), &row);
        }
        newcomer
    };
    let expected = [
        tell(1, None),
        tell(2, Some(DraftSource::Ngram)),
        tell(3, Some(DraftSource::Ngram)),
    ];
    assert!(
        expected[0] == UNTRIED_LOOKUP && expected[1] < 0.1 && expected[2] > 0.9,
        "{expected:?}"
    );
}

/// Where texts are not looked up, every request has need for the neural drafter, from its first plan row on; and where there is
/// no neural drafter, none is hoped for.
#[test]
fn a_source_that_there_is_not_is_not_reckoned_with() {
    for (most, drafts) in [
        (DraftBudget { ngram: 0, neural: 3 }, true),
        (DraftBudget { ngram: 3, neural: 0 }, false),
    ] {
        let (mut control, mut costs) = (DepthControl::new(), StepCosts::default());
        // A draft pays if it is needed each time, and does not if it is needed every other time.
        for (tokens, ns) in [(1, 10_000), (2, 13_000), (3, 16_000), (4, 19_000)].repeat(100) {
            costs.observe(&StepTimes {
                decodes: 1,
                decode_tokens: tokens,
                wanted: (0, 1),
                device_ns: ns + 4_000,
                draft_ns: 4_000,
                draft_passes: 1,
                ..StepTimes::default()
            });
        }
        let view = |stage| RequestView {
            id: RequestId(1),
            stage,
            known: 8,
            upper_bound: 8,
            ready: 0,
            most,
        };
        control.choose(&view(Stage::PromptEnd));
        control.begin_step(1, &costs);
        // Whatever was thought of it before.
        control.verdict = Verdict::PLAIN;
        control.choose(&view(Stage::Decode));
        control.begin_step(1, &costs);
        let forwards = [control.newcomer, control.verdict].map(|verdict| verdict.draft_forwards > 0);
        assert_eq!(forwards, [drafts; 2], "{most:?}");
    }
}

/// What drafts gain in a batch of a size that was never measured cannot be told, so its first steps verify none.
#[test]
fn batches_of_unknown_cost_verify_no_drafts() {
    let (mut control, mut costs) = (DepthControl::new(), StepCosts::default());
    let view = |stage, ready| RequestView {
        id: RequestId(1),
        stage,
        known: 8,
        upper_bound: 8,
        ready,
        most: DraftBudget { ngram: 0, neural: 3 },
    };
    let verified = |control: &mut DepthControl, costs: &StepCosts, decodes| {
        control.begin_step(decodes, costs);
        control.choose(&view(Stage::Decode, 3)).verify
    };
    control.choose(&view(Stage::PromptEnd, 0));
    for _ in 0..20 {
        let drafts = verified(&mut control, &costs, 1);
        let row = RowDrafts {
            planned: drafts,
            drafted: drafts,
            accepted: drafts,
            source: Some(DraftSource::Neural),
        };
        control.observe_row(RequestId(1), &row);
        costs.observe(&StepTimes {
            decodes: 1,
            decode_tokens: 1 + drafts,
            drafted: drafts,
            accepted: drafts,
            device_ns: 10_000 + 10 * drafts as u64,
            ..StepTimes::default()
        });
    }
    assert_eq!(verified(&mut control, &costs, 1), 3);
    // A step of forced drafts alone asks nothing here, so what counts behind it is what newcomers can expect.
    control.begin_step(1, &costs);
    assert_eq!(verified(&mut control, &costs, 64), 0);
}
