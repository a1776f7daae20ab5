//! What must hold for every plan, whatever happened before.

use paceline_schedule::SchedulerConfig;
use paceline_types::{PlanRow, StepPlan, Work};
use std::collections::HashSet;

pub fn check_plan(plan: &StepPlan, config: &SchedulerConfig) {
    assert!(!plan.rows.is_empty(), "an empty step");
    assert!(
        plan.tokens() <= config.max_batched_tokens,
        "{} tokens",
        plan.tokens()
    );
    assert!(plan.samples() <= config.max_samples, "{} samples", plan.samples());
    let masks: usize = plan.rows.iter().map(PlanRow::masks).sum();
    assert!(masks <= config.max_masks, "{masks} masks");
    let slots: HashSet<_> = plan.rows.iter().map(|row| row.slot).collect();
    assert_eq!(slots.len(), plan.rows.len(), "two rows for a slot");
    let decodes = plan
        .rows
        .iter()
        .take_while(|row| matches!(row.work, Work::Verify { .. }))
        .count();
    let rest_is_prefill =
        |rows: &[paceline_types::PlanRow]| rows.iter().all(|row| !matches!(row.work, Work::Verify { .. }));
    assert!(rest_is_prefill(&plan.rows[decodes..]), "a decode behind a prompt");
    for admission in &plan.admissions {
        let starts = |row: &&paceline_types::PlanRow| {
            row.slot == admission.slot
                && row.generation == admission.generation
                && matches!(row.work, Work::Prefill { start, .. } | Work::Embed { start, .. }
                    if start == admission.cached_tokens)
        };
        assert_eq!(
            plan.rows.iter().filter(starts).count(),
            1,
            "an admission without its first row"
        );
    }
    // A state must not be written in the step that starts from it, nor twice.
    let mut places = HashSet::new();
    for row in &plan.rows {
        let Some(snapshot) = row.snapshot else { continue };
        assert!(config.recurrent.is_some(), "a state for a model without any");
        assert!(
            places.insert(snapshot.id),
            "{:?} is written by two rows",
            snapshot.id
        );
        if let Work::Prefill { start, tokens, .. } | Work::Embed { start, tokens, .. } = &row.work {
            let reached = *start < snapshot.position && snapshot.position <= start + tokens.len();
            assert!(reached, "a prompt's row does not reach its state");
        }
    }
    let restored: Vec<_> = plan
        .admissions
        .iter()
        .filter_map(|admission| admission.restore)
        .collect();
    assert!(
        restored.iter().all(|id| !places.contains(id)),
        "a state is read and written in one step"
    );
    // A block may be new in one table only, unless it came with a cached prefix.
    let mut fresh = HashSet::new();
    for row in &plan.rows {
        let cached = plan
            .admissions
            .iter()
            .find(|admission| admission.slot == row.slot);
        let cached = cached.map_or(0, |admission| admission.cached_tokens / config.block_size);
        for (place, block) in &row.new_blocks {
            assert!((block.0 as usize) < config.num_blocks);
            assert!(
                (*place as usize) < cached || fresh.insert(*block),
                "{block:?} is new to two requests"
            );
        }
    }
}
