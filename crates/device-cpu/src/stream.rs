//! The stream: a thread that runs operations in the order they were enqueued.

use crate::pool::Pool;
use crate::simd::Instructions;
use crate::storage::CpuRing;
use crate::sync::{JoinHandle, Mutex, Receiver, SyncSender, receive, sync_channel, thread};
use paceline_device::abi::RecordHeader;
use paceline_device::{DeviceError, Pending};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

/// Commands that may wait for the stream. A step is one command, so this is far beyond any pipeline depth;
/// a host that enqueues single operations faster than they run is held back here.
const QUEUE: usize = if cfg!(loom) { 2 } else { 8_192 };

/// An operation with its operands; it can run any number of times.
pub(crate) type Op = Arc<dyn Fn(&Pool) + Send + Sync>;

/// Something that runs once; it is told of an earlier failure.
type Once = Box<dyn FnOnce(Option<&DeviceError>) + Send>;

enum Command {
    Op(Op),
    Program(Arc<[Op]>),
    Once(Once),
}

/// The handle of the stream's thread. Dropping it ends the thread after what is queued.
pub(crate) struct Stream {
    queue: Option<SyncSender<Command>>,
    capture: Mutex<Option<Vec<Op>>>,
    thread: Option<JoinHandle<()>>,
    threads: usize,
    /// How long the last read was waited for, in nanoseconds.
    last_wait: Arc<AtomicU64>,
    /// Reads that were waited for.
    waits: Arc<AtomicU64>,
}

impl Stream {
    /// Starts a stream whose operations use `threads` threads and these instructions.
    pub(crate) fn start(threads: usize, instructions: Instructions) -> Self {
        let (queue, commands) = sync_channel(QUEUE);
        let thread = thread::Builder::new()
            .name("paceline-stream".to_owned())
            .spawn(move || execute(&commands, &Pool::new(threads, instructions)))
            .expect("the system can start a thread");
        Self {
            queue: Some(queue),
            capture: Mutex::new(None),
            thread: Some(thread),
            threads,
            last_wait: Arc::default(),
            waits: Arc::default(),
        }
    }

    /// Reads that were waited for.
    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// Threads that operations are spread over.
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Enqueues an operation, or adds it to the program being captured.
    pub(crate) fn enqueue(&self, op: impl Fn(&Pool) + Send + Sync + 'static) {
        let op: Op = Arc::new(op);
        if let Some(program) = self
            .capture
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_mut()
        {
            program.push(op);
            return;
        }
        self.send(Command::Op(op));
    }

    /// Enqueues something that runs once and outside any program. It is told of an earlier failure.
    pub(crate) fn enqueue_once(&self, once: impl FnOnce(Option<&DeviceError>) + Send + 'static) {
        self.send(Command::Once(Box::new(once)));
    }

    pub(crate) fn begin_capture(&self) {
        *self.capture.lock().unwrap_or_else(PoisonError::into_inner) = Some(Vec::new());
    }

    pub(crate) fn end_capture(&self) -> Arc<[Op]> {
        let ops = self.capture.lock().unwrap_or_else(PoisonError::into_inner).take();
        ops.unwrap_or_default().into()
    }

    pub(crate) fn launch(&self, program: Arc<[Op]>) {
        self.send(Command::Program(program));
    }

    fn send(&self, command: Command) {
        let queue = self.queue.as_ref().expect("open until drop");
        queue
            .send(command)
            .expect("the stream thread runs until its queue closes");
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // Panics of operations are caught and reported by reads; nothing is left to report here.
            let _ = thread.join();
        }
    }
}

fn execute(commands: &Receiver<Command>, pool: &Pool) {
    let mut failure: Option<DeviceError> = None;
    while let Ok(command) = commands.recv() {
        match command {
            Command::Op(op) => run(&op, pool, &mut failure),
            Command::Program(ops) => pool.measure(|| ops.iter().for_each(|op| run(op, pool, &mut failure))),
            Command::Once(once) => {
                let outcome = catch_unwind(AssertUnwindSafe(|| once(failure.as_ref())));
                remember(outcome, &mut failure);
            }
        }
    }
}

fn run(op: &Op, pool: &Pool, failure: &mut Option<DeviceError>) {
    if failure.is_none() {
        remember(catch_unwind(AssertUnwindSafe(|| op(pool))), failure);
    }
}

fn remember(outcome: Result<(), Box<dyn Any + Send>>, failure: &mut Option<DeviceError>) {
    if let Err(panic) = outcome {
        failure.get_or_insert(DeviceError::Failed(message(panic.as_ref())));
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "unknown panic".to_owned())
}

/// A read in flight on the CPU device.
pub struct CpuRead<T> {
    result: Receiver<Result<Vec<T>, DeviceError>>,
    last_wait: Arc<AtomicU64>,
    waits: Arc<AtomicU64>,
}

impl<T: Send + 'static> CpuRead<T> {
    /// Enqueues `read` on the stream; it runs unless an operation before it failed.
    pub(crate) fn enqueue(stream: &Stream, read: impl FnOnce() -> Vec<T> + Send + 'static) -> Self {
        let (sender, result) = sync_channel(1);
        stream.enqueue_once(move |failure| {
            let value = match failure {
                Some(failure) => Err(failure.clone()),
                None => Ok(read()),
            };
            // The reader may have gone away; then nobody wants the value.
            let _ = sender.send(value);
        });
        Self {
            result,
            last_wait: Arc::clone(&stream.last_wait),
            waits: Arc::clone(&stream.waits),
        }
    }
}

/// A record in flight on the CPU device.
pub struct CpuArrival {
    ended: CpuRead<()>,
    records: CpuRing,
    place: usize,
}

impl CpuArrival {
    /// The record that the program launched last leaves in a place.
    pub(crate) fn enqueue(stream: &Stream, records: &CpuRing, place: usize) -> Self {
        Self {
            ended: CpuRead::enqueue(stream, Vec::new),
            records: records.clone(),
            place,
        }
    }
}

impl Pending<Vec<i32>> for CpuArrival {
    fn wait(self) -> Result<Vec<i32>, DeviceError> {
        self.ended.wait()?;
        // SAFETY: the step has ended, and its place is not handed to another before this record is read.
        let words = unsafe { self.records.read(self.place) };
        let header: &RecordHeader = bytemuck::from_bytes(bytemuck::cast_slice(&words[..RecordHeader::WORDS]));
        Ok(words[..header.words()].to_vec())
    }
}

impl<T> Pending<Vec<T>> for CpuRead<T> {
    fn wait(self) -> Result<Vec<T>, DeviceError> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        receive(&self.result, &self.last_wait)
            .unwrap_or_else(|| Err(DeviceError::Failed("the stream ended".to_owned())))
    }
}
