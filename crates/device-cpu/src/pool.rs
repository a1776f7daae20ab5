//! Worker threads for the pieces of one operation.
//!
//! Pieces are claimed one by one from a shared counter, and the caller claims too. A worker that does not show
//! up (its core is busy with something else) costs nothing: the caller finishes the pieces itself, closes the
//! job and waits only for workers that are in the middle of a piece. Idle workers spin for a bounded time and
//! then park, and so does the caller. How many workers take part follows from what they get done: see [`Team`].

use crate::simd::Instructions;
use crate::sync::{
    AtomicBool, AtomicU64, AtomicUsize, JoinHandle, Mutex, Thread, UnsafeCell, fence, spin_loop, thread,
};
use crate::team::{Team, Work};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Pauses before a waiting thread parks: some tens of microseconds, longer than the gap between two
/// operations of a step and shorter than a scheduling slice.
const SPINS: usize = if cfg!(loom) { 0 } else { 2_000 };

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
    /// The first panic of a worker in this job, and whether there is one.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    panicked: AtomicBool,
    stopping: AtomicBool,
    /// Workers that take part; changes only between jobs.
    team: AtomicUsize,
    workers_parked: Vec<AtomicBool>,
    /// Who is to be woken, from when it first parks on: a handle is counted, and counting it for every job would take its line
    /// from the other threads twice.
    caller: Mutex<Option<Thread>>,
}

// SAFETY: `job` is written only while no job is open and no worker is active, and read only by workers that have joined the
// open job.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

/// A fixed set of worker threads plus the thread that calls [`run`](Self::run).
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    instructions: Instructions,
    team: Mutex<Team>,
    /// What was shared out since it was last looked at.
    shared_out: Counters,
}

/// Only the caller counts, and it is the one who looks: nothing for a model checker to watch.
#[derive(Default)]
struct Counters {
    /// Pieces of jobs that were shared out, and those of them that the caller ran.
    pieces: AtomicU32,
    own: AtomicU32,
    /// Pauses of the caller while it waited for others.
    pauses: AtomicU32,
}

impl Counters {
    fn add(counter: &AtomicU32, more: usize) {
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        counter.store(
            counter.load(Ordering::Relaxed).saturating_add(more),
            Ordering::Relaxed,
        );
    }

