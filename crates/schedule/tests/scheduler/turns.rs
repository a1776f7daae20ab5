//! Turns of the loop: what each did, what it tells of its step, and when the host waits.

use crate::parts::{self, Free};
use paceline_schedule::{
    CheckedRequest, Clock, HostWaits, MaskJob, MaskResult, MaskWorkers, Pipeline, PipelineTotals, RequestId,
    RunnerFault, Scheduler, SchedulerConfig, Span, StepRecord, StepRunner,
};
use paceline_types::{Constraint, RowOutput, StepOutput, StepPlan, Work};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const CONFIG: SchedulerConfig = SchedulerConfig {
    prefix_caching: true,
    ..parts::CONFIG
};

/// Goes on by ten with every look.
#[derive(Clone, Default)]
struct Ticks(Rc<Cell<u64>>);

impl Clock for Ticks {
    fn now_ns(&self) -> u64 {
        self.0.set(self.0.get() + 10);
        self.0.get()
    }
}

/// Chooses the same token for every row that chooses one.
#[derive(Default)]
struct Constant {
    handed_back: usize,
    waits: u64,
}

impl StepRunner for Constant {
    type InFlight = StepPlan;

    fn submit(&mut self, plan: &StepPlan) -> Result<StepPlan, RunnerFault> {
        Ok(plan.clone())
    }

    fn collect(&mut self, plan: StepPlan) -> Result<StepOutput, RunnerFault> {
        self.waits += 1;
        let row = |work: &Work| RowOutput {
            tokens: vec![5; usize::from(!matches!(work, Work::Prefill { last: false, .. }))],
            ..RowOutput::default()
        };
        Ok(StepOutput {
            step: plan.step,
            rows: plan.rows.iter().map(|planned| row(&planned.work)).collect(),
            device_ns: (1_000 * plan.step, 1_000 * plan.step + 600),
            draft_ns: 7,
            draft_passes: 0,
        })
    }

    fn host_waits(&self) -> u64 {
        self.waits
    }

    fn hand_back(&mut self) {
        self.handed_back += 1;
    }
}

fn pipeline(depth: usize) -> Pipeline<Constant, Ticks> {
    Pipeline::new(
        Scheduler::new(CONFIG),
        Constant::default(),
        Ticks::default(),
        depth,
    )
}

fn request(id: u64, prompt: usize, constraint: Option<Arc<dyn Constraint>>) -> CheckedRequest {
    CheckedRequest {
        constraint,
        ..parts::request(id, prompt, prompt + 100)
    }
}

#[test]
fn a_turn_is_idle_if_it_did_nothing_at_all() {
    let mut pipeline = pipeline(2);
    let mut turn = |change: &dyn Fn(&mut Scheduler)| {
        change(pipeline.scheduler_mut());
        let stepped = pipeline.step().expect("the device works");
        let did = (
            stepped.submitted,
            stepped.collected.is_some(),
            stepped.request_outputs.len(),
        );
        assert_eq!(stepped.is_idle(), did == (false, false, 0), "{did:?}");
        did
    };
    assert_eq!(turn(&|_| ()), (false, false, 0));
    let submitted = turn(&|scheduler| scheduler.add(request(1, 8, None)).expect("it fits"));
    assert_eq!(submitted, (true, false, 0));
    assert_eq!(turn(&|_| ()), (true, true, 1));
    let cancel = |scheduler: &mut Scheduler| assert!(scheduler.cancel(RequestId(1)));
    assert_eq!(turn(&cancel), (false, true, 1));
    assert_eq!(turn(&|_| ()), (false, false, 0));
    let gone = turn(&|scheduler| {
        scheduler.add(request(1, 8, None)).expect("it fits");
        cancel(scheduler);
    });
    assert_eq!(gone, (false, false, 1));
    assert_eq!(turn(&|_| ()), (false, false, 0));
}

