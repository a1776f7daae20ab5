//! Worker threads for the pieces of one operation.
//!
//! Pieces are claimed one by one from a shared counter, and the caller claims too. A worker that does not show
//! up (its core is busy with something else) costs nothing: the caller finishes the pieces itself, closes the
//! job and waits only for workers that are in the middle of a piece. Idle workers spin for a bounded time and
//! then park, and so does the caller.

use crate::simd::Instructions;
use crate::sync::{
    AtomicBool, AtomicU64, AtomicUsize, JoinHandle, Mutex, Thread, UnsafeCell, fence, spin_loop, thread,
};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// Pauses before a waiting thread parks: some tens of microseconds, longer than the gap between two
/// operations of a step and shorter than a scheduling slice.
const SPINS: u32 = if cfg!(loom) { 0 } else { 2_000 };

/// A job is open: workers may join it.
const OPEN: u64 = 1 << 31;
/// The caller is parked, or about to be, until no worker is inside.
const AWAITED: u64 = 1 << 30;
/// Workers inside the job.
const ACTIVE: u64 = AWAITED - 1;
/// Distinguishes successive jobs.
const EPOCH: u64 = 1 << 32;

type Piece<'a> = dyn Fn(usize, usize) + Sync + 'a;

struct Shared {
    /// Epoch, flags and number of active workers in one word, so that joining and leaving are one atomic step each.
    state: AtomicU64,
    next: AtomicUsize,
    pieces: AtomicUsize,
    job: UnsafeCell<Option<*const Piece<'static>>>,
    /// The first panic of a worker in this job.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stopping: AtomicBool,
    workers_parked: Vec<AtomicBool>,
    caller: UnsafeCell<Option<Thread>>,
}

// SAFETY: `job` and `caller` are written only while no job is open and no worker is active, and read only by
// workers that have joined the open job.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

/// A fixed set of worker threads plus the thread that calls [`run`](Self::run).
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    instructions: Instructions,
}

impl Pool {
    /// A pool that uses `threads` threads, the caller among them.
    pub(crate) fn new(threads: usize, instructions: Instructions) -> Self {
        let extra = threads.max(1) - 1;
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            pieces: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            panic: Mutex::new(None),
            stopping: AtomicBool::new(false),
            workers_parked: (0..extra).map(|_| AtomicBool::new(false)).collect(),
            caller: UnsafeCell::new(None),
        });
        let workers = (0..extra)
            .map(|index| {
                let shared = Arc::clone(&shared);
                thread::Builder::new()
                    .name(format!("paceline-worker-{}", index + 1))
                    .spawn(move || work(&shared, index))
                    .expect("the system can start a thread")
            })
            .collect();
        Self {
            shared,
            workers,
            instructions,
        }
    }

    /// Threads that take part, the caller included.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// What kernels are run with.
    pub(crate) fn instructions(&self) -> Instructions {
        self.instructions
    }

    /// Calls `piece(i, thread)` for every `i < pieces`, spread over the threads, and returns when all are done.
    /// `thread` is below [`threads`](Self::threads) and no two calls share it at the same time. Must not be
    /// called from two threads at once or from inside a piece.
    pub(crate) fn run(&self, pieces: usize, piece: impl Fn(usize, usize) + Sync) {
        if pieces <= 1 || self.workers.is_empty() {
            for index in 0..pieces {
                piece(index, 0);
            }
            return;
        }
        let shared = &*self.shared;
        self.open(pieces, &piece);
        let outcome = catch_unwind(AssertUnwindSafe(|| shared.claim_pieces(&piece, 0)));
        self.close();
        let worker = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = outcome.err().or(worker) {
            std::panic::resume_unwind(panic);
        }
    }

    fn open(&self, pieces: usize, piece: &Piece<'_>) {
        let shared = &*self.shared;
        let pointer = std::ptr::from_ref(piece);
        #[expect(clippy::transmute_ptr_to_ptr, reason = "a cast cannot lengthen the lifetime")]
        // SAFETY: only the lifetime changes; `close` returns before the piece goes away, and no worker uses it
        // after that.
        let pointer = unsafe { std::mem::transmute::<*const Piece<'_>, *const Piece<'static>>(pointer) };
        // SAFETY: the last job is closed and no worker is active, so nobody reads these cells.
        unsafe {
            shared.job.with_mut(|job| *job = Some(pointer));
            shared.caller.with_mut(|caller| *caller = Some(thread::current()));
        }
        shared.pieces.store(pieces, Ordering::Relaxed);
        shared.next.store(0, Ordering::Relaxed);
        let epoch = (shared.state.load(Ordering::Relaxed) / EPOCH).wrapping_add(1);
        let opened = epoch.wrapping_mul(EPOCH) | OPEN;
        shared.state.store(opened, Ordering::Release);
        // Either a worker that parks sees the job, or it is seen here: see `park`.
        fence(Ordering::SeqCst);
        for (parked, worker) in shared.workers_parked.iter().zip(&self.workers) {
            if parked.load(Ordering::Relaxed) {
                worker.thread().unpark();
            }
        }
    }

    /// Lets no further worker in and waits for those inside.
    fn close(&self) {
        let shared = &*self.shared;
        shared.state.fetch_and(!OPEN, Ordering::AcqRel);
        for _ in 0..SPINS {
            if shared.state.load(Ordering::Acquire) & ACTIVE == 0 {
                return;
            }
            spin_loop();
        }
        // The last worker to leave sees the flag in the word that it counts itself out of.
        let mut state = shared.state.fetch_or(AWAITED, Ordering::AcqRel);
        while state & ACTIVE != 0 {
            thread::park();
            state = shared.state.load(Ordering::Acquire);
        }
    }
}

