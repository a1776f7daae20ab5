//! Threads that compute the masks of constrained requests while the device runs.

use paceline_schedule::{MaskJob, MaskResult, MaskWorkers};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How long the engine waits for a mask before it looks for new requests again.
const SHORT_WHILE: Duration = Duration::from_millis(2);

/// Grammars may be deep; memory is taken as far as it is used.
const STACK: usize = 32 << 20;

/// Worker threads with a queue of bounded length. They end when it is dropped.
pub struct MaskPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    most: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// A job came, or the end.
    work: Condvar,
    /// A job is done.
    done: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<MaskJob>,
    results: VecDeque<MaskResult>,
    closed: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<MaskJob> {
        let mut state = self.state();
        loop {
            if state.closed {
                return None;
            }
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn run(&self) {
        while let Some(job) = self.next() {
            let failure = job.failure();
            // A constraint that breaks is its request's end, not the engine's.
            let result = catch_unwind(AssertUnwindSafe(|| job.run()))
                .unwrap_or_else(|_| failure("the constraint broke".to_owned()));
            if let Some(error) = result.error() {
                tracing::warn!("request {} cannot go on: {error}", result.id().0);
            }
            self.state().results.push_back(result);
            self.done.notify_one();
        }
    }
}

impl MaskPool {
    /// `threads` workers, and at most `most` jobs in their queue.
    pub fn new(threads: usize, most: usize) -> std::io::Result<Self> {
        let mut pool = Self {
            shared: Arc::default(),
            threads: Vec::new(),
            most,
        };
        for _ in 0..threads {
            let shared = Arc::clone(&pool.shared);
            let builder = thread::Builder::new()
                .name("paceline-masks".to_owned())
                .stack_size(STACK);
            pool.threads.push(builder.spawn(move || shared.run())?);
        }
        Ok(pool)
    }
}

impl MaskWorkers for MaskPool {
    fn start(&mut self, job: MaskJob) -> Option<MaskJob> {
        let mut state = self.shared.state();
        if state.jobs.len() >= self.most {
            return Some(job);
        }
        state.jobs.push_back(job);
        drop(state);
        self.shared.work.notify_one();
        None
    }

    fn done(&mut self) -> Option<MaskResult> {
        self.shared.state().results.pop_front()
    }

    fn wait(&mut self) {
        let state = self.shared.state();
        if state.results.is_empty() {
            // Whether it was in time shows in `done`.
            drop(self.shared.done.wait_timeout(state, SHORT_WHILE));
        }
    }
}

impl Drop for MaskPool {
    fn drop(&mut self) {
        self.shared.state().closed = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A worker's panic was caught; nothing is left that could be told.
            drop(thread.join());
        }
    }
}