    /// What was done in some time, of which the caller was on a core for some; it counts anew from here. A caller that waits
    /// for others is on a core, too, and does nothing.
    fn work(&self, wall: Duration, core: Duration) -> Work {
        let [pieces, own, pauses] =
            [&self.pieces, &self.own, &self.pauses].map(|counter| counter.swap(0, Ordering::Relaxed));
        Work {
            wall,
            core: core.saturating_sub(pause() * pauses),
            pieces,
            own,
        }
    }
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
            panicked: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            team: AtomicUsize::new(extra),
            workers_parked: (0..extra).map(|_| AtomicBool::new(false)).collect(),
            caller: Mutex::new(None),
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
            team: Mutex::new(Team::new(extra + 1)),
            shared_out: Counters::default(),
        }
    }

    /// Threads that take part, the caller included. It changes only between two calls of [`measure`](Self::measure).
    pub(crate) fn threads(&self) -> usize {
        self.shared.team.load(Ordering::Relaxed) + 1
    }

    /// Runs jobs, and decides by what they took how many threads take part in the next ones.
    pub(crate) fn measure(&self, jobs: impl FnOnce()) {
        if self.workers.is_empty() || cfg!(loom) {
            return jobs();
        }
        let (started, on_core) = (Instant::now(), time_on_core());
        jobs();
        let (Some(from), Some(to)) = (on_core, time_on_core()) else {
            return;
        };
        let work = self.shared_out.work(started.elapsed(), to.saturating_sub(from));
        let mut team = self.team.lock().unwrap_or_else(PoisonError::into_inner);
        team.note(work);
        self.shared.team.store(team.size() - 1, Ordering::Relaxed);
    }

    /// What kernels are run with.
    pub(crate) fn instructions(&self) -> Instructions {
        self.instructions
    }

    /// Calls `piece(i, thread)` for every `i < pieces`, spread over the threads, and returns when all are done.
    /// `thread` is below [`threads`](Self::threads) and no two calls share it at the same time. Must not be
    /// called from two threads at once or from inside a piece.
    pub(crate) fn run(&self, pieces: usize, piece: impl Fn(usize, usize) + Sync) {
        if pieces <= 1 || self.threads() == 1 {
            for index in 0..pieces {
                piece(index, 0);
            }
            return;
        }
        let shared = &*self.shared;
        self.open(pieces, &piece);
        let outcome = catch_unwind(AssertUnwindSafe(|| shared.claim_pieces(&piece, 0)));
        self.close();
        match (outcome, shared.take_panic()) {
            (Err(panic), _) | (_, Some(panic)) => std::panic::resume_unwind(panic),
            (Ok(own), None) => {
                Counters::add(&self.shared_out.pieces, pieces);
                Counters::add(&self.shared_out.own, own);
            }
        }
    }

    fn open(&self, pieces: usize, piece: &Piece<'_>) {
        let shared = &*self.shared;
        let pointer = std::ptr::from_ref(piece);
        #[expect(clippy::transmute_ptr_to_ptr, reason = "a cast cannot lengthen the lifetime")]
        // SAFETY: only the lifetime changes; `close` returns before the piece goes away, and no worker uses it
        // after that.
        let pointer = unsafe { std::mem::transmute::<*const Piece<'_>, *const Piece<'static>>(pointer) };
        // SAFETY: the last job is closed and no worker is active, so nobody reads the cell.
        shared.job.with_mut(|job| unsafe { *job = Some(pointer) });
        shared.pieces.store(pieces, Ordering::Relaxed);
        shared.next.store(0, Ordering::Relaxed);
        let epoch = (shared.state.load(Ordering::Relaxed) / EPOCH).wrapping_add(1);
        let opened = epoch.wrapping_mul(EPOCH) | OPEN;
        shared.state.store(opened, Ordering::Release);
        // Either a worker that parks sees the job, or it is seen here: see `park`.
        fence(Ordering::SeqCst);
        let team = shared.team.load(Ordering::Relaxed);
        for (parked, worker) in shared.workers_parked.iter().zip(&self.workers).take(team) {
            if parked.load(Ordering::Relaxed) {
                worker.thread().unpark();
            }
        }
    }

    /// Lets no further worker in and waits for those inside.
    fn close(&self) {
        let shared = &*self.shared;
        shared.state.fetch_and(!OPEN, Ordering::AcqRel);
        for pauses in 0..SPINS {
            if shared.state.load(Ordering::Acquire) & ACTIVE == 0 {
                Counters::add(&self.shared_out.pauses, pauses);
                return;
            }
            spin_loop();
        }
        Counters::add(&self.shared_out.pauses, SPINS);
        *shared.caller.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current());
        // The last worker to leave sees the flag in the word that it counts itself out of, and then whom to wake.
        let mut state = shared.state.fetch_or(AWAITED, Ordering::AcqRel);
        while state & ACTIVE != 0 {
            thread::park();
            state = shared.state.load(Ordering::Acquire);
        }
    }
}

