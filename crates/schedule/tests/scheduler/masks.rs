//! Drafts beside a grammar: whose are verified, and what is learned of those that are not. If it were otherwise, every text
//! would still be right.

use crate::parts;
use paceline_schedule::{
    CheckedRequest, Choice, DraftPolicy, FixedDrafts, RequestId, RequestView, RowDrafts, Scheduler,
    SchedulerConfig,
};
use paceline_types::{
    Constraint, ConstraintError, DraftSource, FinishReason, Matcher, RowOutput, StepOutput, StepPlan,
    TokenId, TokenMask, Work,
};
use std::sync::{Arc, Mutex};

const CONFIG: SchedulerConfig = SchedulerConfig {
    drafts: 4,
    ..parts::CONFIG
};

const STOP: TokenId = 30;

/// Behind every text these tokens are forced, and these are refused.
#[derive(Clone, Debug, Default)]
struct Rules {
    forced: Vec<TokenId>,
    refused: Vec<TokenId>,
}

impl Constraint for Rules {
    fn matcher(&self) -> Box<dyn Matcher> {
        Box::new(self.clone())
    }
}

impl Matcher for Rules {
    fn commit(&mut self, _: &[TokenId]) -> Result<(), ConstraintError> {
        Ok(())
    }

    fn forced(&mut self, most: usize) -> Result<Vec<TokenId>, ConstraintError> {
        Ok(self.forced.iter().take(most).copied().collect())
    }

    fn masks(&mut self, drafts: &[TokenId]) -> Result<Vec<TokenMask>, ConstraintError> {
        let allowed = drafts.iter().take_while(|draft| !self.refused.contains(draft));
        Ok(vec![TokenMask::new([u32::MAX]); 1 + allowed.count()])
    }

    fn is_finished(&self) -> bool {
        false
    }
}

/// Wants all drafts, and notes how they fared.
struct Listener(Arc<Mutex<Vec<RowDrafts>>>);

impl DraftPolicy for Listener {
    fn choose(&mut self, request: &RequestView) -> Choice {
        FixedDrafts::any(CONFIG.drafts).choose(request)
    }

    fn observe_row(&mut self, _: RequestId, drafts: &RowDrafts) {
        self.0.lock().expect("one thread").push(*drafts);
    }
}

fn collect(scheduler: &mut Scheduler, plan: &StepPlan, row: RowOutput) {
    let output = StepOutput {
        step: plan.step,
        rows: vec![row],
        device_ns: (0, 1_000),
        draft_ns: 0,
        draft_passes: 0,
    };
    scheduler.collect(plan, output);
    scheduler.check_integrity();
}

fn request(constraint: Arc<dyn Constraint>) -> CheckedRequest {
    CheckedRequest {
        stop_tokens: [STOP].into(),
        constraint: Some(constraint),
        ..parts::request(1, 4, 100)
    }
}

/// The drafts of a row, and whose they are.
type Drafts = (Vec<TokenId>, Option<DraftSource>);

/// A text under these rules, behind which the device has made drafts: those that are verified, and what the policy hears of
/// them if so many are accepted.
fn decode(rules: &Rules, config: SchedulerConfig, made: &Drafts, accepted: usize) -> (Drafts, RowDrafts) {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let mut scheduler = Scheduler::with_policy(config, Box::new(Listener(Arc::clone(&heard))));
    let new = request(Arc::new(rules.clone()));
    scheduler.add(new).expect("it fits");
    let masks = |scheduler: &mut Scheduler| {
        while let Some(job) = scheduler.next_mask_job() {
            scheduler.take_masks(job.run());
        }
    };
    // The prompt up to its last token while the first mask is computed, then that one.
    let mut prompts = 0;
    let plan = loop {
        let plan = scheduler.plan(0).expect("there is work");
        let Work::Prefill { last, .. } = plan.rows[0].work else {
            break plan;
        };
        let row = RowOutput {
            tokens: vec![5; usize::from(last)],
            made: if last { made.clone() } else { Drafts::default() },
            ..RowOutput::default()
        };
        collect(&mut scheduler, &plan, row);
        masks(&mut scheduler);
        prompts += 1;
        assert!(prompts < 10, "the prompt does not end");
    };
    let given = plan.rows[0].constraint.as_ref().expect("it is constrained");
    let drafts = (given.drafts.clone(), given.source);
    assert!(given.masks.len() > drafts.0.len(), "a draft without a mask");
    assert!(matches!(plan.rows[0].work, Work::Verify { drafts: planned } if planned == drafts.0.len()));
    let row = RowOutput {
        tokens: vec![5; 1 + accepted],
        drafted: drafts.0.len(),
        source: drafts.1,
        ..RowOutput::default()
    };
    collect(&mut scheduler, &plan, row);
    let heard = heard.lock().expect("one thread");
    assert_eq!(heard.len(), 1);
    (drafts, heard[0])
}

fn neural(tokens: &[TokenId]) -> Drafts {
    (tokens.to_vec(), Some(DraftSource::Neural))
}

fn heard((planned, drafted, accepted): (usize, usize, usize), source: Option<DraftSource>) -> RowDrafts {
    RowDrafts {
        planned,
        drafted,
        accepted,
        source,
    }
}

