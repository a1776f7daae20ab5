//! The terminal: how wide it is, and silence while a text comes.

use crate::format;
use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
use nix::unistd::{getpgrp, tcgetpgrp};
use std::io::{self, IsTerminal};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use tokio::signal::unix::{SignalKind, signal};

/// Exit code of a process that Ctrl-\ ended, as shells expect it.
const QUIT: u8 = 131;

/// What the terminal was like before it was silenced.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Columns of the terminal that stdout is, if it is one.
pub(crate) fn width() -> Option<usize> {
    size_of(&console::Term::stdout())
}

/// Columns of the terminal that stderr is, if it is one.
pub(crate) fn status_width() -> Option<usize> {
    size_of(&console::Term::stderr())
}

/// A text as wide as the terminal that stdout is, if it is one.
pub(crate) fn fitted(text: &str) -> String {
    fitted_to(width(), text)
}

/// A text as wide as the terminal that stderr is, if it is one.
pub(crate) fn fitted_status(text: &str) -> String {
    fitted_to(status_width(), text)
}

fn fitted_to(width: Option<usize>, text: &str) -> String {
    match width {
        // The last column stays free: some terminals go on below it.
        Some(width) => format::wrapped(text, width.saturating_sub(1)),
        None => text.to_owned(),
    }
}

fn size_of(terminal: &console::Term) -> Option<usize> {
    let (_, columns) = terminal.size_checked().filter(|_| terminal.is_term())?;
    Some(columns.into()).filter(|columns| *columns > 0)
}

/// While this lives, what is typed does not show: not the `^C` that ends an answer either. What is typed is kept for
/// whoever reads next.
pub(crate) struct Silence(());

impl Silence {
    /// Silences the terminal that is read from and written to, if there is one and this process may.
    pub(crate) fn begin() -> Option<Self> {
        let stdin = io::stdin();
        let both = stdin.is_terminal() && io::stdout().is_terminal();
        let before = tcgetattr(&stdin).ok().filter(|_| both && in_foreground())?;
        restore_at_quit();
        let mut silent = before.clone();
        silent.local_flags.remove(LocalFlags::ECHO);
        tcsetattr(&stdin, SetArg::TCSANOW, &silent).ok()?;
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        Some(Self(()))
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        restore();
    }
}

/// Makes the terminal what it was: also for a process that is about to end without further ado.
pub(crate) fn restore() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    // Where a shell has put this process into the background, the terminal is the shell's.
    if let Some(before) = before.filter(|_| in_foreground()) {
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &before);
    }
}

/// From the first silence on, Ctrl-\ ends the process with the terminal as it was. Before that it keeps its meaning, which is
/// a core dump; so it does where no thread can listen for it.
fn restore_at_quit() {
    static LISTENING: Once = Once::new();
    LISTENING.call_once(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let quit = runtime.and_then(|runtime| {
            let guard = runtime.enter();
            let quit = signal(SignalKind::quit())?;
            drop(guard);
            Ok((runtime, quit))
        });
        let Ok((runtime, mut quit)) = quit else {
            return;
        };
        let listener = thread::Builder::new().name("paceline-quit".to_owned());
        let _ = listener.spawn(move || {
            runtime.block_on(quit.recv());
            end(QUIT);
        });
    });
}

/// Ends the process at once, with the terminal as it was.
pub(crate) fn end(code: u8) -> ! {
    restore();
    std::process::exit(code.into())
}

/// Whether the terminal is this process's: one in the background would be stopped for changing it.
fn in_foreground() -> bool {
    tcgetpgrp(io::stdin()) == Ok(getpgrp())
}