impl Shared {
    /// Runs pieces until none is left; how many.
    fn claim_pieces(&self, piece: &Piece<'_>, thread: usize) -> usize {
        let pieces = self.pieces.load(Ordering::Relaxed);
        let mut claimed = 0;
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= pieces {
                return claimed;
            }
            piece(index, thread);
            claimed += 1;
        }
    }

    /// Whether a worker is wanted in a job that is newer than `seen`.
    fn is_wanted(&self, state: u64, index: usize, seen: u64) -> bool {
        state & OPEN != 0 && state / EPOCH != seen && index < self.team.load(Ordering::Relaxed)
    }

    /// Joins the open job if there is one newer than `seen`; returns its epoch.
    fn join(&self, index: usize, seen: u64) -> Option<u64> {
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            if !self.is_wanted(state, index, seen) {
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
        let before = self.state.fetch_sub(1, Ordering::AcqRel);
        if before & ACTIVE == 1 && before & AWAITED != 0 {
            // A caller that has seen this by itself is woken from another wait, and looks again.
            let caller = self.caller.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(caller) = &*caller {
                caller.unpark();
            }
        }
    }

    /// A worker's piece has panicked.
    fn keep_panic(&self, panic: Box<dyn Any + Send>) {
        let mut first = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(panic);
        self.panicked.store(true, Ordering::Relaxed);
    }

    /// The panic of a job that is closed, if there was one.
    fn take_panic(&self) -> Option<Box<dyn Any + Send>> {
        // Workers have counted themselves out after it was set.
        if !self.panicked.load(Ordering::Relaxed) {
            return None;
        }
        self.panicked.store(false, Ordering::Relaxed);
        self.panic.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

fn work(shared: &Shared, index: usize) {
    let mut seen = 0;
    let mut spins = 0;
    while !shared.stopping.load(Ordering::Acquire) {
        if let Some(epoch) = shared.join(index, seen) {
            seen = epoch;
            spins = 0;
            // SAFETY: joined, so the job stays valid until `leave`.
            let piece = shared
                .job
                .with(|job| unsafe { &*(*job).expect("an open job has its pieces") });
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| shared.claim_pieces(piece, index + 1))) {
                shared.keep_panic(panic);
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
    if !shared.is_wanted(state, index, seen) && !shared.stopping.load(Ordering::Relaxed) {
        thread::park();
    }
    parked.store(false, Ordering::Relaxed);
}

/// About what a pause takes: ten of them, the quickest of some tries, once.
fn pause() -> Duration {
    static PAUSE: std::sync::OnceLock<Duration> = std::sync::OnceLock::new();
    let ten = || {
        let started = Instant::now();
        (0..10).for_each(|_| std::hint::spin_loop());
        started.elapsed()
    };
    *PAUSE.get_or_init(|| (0..20).map(|_| ten()).min().unwrap_or_default() / 10)
}

/// Time that this thread has been on a core, where the system tells.
#[cfg(unix)]
fn time_on_core() -> Option<Duration> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is that of a local that outlives the call.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    (status == 0).then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

#[cfg(not(unix))]
fn time_on_core() -> Option<Duration> {
    None
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
    use crate::stream::Stream;

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
    fn a_worker_that_holds_everything_up_is_left_out_of_programs_and_tried_again() {
        let stream = Stream::start(2, Instructions::Portable);
        let (sender, took_part) = std::sync::mpsc::channel();
        stream.begin_capture();
        stream.enqueue(move |pool| {
            let worker = AtomicUsize::new(0);
            pool.run(2, |_, thread| {
                if thread == 1 {
                    worker.store(1, Ordering::Relaxed);
                    // As if the system had taken it off its core.
                    thread::sleep(Duration::from_millis(200));
                } else {
                    spin(Duration::from_millis(10));
                }
            });
            sender
                .send(worker.load(Ordering::Relaxed))
                .expect("somebody waits");
        });
        let program = stream.end_capture();
        for _ in 0..60 {
            stream.launch(Arc::clone(&program));
        }
        let by_worker: Vec<usize> = took_part.iter().take(60).collect();
        let (first, later) = by_worker.split_at(12);
        assert!(first.contains(&1));
        let tried = later.iter().sum::<usize>();
        assert!((1..later.len() / 3).contains(&tried), "{by_worker:?}");
    }

    #[test]
    fn waiting_for_others_is_no_work() {
        let pool = Pool::new(2, Instructions::Portable);
        let begun = AtomicBool::new(false);
        pool.run(2, |_, thread| {
            if thread == 1 {
                begun.store(true, Ordering::Release);
                thread::sleep(Duration::from_millis(200));
            } else {
                while !begun.load(Ordering::Acquire) {
                    spin_loop();
                }
            }
        });
        let pauses = pool.shared_out.pauses.load(Ordering::Relaxed);
        assert!(pauses > 0);
        let (wall, core) = (Duration::from_secs(2), Duration::from_secs(1));
        let work = pool.shared_out.work(wall, core);
        assert_eq!((work.wall, work.core + pause() * pauses), (wall, core));
        assert_eq!((work.pieces, work.own), (2, 1));
        // Nothing is counted twice.
        assert_eq!(pool.shared_out.work(wall, core).core, core);
    }

    /// Keeps a core busy for some time of it.
    fn spin(time: Duration) {
        let now = || time_on_core().expect("the system tells");
        let started = now();
        while now() < started + time {}
    }

    #[test]
    fn jobs_after_a_pause_wake_parked_workers() {
        let pool = Pool::new(2, Instructions::Portable);
        for _ in 0..5 {
            thread::sleep(Duration::from_millis(5));
            let sum = AtomicUsize::new(0);
            pool.run(100, |piece, _| {
                sum.fetch_add(piece, Ordering::Relaxed);
            });
            assert_eq!(sum.load(Ordering::Relaxed), 4950);
        }
    }
}
