//! Requests on their way to the engine: parsed, put into the template, turned into tokens.
//!
//! That takes time and memory in proportion to what a client sends, so few are prepared at a time, large ones one after
//! the other, and no key takes all the threads. What no client waits for any more is not begun, and what has begun stops at
//! the next piece of its text.

use crate::body::Body;
use crate::error::{ApiError, ErrorKind};
use crate::model::ServedModel;
use paceline_text::{EncodeLimit, TextError};
use paceline_types::TokenId;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Fewest and most threads that prepare requests.
const THREADS: (usize, usize) = (2, 8);

/// A body of more bytes is large. Parsed, it may take some twenty times its size.
const LARGE: usize = 1 << 20;

/// The threads that prepare requests.
pub(crate) struct Preparation {
    threads: Arc<Semaphore>,
    /// Of these, how many may work on a large body.
    large: Arc<Semaphore>,
    /// How many each tenant may have, by its number.
    tenants: Vec<Arc<Semaphore>>,
}

/// A request that is being prepared: the model, and whether its client still waits for it.
pub(crate) struct Preparing<'a> {
    model: &'a Arc<ServedModel>,
    gone: &'a AtomicBool,
}

/// Held by the task that waits for a request; tells its thread when there is none any more.
#[derive(Default)]
struct Waiting(Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Preparation {
    /// For tenants up to `keys`.
    pub(crate) fn new(keys: usize) -> Self {
        let (fewest, most) = THREADS;
        let threads = available_parallelism().map_or(fewest, |cores| cores.get().clamp(fewest, most));
        let share = if keys > 1 { threads / 2 } else { threads };
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        Self {
            threads: semaphore(threads),
            large: semaphore(1),
            tenants: (0..=keys).map(|_| semaphore(share)).collect(),
        }
    }

    /// Does the work on a thread, once there is one for the tenant. Dropping the future gives it up.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        model: &Arc<ServedModel>,
        (tenant, body): (u32, Body),
        work: impl FnOnce(&Preparing<'_>, &Body) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permits = self.permits(tenant, body.len()).await?;
        let waiting = Waiting::default();
        let (model, gone) = (Arc::clone(model), Arc::clone(&waiting.0));
        let done = tokio::task::spawn_blocking(move || {
            let preparing = Preparing {
                model: &model,
                gone: &gone,
            };
            let result = work(&preparing, &body);
            // The memory first, then the right to take as much again.
            drop(body);
            drop(permits);
            result
        });
        let done = done.await;
        drop(waiting);
        done.unwrap_or_else(|error| {
            tracing::error!("a request could not be prepared: {error}");
            let message = "the request could not be prepared";
            Err(ApiError::new(ErrorKind::Internal, message))
        })
    }

    async fn permits(&self, tenant: u32, bytes: usize) -> Result<Vec<OwnedSemaphorePermit>, ApiError> {
        let own = self.tenants.get(tenant as usize);
        let large = (bytes > LARGE).then_some(&self.large);
        let mut permits = Vec::with_capacity(3);
        for semaphore in own.into_iter().chain(large).chain([&self.threads]) {
            let permit = Arc::clone(semaphore).acquire_owned().await;
            let closed = |_| ApiError::new(ErrorKind::Unavailable, "the server is going down");
            permits.push(permit.map_err(closed)?);
        }
        Ok(permits)
    }
}

impl Preparing<'_> {
    /// The model, for what outlives the preparation.
    pub(crate) fn shared(&self) -> Arc<ServedModel> {
        Arc::clone(self.model)
    }

    /// The tokens of a text in field `param`. One that surely is longer than the context is refused before it costs more
    /// than one that fits.
    pub(crate) fn encode(&self, param: &str, text: &str, special: bool) -> Result<Vec<TokenId>, ApiError> {
        let tokenizer = self.model.require_tokenizer(param)?;
        let limit = EncodeLimit {
            tokens: self.model.max_model_len,
            given_up: &|| self.gone.load(Ordering::Relaxed),
        };
        let tokens = tokenizer.encode_within(text, special, &limit);
        tokens.map_err(|error| match error {
            TextError::TooLong { at_least, limit } => ApiError::overlong(param, at_least, limit),
            error => ApiError::text(param, &error),
        })
    }
}

