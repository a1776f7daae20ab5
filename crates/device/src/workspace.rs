//! Scratch tensors that are reused within and between steps.

use crate::{Backend, DeviceError, Rows};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Hands out scratch tensors and takes them back when they are dropped.
///
/// Operations run in the order they were enqueued, so a tensor dropped while a program is being built can serve
/// the next operation of that program. All storage has the capacity of the largest bucket: programs of any
/// bucket share it, and after the first program of the largest bucket nothing is allocated.
pub struct Workspace<B: Backend> {
    backend: B,
    shelves: Shelves<B>,
    ints: Mutex<Vec<(usize, B::Buffer<i32>)>>,
}

struct Shelves<B: Backend>(Arc<Mutex<Vec<Shelf<B>>>>);

impl<B: Backend> Shelves<B> {
    /// The list stays valid whatever a holder of the lock did, so a poisoned lock is taken as it is.
    fn lock(&self) -> MutexGuard<'_, Vec<Shelf<B>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: Backend> Clone for Shelves<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B: Backend> Default for Shelves<B> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

struct Shelf<B: Backend> {
    key: ShelfKey,
    free: Vec<B::Tensor>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct ShelfKey {
    capacity: usize,
    columns: usize,
}

/// A scratch tensor on loan from a [`Workspace`].
pub struct Scratch<B: Backend> {
    tensor: B::Tensor,
    whole: B::Tensor,
    key: ShelfKey,
    shelves: Shelves<B>,
}

impl<B: Backend> Workspace<B> {
    /// An empty workspace on `backend`.
    pub fn new(backend: B) -> Self {
        Self {
            backend,
            shelves: Shelves::default(),
            ints: Mutex::default(),
        }
    }

    /// A tensor over `rows` whose storage has room for `capacity` rows. Its contents are undefined.
    pub fn take(&self, rows: &Rows<B>, capacity: usize, columns: usize) -> Result<Scratch<B>, DeviceError> {
        assert!(
            rows.bucket <= capacity,
            "bucket {} exceeds the capacity {capacity}",
            rows.bucket
        );
        let key = ShelfKey { capacity, columns };
        let whole = match self.pop(key) {
            Some(tensor) => tensor,
            None => self.backend.tensor(&rows.with_bucket(capacity), columns)?,
        };
        let tensor = self.backend.reshape(&whole, rows, columns);
        Ok(Scratch {
            tensor,
            whole,
            key,
            shelves: self.shelves.clone(),
        })
    }

    /// The integer buffer of this length. There is one, shared by all callers: what is written to it is good
    /// until the next operation that writes it.
    pub fn ints(&self, len: usize) -> Result<B::Buffer<i32>, DeviceError> {
        let mut ints = self.ints.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, buffer)) = ints.iter().find(|(size, _)| *size == len) {
            return Ok(buffer.clone());
        }
        let buffer = self.backend.buffer(len)?;
        ints.push((len, buffer.clone()));
        Ok(buffer)
    }

    fn pop(&self, key: ShelfKey) -> Option<B::Tensor> {
        self.shelves
            .lock()
            .iter_mut()
            .find(|shelf| shelf.key == key)?
            .free
            .pop()
    }
}

impl<B: Backend> Deref for Scratch<B> {
    type Target = B::Tensor;

    fn deref(&self) -> &B::Tensor {
        &self.tensor
    }
}

impl<B: Backend> DerefMut for Scratch<B> {
    fn deref_mut(&mut self) -> &mut B::Tensor {
        &mut self.tensor
    }
}

impl<B: Backend> Drop for Scratch<B> {
    fn drop(&mut self) {
        let whole = self.whole.clone();
        let mut shelves = self.shelves.lock();
        match shelves.iter_mut().find(|shelf| shelf.key == self.key) {
            Some(shelf) => shelf.free.push(whole),
            None => shelves.push(Shelf {
                key: self.key,
                free: vec![whole],
            }),
        }
    }
}
