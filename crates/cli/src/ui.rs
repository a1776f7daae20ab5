//! What the user sees on stderr: notes, errors and progress. Results go to stdout and do not pass here.

use crate::{format, terminal};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use paceline_bench::{Bar, Progress, Unit};
use paceline_weights::hub;
use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Work shorter than this needs no bar.
const PATIENCE: Duration = Duration::from_millis(300);

/// Stderr, with what the user wants of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ui {
    quiet: bool,
    terminal: bool,
}

impl Ui {
    /// Stderr, silent but for errors if `quiet`.
    pub(crate) fn new(quiet: bool) -> Self {
        Self {
            quiet,
            terminal: io::stderr().is_terminal(),
        }
    }

    /// A note, unless quiet; on a terminal its lines end between words.
    pub(crate) fn note(self, text: impl Display) {
        self.verbatim(terminal::fitted_status(&text.to_string()));
    }

    /// The same for what may not be cut into lines: commands to be pasted, and texts that have been.
    pub(crate) fn verbatim(self, text: impl Display) {
        if !self.quiet {
            write_line(text);
        }
    }

    /// A bar over `total` units of work; it shows once the work turns out to take time.
    pub(crate) fn bar(self, total: u64, template: &'static str) -> LateBar {
        LateBar {
            shown: self.terminal && !self.quiet,
            start: Instant::now(),
            bar: hidden_bar(total, template),
            done: Cell::new(0),
        }
    }

    /// Bars for the files of a download.
    pub(crate) fn downloads(self) -> Downloads {
        Downloads {
            ui: self,
            bar: RefCell::new(ProgressBar::hidden()),
        }
    }
}

/// A text that stays in the background, where there are colours.
pub(crate) fn dimmed(text: &str, colours: bool) -> String {
    if colours && !text.is_empty() {
        format!("\x1b[2m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

/// Prints a failure with its causes: in one line, or as many as the terminal needs.
pub(crate) fn error(error: &anyhow::Error) {
    let causes = format!("{error:#}").replace('\n', " ");
    write_line(terminal::fitted_status(&format!("error: {causes}")));
}

/// A word on what to do after a failure.
pub(crate) fn hint(text: &str) {
    write_line(format_args!("\n{text}"));
}

/// A stderr that is gone is no reason to fail.
fn write_line(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

fn hidden_bar(total: u64, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden())
        .with_style(style.progress_chars("=> "))
}

/// A bar for loading bytes.
pub(crate) const LOADING: &str = "loading [{bar:30}] {decimal_bytes}/{decimal_total_bytes}";
/// A bar for packing bytes.
pub(crate) const PACKING: &str = "packing [{bar:30}] {decimal_bytes}/{decimal_total_bytes}";
/// A bar for loading the bytes of a drafter.
pub(crate) const LOADING_DRAFTER: &str =
    "loading the draft model [{bar:30}] {decimal_bytes}/{decimal_total_bytes}";
const TASKS: &str = "[{bar:30}] {pos}/{len} {msg}";
const SECONDS: &str = "[{bar:30}] {pos}/{len} s {msg}";
const DOWNLOADING: &str =
    "{msg} [{wide_bar}] {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}";
/// Characters of a file's name beside its bar.
const FILE_NAME: usize = 32;

/// A bar that is invisible at first and gone at the end.
pub(crate) struct LateBar {
    shown: bool,
    start: Instant,
    bar: ProgressBar,
    done: Cell<u64>,
}

impl LateBar {
    /// `units` more are done.
    pub(crate) fn advance(&self, units: u64) {
        self.done.set(self.done.get() + units);
        if self.shown && self.start.elapsed() >= PATIENCE {
            if self.bar.is_hidden() {
                self.bar.set_draw_target(ProgressDrawTarget::stderr());
            }
            self.bar.set_position(self.done.get());
        }
    }
}

impl Progress for Ui {
    fn bar(&self, total: u64, unit: Unit) -> Box<dyn Bar> {
        let template = match unit {
            Unit::Tasks => TASKS,
            Unit::Seconds => SECONDS,
        };
        Box::new(Ui::bar(*self, total, template))
    }

    fn note(&self, line: &dyn Display) {
        Ui::note(*self, line);
    }
}

impl Bar for LateBar {
    fn name(&self, task: String) {
        self.bar.set_message(task);
    }

    fn advance(&self, units: u64) {
        LateBar::advance(self, units);
    }
}

impl Drop for LateBar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Shows downloads: a bar on a terminal, else a line per file.
pub(crate) struct Downloads {
    ui: Ui,
    bar: RefCell<ProgressBar>,
}

impl hub::Progress for Downloads {
    fn start(&self, file: &str, total: Option<u64>) {
        if !self.ui.terminal {
            let size = total.map(|total| format!(" ({})", format::bytes(total)));
            self.ui
                .note(format_args!("downloading {file}{}", size.unwrap_or_default()));
        } else if !self.ui.quiet {
            let bar =
                hidden_bar(total.unwrap_or(0), DOWNLOADING).with_message(format::ending(file, FILE_NAME));
            bar.set_draw_target(ProgressDrawTarget::stderr());
            self.bar.replace(bar).finish_and_clear();
        }
    }

    fn advance(&self, bytes: u64) {
        self.bar.borrow().inc(bytes);
    }

    fn finish(&self) {
        self.bar.borrow().finish();
    }

    fn wait(&self, file: &str) {
        self.ui.note(format_args!(
            "{file} is being downloaded by another process; waiting for it"
        ));
    }
}
