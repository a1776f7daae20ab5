//! Many generations read by one thread, which sleeps until one of them has something.

use crate::event::Event;
use crate::handle::Generation;
use futures_core::Stream;

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

/// Generations by number, in the order they were added.
///
/// ```
/// use paceline::{Engine, EngineConfig, Event, Request, Streams};
/// use std::time::{Duration, Instant};
/// # let engine = Engine::start(&paceline_testkit::storyteller(), EngineConfig::default(), &|_| {})?;
///
/// let mut streams = Streams::default();
/// for seed in 0..8 {
///     let mut request = Request { prompt: [443, 441, 261, 393].into(), ..Request::default() };
///     request.sampling_mut().seed = seed;
///     request.sampling_mut().max_tokens = 4;
///     streams.add(engine.generate(request)?);
/// }
/// let mut ended = Vec::new();
/// while !streams.is_empty() {
///     // Until then, so that the caller can look at other things.
///     match streams.next(Instant::now() + Duration::from_secs(1)) {
///         Some((number, Some(Event::Finished { .. }))) => ended.push(number),
///         Some((_, Some(_))) | Some((_, None)) | None => {}
///     }
/// }
/// ended.sort();
/// assert_eq!(ended, [0, 1, 2, 3, 4, 5, 6, 7]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
pub struct Streams {
    open: Vec<Option<Reader>>,
    count: usize,
    ready: Arc<Ready>,
}

struct Reader {
    generation: Generation,
    waker: Waker,
}

impl Streams {
    /// Adds a generation; its number is how many there were before.
    pub fn add(&mut self, generation: Generation) {
        let index = self.open.len();
        let waker = Waker::from(Arc::new(Signal {
            index,
            ready: Arc::clone(&self.ready),
        }));
        self.open.push(Some(Reader { generation, waker }));
        self.count += 1;
        self.ready.push(index);
    }

    /// Whether all have ended.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Those that have not ended.
    pub fn len(&self) -> usize {
        self.count
    }

    /// The next event of any of them, or the end (`None`) of one; nothing if there is none until then.
    pub fn next(&mut self, until: Instant) -> Option<(usize, Option<Event>)> {
        loop {
            let index = self.ready.pop(until)?;
            let Some(reader) = &mut self.open[index] else {
                continue;
            };
            let mut context = Context::from_waker(&reader.waker);
            match Pin::new(&mut reader.generation).poll_next(&mut context) {
                Poll::Ready(Some(event)) => {
                    // There may be more; the others have their turn first.
                    self.ready.push(index);
                    return Some((index, Some(event)));
                }
                Poll::Ready(None) => {
                    self.open[index] = None;
                    self.count -= 1;
                    return Some((index, None));
                }
                Poll::Pending => {}
            }
        }
    }

    /// Asks one of them to end; its last events still come.
    pub fn cancel(&self, index: usize) {
        if let Some(Some(reader)) = self.open.get(index) {
            reader.generation.cancel();
        }
    }

    /// Asks all of them to end.
    pub fn cancel_all(&self) {
        for reader in self.open.iter().flatten() {
            reader.generation.cancel();
        }
    }
}

/// Wakes the reading thread for one generation.
struct Signal {
    index: usize,
    ready: Arc<Ready>,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.ready.push(self.index);
    }
}

/// Numbers of generations that may have something, each at most once.
#[derive(Default)]
struct Ready {
    queue: Mutex<Queue>,
    signal: Condvar,
}

#[derive(Default)]
struct Queue {
    order: VecDeque<usize>,
    queued: Vec<bool>,
}

impl Ready {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, index: usize) {
        let mut queue = self.lock();
        if queue.queued.len() <= index {
            queue.queued.resize(index + 1, false);
        }
        if !std::mem::replace(&mut queue.queued[index], true) {
            queue.order.push_back(index);
        }
        drop(queue);
        self.signal.notify_one();
    }

    fn pop(&self, until: Instant) -> Option<usize> {
        let mut queue = self.lock();
        loop {
            if let Some(index) = queue.order.pop_front() {
                queue.queued[index] = false;
                return Some(index);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.signal.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn a_number_waits_once_however_often_it_is_signalled() {
        let ready = Ready::default();
        for index in [1, 0, 1] {
            ready.push(index);
        }
        let soon = Instant::now();
        assert_eq!(
            [ready.pop(soon), ready.pop(soon), ready.pop(soon)],
            [Some(1), Some(0), None]
        );
    }

    #[test]
    fn a_signal_wakes_the_reader() {
        let ready = Arc::new(Ready::default());
        let signal = Arc::new(Signal {
            index: 3,
            ready: Arc::clone(&ready),
        });
        let sender = thread::spawn(move || signal.wake());
        assert_eq!(ready.pop(Instant::now() + Duration::from_secs(10)), Some(3));
        sender.join().unwrap();
    }
}
