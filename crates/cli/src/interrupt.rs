//! Ctrl-C: the first one asks a generation to end, the second one ends the process.

use crate::terminal;
use anyhow::{Context, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit code of an interrupted run, as shells expect it.
pub(crate) const EXIT_CODE: u8 = 130;

/// Hears Ctrl-C. Outside of [`polite`](Self::polite) stretches it ends the process at once.
#[derive(Clone, Default)]
pub(crate) struct Interrupt {
    polite: Arc<AtomicBool>,
    requested: Arc<AtomicBool>,
}

impl Interrupt {
    /// Starts listening; once per process.
    pub(crate) fn install() -> Result<Self> {
        let interrupt = Self::default();
        let shared = interrupt.clone();
        ctrlc::set_handler(move || {
            let again = shared.requested.swap(true, Ordering::SeqCst);
            if again || !shared.polite.load(Ordering::SeqCst) {
                terminal::end(EXIT_CODE);
            }
        })
        .context("cannot listen for Ctrl-C")?;
        Ok(interrupt)
    }

    /// From now on the program looks at [`requested`](Self::requested) often enough.
    pub(crate) fn polite(&self) {
        self.polite.store(true, Ordering::SeqCst);
    }

    /// Forgets that the user wanted an end: what was to end has ended.
    pub(crate) fn reset(&self) {
        self.requested.store(false, Ordering::SeqCst);
    }

    /// Whether the user wants an end.
    pub(crate) fn requested(&self) -> bool {
        self.requested.load(Ordering::SeqCst)
    }
}