const NEURAL: Option<DraftSource> = Some(DraftSource::Neural);

#[test]
fn forced_tokens_take_the_place_of_drafts_that_are_others() {
    let rules = Rules {
        forced: vec![1, 2],
        ..Rules::default()
    };
    let forced = (vec![1, 2], Some(DraftSource::Grammar));
    // Who made the others learns how far they were right, as though they had been verified.
    for (made, lesson) in [
        (neural(&[9]), heard((1, 1, 0), NEURAL)),
        (neural(&[1, 9, 2]), heard((2, 2, 1), NEURAL)),
        (neural(&[1]), heard((2, 1, 1), NEURAL)),
        (Drafts::default(), heard((0, 0, 0), None)),
    ] {
        assert_eq!(
            decode(&rules, CONFIG, &made, 2),
            (forced.clone(), lesson),
            "{made:?}"
        );
    }
}

#[test]
fn drafts_that_begin_with_what_is_forced_may_go_on() {
    let rules = Rules {
        forced: vec![1],
        ..Rules::default()
    };
    for made in [neural(&[1]), neural(&[1, 7, 8])] {
        let (drafts, lesson) = decode(&rules, CONFIG, &made, 1);
        assert_eq!(drafts, made);
        assert_eq!(lesson, heard((made.0.len(), made.0.len(), 1), NEURAL));
    }
    // Nothing is forced.
    let (drafts, _) = decode(&Rules::default(), CONFIG, &neural(&[7, 8]), 0);
    assert_eq!(drafts, neural(&[7, 8]));
}

/// The model would not have chosen it either: who drafts what may not come is worse than what is verified of it tells.
#[test]
fn a_refused_draft_counts_as_a_rejected_one() {
    let rules = Rules {
        refused: vec![9],
        ..Rules::default()
    };
    for (made, verified, accepted, lesson) in [
        (neural(&[1, 2, 9]), neural(&[1, 2]), 2, (3, 3, 2)),
        // Behind a rejected one nobody looks at it.
        (neural(&[1, 2, 9]), neural(&[1, 2]), 1, (2, 2, 1)),
        (neural(&[9, 1]), (vec![], None), 0, (1, 1, 0)),
        (neural(&[1, 2]), neural(&[1, 2]), 2, (2, 2, 2)),
    ] {
        let (drafts, told) = decode(&rules, CONFIG, &made, accepted);
        assert_eq!((drafts, told), (verified, heard(lesson, NEURAL)), "{made:?}");
    }
}

#[test]
fn drafts_end_before_a_stop_token_and_with_what_the_step_has_room_for() {
    let (drafts, _) = decode(&Rules::default(), CONFIG, &neural(&[1, 2, STOP, 3]), 0);
    assert_eq!(drafts, neural(&[1, 2]));
    let (drafts, _) = decode(&Rules::default(), CONFIG, &neural(&[STOP, 3]), 0);
    assert_eq!(drafts, (vec![], None));
    // Three tokens a step: the newest one and two drafts. One token: no drafts, and nobody's.
    for (max_batched_tokens, verified) in [(3, neural(&[1, 2])), (1, (vec![], None))] {
        let tight = SchedulerConfig {
            max_batched_tokens,
            ..CONFIG
        };
        let (drafts, _) = decode(&Rules::default(), tight, &neural(&[1, 2, 3, 4]), 0);
        assert_eq!(drafts, verified);
    }
}

/// Cannot go on from anywhere.
#[derive(Debug)]
struct DeadEnd;

impl Constraint for DeadEnd {
    fn matcher(&self) -> Box<dyn Matcher> {
        Box::new(Self)
    }
}

impl Matcher for DeadEnd {
    fn commit(&mut self, _: &[TokenId]) -> Result<(), ConstraintError> {
        Err(ConstraintError("nothing may come".to_owned()))
    }

    fn forced(&mut self, _: usize) -> Result<Vec<TokenId>, ConstraintError> {
        Ok(Vec::new())
    }

    fn masks(&mut self, _: &[TokenId]) -> Result<Vec<TokenMask>, ConstraintError> {
        Ok(Vec::new())
    }

    fn is_finished(&self) -> bool {
        false
    }
}

#[test]
fn a_text_that_cannot_go_on_ends_and_says_why() {
    let mut scheduler = Scheduler::new(CONFIG);
    scheduler.add(request(Arc::new(DeadEnd))).expect("it fits");
    let plan = scheduler.plan(0).expect("there is work");
    assert!(!scheduler.awaits_masks());
    let job = scheduler.next_mask_job().expect("a mask is wanted");
    assert!(scheduler.awaits_masks());
    let result = job.run();
    assert_eq!(
        result.error().map(|error| error.0.as_str()),
        Some("nothing may come")
    );
    scheduler.take_masks(result);
    assert!(!scheduler.awaits_masks());
    let ended = scheduler.take_deliveries();
    let told = (ended[0].finish, ended[0].detail.as_deref());
    assert_eq!(told, (Some(FinishReason::Constraint), Some("nothing may come")));
    collect(&mut scheduler, &plan, RowOutput::default());
    assert!(scheduler.is_idle());
}
