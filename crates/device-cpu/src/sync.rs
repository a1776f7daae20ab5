//! What the worker pool and the stream are synchronised with: the standard library's, or under `--cfg loom` the
//! model checker's stand-ins, which run every interleaving.

#[cfg(loom)]
pub(crate) use self::modelled::*;
#[cfg(not(loom))]
pub(crate) use self::plain::*;

#[cfg(not(loom))]
mod plain {
    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::sync::Mutex;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};
    pub(crate) use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
    pub(crate) use std::thread::{self, JoinHandle, Thread};

    use std::sync::atomic::Ordering;
    use std::sync::mpsc::TryRecvError;
    use std::time::{Duration, Instant};

    /// Shortest and longest time between two looks at a value that is not there yet.
    const NAPS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

    /// Waits for a value by looking for it after short sleeps. A parked reader would have to be woken by the sender,
    /// a system call between two steps of the stream; this way the stream just goes on. `last_ns` remembers how long
    /// the last wait took: the first sleep covers most of it, so that few looks are in vain. `None`: the sender is
    /// gone.
    pub(crate) fn receive<T>(receiver: &Receiver<T>, last_ns: &AtomicU64) -> Option<T> {
        let start = Instant::now();
        let mut nap = Duration::from_nanos(last_ns.load(Ordering::Relaxed)) * 3 / 4;
        let mut slept = false;
        loop {
            match receiver.try_recv() {
                Ok(value) if slept => {
                    last_ns.store(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
                    return Some(value);
                }
                Ok(value) => return Some(value),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => thread::sleep(nap.clamp(NAPS.0, NAPS.1)),
            }
            slept = true;
            nap = start.elapsed() / 16;
        }
    }

    /// [`std::cell::UnsafeCell`] with accesses that a model checker can watch.
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
            read(self.0.get())
        }

        pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
            write(self.0.get())
        }
    }
}

#[cfg(loom)]
mod modelled {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::hint::spin_loop;
    pub(crate) use loom::sync::Mutex;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};
    pub(crate) use loom::thread::{self, JoinHandle, Thread};

    use loom::sync::{Condvar, MutexGuard};
    use std::collections::VecDeque;
    use std::sync::{Arc, PoisonError};

    /// A bounded channel: what the standard library promises of its own.
    struct Channel<T> {
        queue: Mutex<Queue<T>>,
        changed: Condvar,
        bound: usize,
    }

    struct Queue<T> {
        values: VecDeque<T>,
        sender: bool,
        receiver: bool,
    }

    pub(crate) struct SyncSender<T>(Arc<Channel<T>>);
    pub(crate) struct Receiver<T>(Arc<Channel<T>>);

    pub(crate) fn sync_channel<T>(bound: usize) -> (SyncSender<T>, Receiver<T>) {
        let channel = Arc::new(Channel {
            queue: Mutex::new(Queue {
                values: VecDeque::new(),
                sender: true,
                receiver: true,
            }),
            changed: Condvar::new(),
            bound,
        });
        (SyncSender(Arc::clone(&channel)), Receiver(channel))
    }

    fn lock<T>(queue: &Mutex<T>) -> MutexGuard<'_, T> {
        queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    impl<T> SyncSender<T> {
        pub(crate) fn send(&self, value: T) -> Result<(), &'static str> {
            let mut queue = lock(&self.0.queue);
            while queue.receiver && queue.values.len() == self.0.bound {
                queue = self.0.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            if !queue.receiver {
                return Err("nobody receives");
            }
            queue.values.push_back(value);
            self.0.changed.notify_all();
            Ok(())
        }
    }

    /// Waits for a value; how is of no matter to the model.
    pub(crate) fn receive<T>(receiver: &Receiver<T>, _last_ns: &std::sync::atomic::AtomicU64) -> Option<T> {
        receiver.recv().ok()
    }

    impl<T> Receiver<T> {
        pub(crate) fn recv(&self) -> Result<T, &'static str> {
            let mut queue = lock(&self.0.queue);
            loop {
                if let Some(value) = queue.values.pop_front() {
                    self.0.changed.notify_all();
                    return Ok(value);
                }
                if !queue.sender {
                    return Err("nobody sends");
                }
                queue = self.0.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    impl<T> Drop for SyncSender<T> {
        fn drop(&mut self) {
            lock(&self.0.queue).sender = false;
            self.0.changed.notify_all();
        }
    }

    impl<T> Drop for Receiver<T> {
        fn drop(&mut self) {
            let values = {
                let mut queue = lock(&self.0.queue);
                queue.receiver = false;
                std::mem::take(&mut queue.values)
            };
            self.0.changed.notify_all();
            drop(values);
        }
    }
}