/// Whoever looks at a step sees the same spans that the totals are made of, one behind the other.
#[test]
fn a_record_tells_when_its_step_was_planned_submitted_waited_for_and_taken_in() {
    let mut pipeline = pipeline(2);
    for (id, prompt) in [(1, 8), (2, 30)] {
        pipeline
            .scheduler_mut()
            .add(request(id, prompt, None))
            .expect("it fits");
    }
    pipeline.step().expect("the device works");
    let record = pipeline.step().expect("the device works").collected;
    // Three looks for each step that is submitted, and four while one is taken in, the last of which is the end.
    let span = |begin| Span {
        begin,
        end: begin + 10,
    };
    let expected = StepRecord {
        step: 1,
        rows: 2,
        tokens: 38,
        in_flight: 1,
        plan: span(10),
        submit: span(20),
        waits: 1,
        wait: span(70),
        collect: span(80),
        device: (1_000, 1_600),
        draft_ns: 7,
        tokens_run: 38,
        drafted: 0,
        accepted: 0,
        bubble_ns: None,
    };
    assert_eq!(record, Some(expected));
    let second = pipeline
        .step()
        .expect("the device works")
        .collected
        .expect("it is full");
    assert_eq!(
        (second.step, second.rows, second.tokens, second.in_flight),
        (2, 2, 2, 2)
    );
    assert_eq!(second.bubble_ns, Some(400));
    let totals = PipelineTotals {
        steps: 2,
        plan_ns: 20,
        submit_ns: 20,
        collect_ns: 20,
        device_ns: 1_200,
        bubble_ns: 400,
        waits: HostWaits {
            collect: 2,
            collect_ns: 20,
            elsewhere: 0,
        },
    };
    assert_eq!(pipeline.totals(), totals);
}

#[test]
fn what_is_handed_back_is_forgotten_and_the_device_is_told() {
    let mut pipeline = pipeline(1);
    for handed_back in 1..=2 {
        pipeline
            .scheduler_mut()
            .add(request(1, 40, None))
            .expect("it fits");
        for _ in 0..3 {
            pipeline.step().expect("the device works");
        }
        assert!(pipeline.scheduler_mut().cancel(RequestId(1)));
        while !pipeline.is_idle() {
            pipeline.step().expect("the device works");
        }
        assert!(pipeline.scheduler().cache_use().cached_free_blocks > 0);
        pipeline.hand_back();
        assert_eq!(pipeline.scheduler().cache_use().cached_free_blocks, 0);
        assert_eq!(pipeline.runner().handed_back, handed_back);
    }
    assert_eq!(pipeline.scheduler().counters().prefix_hits, 0);
}

/// Never done.
struct Busy {
    jobs: Vec<MaskJob>,
    waits: Arc<AtomicUsize>,
}

impl MaskWorkers for Busy {
    fn start(&mut self, job: MaskJob) -> Option<MaskJob> {
        self.jobs.push(job);
        None
    }

    fn done(&mut self) -> Option<MaskResult> {
        None
    }

    fn wait(&mut self) {
        self.waits.fetch_add(1, Ordering::Relaxed);
    }
}

/// While others have something to run, nobody waits for a mask; when nobody has, the loop does not spin.
#[test]
fn the_host_waits_for_masks_where_there_is_nothing_else_to_do() {
    for depth in 1..=3 {
        let waits = Arc::new(AtomicUsize::new(0));
        let workers = Busy {
            jobs: Vec::new(),
            waits: Arc::clone(&waits),
        };
        let mut pipeline = pipeline(depth).with_mask_workers(Box::new(workers));
        pipeline.step().expect("the device works");
        assert_eq!(waits.load(Ordering::Relaxed), 0, "there are no masks to wait for");
        let scheduler = pipeline.scheduler_mut();
        scheduler
            .add(request(1, 8, Some(Arc::new(Free))))
            .expect("it fits");
        scheduler.add(request(2, 8, None)).expect("it fits");
        for _ in 0..20 {
            let stepped = pipeline.step().expect("the device works");
            assert!(stepped.submitted);
        }
        assert_eq!(waits.load(Ordering::Relaxed), 0, "depth {depth}: a stream runs");
        assert!(pipeline.scheduler_mut().cancel(RequestId(2)));
        while pipeline.in_flight() > 0 {
            pipeline.step().expect("the device works");
        }
        assert_eq!(
            waits.load(Ordering::Relaxed),
            0,
            "depth {depth}: steps are in flight"
        );
        for turn in 1..=3 {
            pipeline.step().expect("the device works");
            assert_eq!(waits.load(Ordering::Relaxed), turn, "depth {depth}");
        }
    }
}
