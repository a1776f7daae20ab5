//! A backend that owns no memory and writes down what it was asked to do.

mod backend;
mod handles;

pub use handles::{RecorderBuffer, RecorderCache, RecorderTensor, RecorderWeight};

use crate::{DeviceInfo, ElementTypes, UsualLoad};
use handles::RecorderRead;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Records operations with the identities and shapes of their operands.
///
/// Two steps whose recordings are equal are the same program: a device that captured the first can replay it
/// for the second.
#[derive(Clone)]
pub struct Recorder {
    info: Arc<DeviceInfo>,
    bytes: Arc<AtomicU64>,
    log: Arc<Mutex<Vec<String>>>,
    next_id: Arc<AtomicUsize>,
    waits: Arc<AtomicU64>,
    posted: Arc<Mutex<Vec<i32>>>,
    silent: bool,
}

impl Default for Recorder {
    fn default() -> Self {
        let info = DeviceInfo {
            name: "recorder".to_owned(),
            description: "no device: operations are written down".to_owned(),
            kernels: "none".to_owned(),
            elements: ElementTypes::F32,
            alignment: 1,
            total_memory: None,
            free_memory: None,
            shares_host_memory: true,
            power_of_two_blocks: false,
            quantises: true,
            usual: UsualLoad::SMALL,
        };
        Self {
            info: Arc::new(info),
            bytes: Arc::default(),
            log: Arc::default(),
            next_id: Arc::default(),
            waits: Arc::default(),
            posted: Arc::default(),
            silent: false,
        }
    }
}

impl Recorder {
    /// A recorder with an empty log.
    pub fn new() -> Self {
        Self::default()
    }

    /// A recorder that writes nothing down and counts the bytes of buffers and tensors as this device would store them.
    pub fn like(info: DeviceInfo) -> Self {
        Self {
            info: Arc::new(info),
            ..Self::silent()
        }
    }

    /// A recorder that writes nothing down, to measure what its callers cost.
    pub fn silent() -> Self {
        Self {
            silent: true,
            ..Self::default()
        }
    }

    /// The operations so far; the log is emptied.
    pub fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut *self.log.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Buffers, tensors, weights and caches made so far.
    pub fn allocations(&self) -> usize {
        self.next_id.load(Ordering::Relaxed)
    }

    fn id(&self) -> usize {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    fn reads(&self, len: usize) -> RecorderRead {
        RecorderRead {
            len,
            waits: Arc::clone(&self.waits),
        }
    }

    /// Writes a line down; one that nothing keeps is not even put together.
    fn record(&self, line: fmt::Arguments<'_>) {
        if !self.silent {
            let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
            log.push(line.to_string());
        }
    }
}
