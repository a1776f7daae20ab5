//! The way of events from the engine to the reader of a request.
//!
//! The engine never waits for a reader and never looks after one: an event is left here and the reader is woken. What
//! waits is merged, so there are at most a few events per continuation, with no more tokens than the request may have.

use crate::event::Event;
use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The engine's end, shared by the continuations of a request. With the last of them the reader is told that nothing
/// more comes.
pub(crate) struct EventSender {
    channel: Arc<Channel>,
    /// What the caller wants back as soon as the request has ended, read or not.
    held: Option<Arc<dyn Any + Send + Sync>>,
}

/// The reader's end.
pub(crate) struct EventReceiver(Arc<Channel>);

#[derive(Default)]
struct Channel {
    state: Mutex<State>,
    /// For a reader that blocks its thread.
    news: Condvar,
}

#[derive(Default)]
struct State {
    events: VecDeque<Event>,
    /// One of the two ends is gone.
    closed: bool,
    /// For a reader that is polled.
    waker: Option<Waker>,
}

/// Both ends. `held` is dropped with the sender.
pub(crate) fn channel(held: Option<Arc<dyn Any + Send + Sync>>) -> (EventSender, EventReceiver) {
    let channel = Arc::<Channel>::default();
    let sender = EventSender {
        channel: Arc::clone(&channel),
        held,
    };
    (sender, EventReceiver(channel))
}

impl EventSender {
    /// Gives back what the caller wants back. It comes before the last event, so whoever has seen the end has it.
    pub(crate) fn release(&mut self) {
        self.held = None;
    }

    /// Leaves events for the reader, unless it is gone.
    pub(crate) fn send(&self, events: impl IntoIterator<Item = Event>) {
        self.channel.change(|state| {
            if !state.closed {
                events.into_iter().for_each(|event| state.add(event));
            }
        });
    }
}

impl Drop for EventSender {
    fn drop(&mut self) {
        self.channel.change(|state| state.closed = true);
    }
}

impl EventReceiver {
    /// Waits for the next event; `None` if none will come.
    pub(crate) fn next_blocking(&self) -> Option<Event> {
        let waits = |state: &mut State| state.events.is_empty() && !state.closed;
        let state = self.0.news.wait_while(self.0.lock(), waits);
        state.unwrap_or_else(PoisonError::into_inner).events.pop_front()
    }

    /// The next event if there is one; else the task is woken when that changes.
    pub(crate) fn poll_next(&self, cx: &Context<'_>) -> Poll<Option<Event>> {
        let mut state = self.0.lock();
        let event = state.events.pop_front();
        if event.is_some() || state.closed {
            return Poll::Ready(event);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for EventReceiver {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.closed = true;
        state.events = VecDeque::new();
    }
}

impl Channel {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes something that the reader waits for.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        let waker = state.waker.take();
        drop(state);
        self.news.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl State {
    /// Adds an event, to one of its kind and continuation that still waits if there is such.
    fn add(&mut self, event: Event) {
        let rest = self.events.iter_mut().rev().try_fold(event, merge);
        if let Ok(event) = rest {
            self.events.push_back(event);
        }
    }
}

/// Adds an event to one that waits; gives it back if the two have nothing to do with each other.
fn merge(event: Event, waiting: &mut Event) -> Result<Event, ()> {
    match (event, waiting) {
        (
            Event::Delta { choice, output },
            Event::Delta {
                choice: of,
                output: all,
            },
        ) if choice == *of => {
            all.ids.extend(output.ids);
            all.logprobs.extend(output.logprobs);
            all.origins.extend(output.origins);
            Err(())
        }
        (Event::Prompt { logprobs, .. }, Event::Prompt { logprobs: all, .. }) => {
            all.extend(logprobs);
            Err(())
        }
        (event, _) => Ok(event),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Finish, Tokens, Usage};
    use paceline_types::FinishReason;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    fn tokens(choice: usize, tokens: &[u32]) -> Event {
        let output = Tokens {
            ids: tokens.to_vec(),
            ..Tokens::default()
        };
        Event::Delta { choice, output }
    }

    fn end(choice: usize) -> Event {
        Event::Finished {
            choice,
            finish: Finish {
                reason: FinishReason::Length,
                stop: None,
                detail: None,
                usage: Usage::default(),
            },
        }
    }

    #[test]
    fn what_waits_is_merged_by_continuation_and_keeps_its_order() {
        let (sender, receiver) = channel(None);
        for step in 0..1000 {
            sender.send([tokens(0, &[step]), tokens(1, &[step + 5000])]);
        }
        sender.send([end(1)]);
        sender.send([tokens(0, &[7])]);
        drop(sender);
        let mut first: Vec<u32> = (0..1000).collect();
        first.push(7);
        assert_eq!(receiver.next_blocking(), Some(tokens(0, &first)));
        let second: Vec<u32> = (5000..6000).collect();
        assert_eq!(receiver.next_blocking(), Some(tokens(1, &second)));
        assert_eq!(receiver.next_blocking(), Some(end(1)));
        assert_eq!(receiver.next_blocking(), None);
    }

    #[test]
    fn what_is_held_goes_before_the_end_is_read() {
        let held = Arc::new(());
        let (mut sender, receiver) = channel(Some(held.clone()));
        sender.send([tokens(0, &[1])]);
        assert_eq!(Arc::strong_count(&held), 2);
        sender.release();
        assert_eq!(Arc::strong_count(&held), 1);
        sender.send([end(0)]);
        assert_eq!(receiver.next_blocking(), Some(tokens(0, &[1])));
        assert_eq!(receiver.next_blocking(), Some(end(0)));
    }

    #[test]
    fn a_reader_that_is_gone_has_nothing_kept_for_it() {
        let (sender, receiver) = channel(None);
        sender.send([tokens(0, &[1])]);
        drop(receiver);
        sender.send([tokens(0, &[2])]);
        assert!(sender.channel.lock().events.is_empty());
    }

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_task_is_woken_by_news_and_by_the_end() {
        let (sender, receiver) = channel(None);
        let count = Arc::<Count>::default();
        let waker = Waker::from(Arc::clone(&count));
        let cx = Context::from_waker(&waker);
        assert_eq!(receiver.poll_next(&cx), Poll::Pending);
        sender.send([tokens(0, &[1])]);
        sender.send([tokens(0, &[2])]);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert_eq!(receiver.poll_next(&cx), Poll::Ready(Some(tokens(0, &[1, 2]))));
        assert_eq!(receiver.poll_next(&cx), Poll::Pending);
        drop(sender);
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
        assert_eq!(receiver.poll_next(&cx), Poll::Ready(None));
    }
}
