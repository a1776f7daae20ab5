//! The worker pool and the stream under every interleaving (up to a number of preemptions) that the memory model
//! allows. Unsynchronised cells stand for the device's memory: any race on them is a failure, and so is a thread
//! that is never woken.

use crate::pool::Pool;
use crate::simd::Instructions;
use crate::stream::{CpuRead, Stream};
use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::{Condvar, Mutex};
use paceline_device::Pending;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// Explores a scenario; `preemptions` is how often a thread may be interrupted where it could go on.
fn explore(preemptions: usize, scenario: impl Fn() + Send + Sync + 'static) {
    let mut model = Builder::new();
    model.preemption_bound = Some(preemptions);
    model.max_branches = 20_000;
    model.check(scenario);
}

/// Device memory: written without synchronisation, races are caught.
struct Memory(Vec<UnsafeCell<usize>>);

// SAFETY: what is to be shown; the model checker fails on a race.
unsafe impl Sync for Memory {}
// SAFETY: as above.
unsafe impl Send for Memory {}

impl Memory {
    fn new(len: usize) -> Arc<Self> {
        Arc::new(Self((0..len).map(|_| UnsafeCell::new(0)).collect()))
    }

    fn add(&self, place: usize, value: usize) {
        // SAFETY: watched by the model checker.
        self.0[place].with_mut(|cell| unsafe { *cell += value });
    }

    fn set(&self, place: usize, value: usize) {
        // SAFETY: watched by the model checker.
        self.0[place].with_mut(|cell| unsafe { *cell = value });
    }

    fn get(&self, place: usize) -> usize {
        // SAFETY: watched by the model checker.
        self.0[place].with(|cell| unsafe { *cell })
    }
}

/// Holds threads until two have arrived.
struct Meeting(Mutex<usize>, Condvar);

impl Meeting {
    fn new() -> Self {
        Self(Mutex::new(0), Condvar::new())
    }

    fn attend(&self) {
        let mut arrived = self.0.lock().unwrap();
        *arrived += 1;
        self.1.notify_all();
        while *arrived < 2 {
            arrived = self.1.wait(arrived).unwrap();
        }
    }
}

fn every_piece_once(threads: usize, pieces: usize, jobs: usize) {
    let pool = Pool::new(threads, Instructions::Portable);
    let memory = Memory::new(pieces);
    for job in 1..=jobs {
        pool.run(pieces, |piece, thread| {
            assert!(thread < threads);
            memory.add(piece, 1);
        });
        // The job is over: what workers wrote is the caller's now, and nobody touches it.
        for piece in 0..pieces {
            assert_eq!(memory.get(piece), job);
            memory.set(piece, job);
        }
    }
}

#[test]
fn every_piece_runs_once_and_is_seen_by_the_caller() {
    explore(3, || every_piece_once(2, 2, 2));
}

#[test]
fn two_workers_share_pieces_and_both_have_left_when_the_job_is_over() {
    explore(2, || every_piece_once(3, 3, 1));
}

#[test]
fn a_parked_worker_is_woken_for_every_job() {
    explore(3, || {
        let pool = Pool::new(2, Instructions::Portable);
        for _ in 0..2 {
            // Neither thread can do both pieces: without the worker nobody gets on.
            let meeting = Meeting::new();
            pool.run(2, |_, _| meeting.attend());
        }
    });
}

#[test]
fn a_panic_in_any_thread_reaches_the_caller_and_the_next_job_runs() {
    explore(3, || {
        let pool = Pool::new(2, Instructions::Portable);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.run(2, |piece, _| {
                if piece == 1 {
                    resume_unwind(Box::new("piece 1"));
                }
            });
        }));
        let panic = outcome.expect_err("piece 1 fails");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"piece 1"));
        let memory = Memory::new(2);
        pool.run(2, |piece, _| memory.add(piece, 1));
        assert_eq!([memory.get(0), memory.get(1)], [1, 1]);
    });
}

const PLAN: usize = 0;
const RECORD: usize = 1;

/// Submits a step: writes its plan, launches the program, reads its record.
fn submit(
    stream: &Stream,
    memory: &Arc<Memory>,
    program: &Arc<[crate::stream::Op]>,
    step: usize,
) -> CpuRead<usize> {
    let plan = Arc::clone(memory);
    stream.enqueue_once(move |_| plan.set(PLAN, step));
    stream.launch(Arc::clone(program));
    let record = Arc::clone(memory);
    CpuRead::enqueue(stream, move || vec![record.get(RECORD)])
}

/// A program of two operations: the record is computed from the plan, spread over the pool.
fn capture(stream: &Stream, memory: &Arc<Memory>, fails_at: usize) -> Arc<[crate::stream::Op]> {
    stream.begin_capture();
    let first = Arc::clone(memory);
    stream.enqueue(move |pool| {
        let plan = first.get(PLAN);
        if plan == fails_at {
            resume_unwind(Box::new("step fails"));
        }
        pool.run(2, |piece, _| first.set(2 + piece, plan));
    });
    let second = Arc::clone(memory);
    stream.enqueue(move |_| second.set(RECORD, 10 * second.get(2) + second.get(3)));
    stream.end_capture()
}

fn pipelined(threads: usize, depth: usize, steps: usize, fails_at: usize) {
    let stream = Stream::start(threads, Instructions::Portable);
    let memory = Memory::new(4);
    let program = capture(&stream, &memory, fails_at);
    let mut flights = std::collections::VecDeque::new();
    for step in 1..=steps {
        flights.push_back((step, submit(&stream, &memory, &program, step)));
        while flights.len() == depth || (step == steps && !flights.is_empty()) {
            let (step, flight) = flights.pop_front().unwrap();
            match flight.wait() {
                Ok(record) => assert!(step < fails_at && record == [11 * step]),
                Err(error) => assert!(step >= fails_at && error.to_string().contains("step fails")),
            }
        }
    }
}

#[test]
fn a_read_gives_the_record_of_its_own_step_at_every_depth() {
    for depth in 1..=3 {
        explore(3, move || pipelined(1, depth, 3, usize::MAX));
    }
}

#[test]
fn a_read_gives_the_record_of_its_own_step_when_workers_write_it() {
    explore(2, || pipelined(2, 2, 2, usize::MAX));
}

#[test]
fn a_failed_step_is_reported_by_its_read_and_all_later_ones() {
    explore(3, || pipelined(1, 2, 3, 2));
}

#[test]
fn a_stream_that_is_dropped_runs_what_is_queued_and_a_dropped_read_hurts_nobody() {
    explore(3, || {
        let stream = Stream::start(1, Instructions::Portable);
        let memory = Memory::new(4);
        let program = capture(&stream, &memory, usize::MAX);
        drop(submit(&stream, &memory, &program, 1));
        let read = submit(&stream, &memory, &program, 2);
        drop(stream);
        assert_eq!(memory.get(RECORD), 22);
        assert_eq!(read.wait().unwrap(), [22]);
    });
}