impl Deref for Preparing<'_> {
    type Target = ServedModel;

    fn deref(&self) -> &ServedModel {
        self.model
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    fn model() -> Arc<ServedModel> {
        Arc::new(ServedModel {
            names: Vec::new(),
            source: String::new(),
            details: crate::model::ModelDetails::default(),
            tokenizer: None,
            template: None,
            defaults: paceline::SamplingDefaults::default(),
            page_defaults: paceline::SamplingDefaults::default(),
            max_model_len: 10,
            tool_format: None,
            reasoning_format: None,
            created: 0,
        })
    }

    fn body(bytes: usize) -> Body {
        Body::of(vec![b' '; bytes])
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn one_tenant_leaves_threads_to_another() {
        let (preparation, model) = (Arc::new(Preparation::new(2)), model());
        let (started, starts) = mpsc::channel();
        let (go, held) = mpsc::channel::<()>();
        let held = Arc::new(std::sync::Mutex::new(held));
        // Many more than there are threads; each holds its own until told to go on.
        let many: Vec<_> = (0..40)
            .map(|_| {
                let (preparation, model, started, held) =
                    (preparation.clone(), model.clone(), started.clone(), held.clone());
                tokio::spawn(async move {
                    let work = move |_: &Preparing<'_>, _: &Body| {
                        started.send(()).unwrap();
                        held.lock().unwrap().recv().unwrap();
                        Ok(())
                    };
                    preparation.run(&model, (1, body(10)), work).await
                })
            })
            .collect();
        tokio::task::block_in_place(|| starts.recv()).unwrap();
        let other = preparation.run(&model, (2, body(10)), |_, _| Ok(7));
        assert_eq!(
            tokio::time::timeout(Duration::from_mins(1), other).await.unwrap(),
            Ok(7)
        );
        (0..40).for_each(|_| go.send(()).unwrap());
        for task in many {
            assert_eq!(task.await.unwrap(), Ok(()));
        }
    }

    #[tokio::test]
    async fn large_bodies_come_one_after_the_other_and_small_ones_pass_them() {
        let (preparation, model) = (Arc::new(Preparation::new(0)), model());
        let (go, held) = mpsc::channel::<()>();
        let first = {
            let (preparation, model) = (preparation.clone(), model.clone());
            let work = move |_: &Preparing<'_>, _: &Body| {
                held.recv().unwrap();
                Ok(())
            };
            tokio::spawn(async move { preparation.run(&model, (0, body(LARGE + 1)), work).await })
        };
        while preparation.large.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let mut second = Box::pin(preparation.run(&model, (0, body(LARGE + 1)), |_, _| Ok(2)));
        assert!(tokio::time::timeout(Duration::ZERO, &mut second).await.is_err());
        // It holds a thread's permit of its tenant only, and there are two at least.
        drop(second);
        let small = preparation.run(&model, (0, body(LARGE)), |_, _| Ok(3)).await;
        assert_eq!(small, Ok(3));
        go.send(()).unwrap();
        assert_eq!(first.await.unwrap(), Ok(()));
        let second = preparation.run(&model, (0, body(LARGE + 1)), |_, _| Ok(2)).await;
        assert_eq!(second, Ok(2));
    }

    #[tokio::test]
    async fn a_thread_learns_that_nobody_waits() {
        let (preparation, model) = (Preparation::new(0), model());
        let (begun, begins) = mpsc::channel();
        let (end, ends) = mpsc::channel();
        let work = move |preparing: &Preparing<'_>, _: &Body| {
            begun.send(preparing.gone.load(Ordering::Relaxed)).unwrap();
            while !preparing.gone.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            end.send(()).unwrap();
            Ok(())
        };
        let mut task = Box::pin(preparation.run(&model, (0, body(1)), work));
        assert!(tokio::time::timeout(Duration::ZERO, &mut task).await.is_err());
        assert!(!begins.recv().unwrap());
        drop(task);
        ends.recv().unwrap();
    }
}