impl Shared {
    fn claim_pieces(&self, piece: &Piece<'_>, thread: usize) {
        let pieces = self.pieces.load(Ordering::Relaxed);
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= pieces {
                return;
            }
            piece(index, thread);
        }
    }

    /// Joins the open job if there is one newer than `seen`; returns its epoch.
    fn join(&self, seen: u64) -> Option<u64> {
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            if state & OPEN == 0 || state / EPOCH == seen {
                return None;
            }
            match self
                .state
                .compare_exchange_weak(state, state + 1, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Some(state / EPOCH),
                Err(now) => state = now,
            }
        }
    }

    fn leave(&self) {
        // SAFETY: this worker is still active, so the cell is not being written.
        let caller = self.caller.with(|caller| unsafe { (*caller).clone() });
        let before = self.state.fetch_sub(1, Ordering::AcqRel);
        if before & ACTIVE == 1
            && before & AWAITED != 0
            && let Some(caller) = caller
        {
            caller.unpark();
        }
    }
}

fn work(shared: &Shared, index: usize) {
    let mut seen = 0;
    let mut spins = 0;
    while !shared.stopping.load(Ordering::Acquire) {
        if let Some(epoch) = shared.join(seen) {
            seen = epoch;
            spins = 0;
            // SAFETY: joined, so the job stays valid until `leave`.
            let piece = shared
                .job
                .with(|job| unsafe { &*(*job).expect("an open job has its pieces") });
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| shared.claim_pieces(piece, index + 1))) {
                let mut first = shared.panic.lock().unwrap_or_else(PoisonError::into_inner);
                first.get_or_insert(panic);
            }
            shared.leave();
        } else if spins < SPINS {
            spins += 1;
            spin_loop();
        } else {
            park(shared, index, seen);
        }
    }
}

fn park(shared: &Shared, index: usize, seen: u64) {
    let parked = &shared.workers_parked[index];
    parked.store(true, Ordering::Relaxed);
    // Either the caller of the next job sees this worker, or the job is seen here: see `open`.
    fence(Ordering::SeqCst);
    let state = shared.state.load(Ordering::Relaxed);
    let new_job = state & OPEN != 0 && state / EPOCH != seen;
    if !new_job && !shared.stopping.load(Ordering::Relaxed) {
        thread::park();
    }
    parked.store(false, Ordering::Relaxed);
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches the panics of pieces, so joining cannot fail in a way worth reporting.
            let _ = worker.join();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_piece_runs_once_on_any_number_of_threads() {
        for threads in 1..=4 {
            let pool = Pool::new(threads, Instructions::Portable);
            for pieces in [0, 1, 2, 3, 17, 1000] {
                let counts: Vec<AtomicUsize> = (0..pieces).map(|_| AtomicUsize::new(0)).collect();
                pool.run(pieces, |piece, thread| {
                    assert!(thread < pool.threads());
                    counts[piece].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    counts.iter().all(|count| count.load(Ordering::Relaxed) == 1),
                    "{threads} threads"
                );
            }
        }
    }

    #[test]
    fn a_panicking_piece_is_reported_and_the_pool_goes_on() {
        let pool = Pool::new(3, Instructions::Portable);
        for _ in 0..20 {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.run(64, |piece, _| assert!(piece != 33, "piece 33 fails"));
            }));
            assert!(outcome.is_err());
            let sum = AtomicUsize::new(0);
            pool.run(64, |piece, _| {
                sum.fetch_add(piece, Ordering::Relaxed);
            });
            assert_eq!(sum.load(Ordering::Relaxed), 64 * 63 / 2);
        }
    }

    #[test]
    fn jobs_after_a_pause_wake_parked_workers() {
        let pool = Pool::new(2, Instructions::Portable);
        for _ in 0..5 {
            thread::sleep(std::time::Duration::from_millis(5));
            let sum = AtomicUsize::new(0);
            pool.run(100, |piece, _| {
                sum.fetch_add(piece, Ordering::Relaxed);
            });
            assert_eq!(sum.load(Ordering::Relaxed), 4950);
        }
    }
}
