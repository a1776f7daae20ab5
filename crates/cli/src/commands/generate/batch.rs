//! All prompts at once: requests go in, events come out in any order, results are printed in the order of the
//! prompts.

use super::continuation::Continuation;
use super::prompts::Job;
use crate::Ending;
use crate::engine::explain_request;
use crate::format;
use crate::interrupt::Interrupt;
use crate::terminal;
use crate::ui::{self, Ui};
use anyhow::{Context, Result, anyhow};
use paceline::{Event, Handle, RequestError, Streams};
use paceline_text::Tokenizer;
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// How soon Ctrl-C is noticed when no events come.
const PATIENCE: Duration = Duration::from_millis(50);

/// How results are printed.
pub(super) struct Printing<'a> {
    pub(super) tokenizer: Option<&'a Tokenizer>,
    pub(super) json: bool,
    /// Stdout is a terminal, with or without colours.
    pub(super) terminal: Option<bool>,
    pub(super) load_time: Duration,
    pub(super) ui: Ui,
}

/// The jobs under way.
pub(super) struct Batch<'a> {
    handle: &'a Handle,
    jobs: &'a [Job],
    /// One per job that was submitted, with the job's index.
    streams: Streams,
    submitted: usize,
    /// All continuations in the order they are printed, and where each job's begin.
    continuations: Vec<Continuation<'a>>,
    first: Vec<usize>,
    printer: Printer<'a>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(handle: &'a Handle, jobs: &'a [Job], printing: Printing<'a>) -> Self {
        let mut continuations = Vec::new();
        let mut first = Vec::with_capacity(jobs.len());
        for job in jobs {
            first.push(continuations.len());
            continuations
                .extend((0..job.n()).map(|choice| Continuation::new(job, choice, printing.tokenizer)));
        }
        let printer = Printer {
            printing,
            jobs: jobs.len(),
            head: 0,
            begun: false,
            shown: 0,
        };
        Self {
            handle,
            jobs,
            streams: Streams::default(),
            submitted: 0,
            continuations,
            first,
            printer,
        }
    }

    /// Continuations handed to the engine.
    pub(super) fn submitted(&self) -> usize {
        self.jobs[..self.submitted].iter().map(Job::n).sum()
    }

    /// Runs all jobs, or until the user stops them.
    pub(super) fn run(&mut self, interrupt: &Interrupt) -> Result<Ending> {
        let mut cancelled = false;
        self.submit()?;
        while !self.streams.is_empty() {
            if interrupt.requested() && !cancelled {
                self.streams.cancel_all();
                cancelled = true;
            }
            let Some((index, event)) = self.streams.next(Instant::now() + PATIENCE) else {
                continue;
            };
            match event {
                Some(event) => self
                    .take(index, event)
                    .map_err(|error| self.jobs[index].failure(error))?,
                None => self.end(index)?,
            }
            if !cancelled {
                self.submit()?;
            }
            self.printer.advance(&self.continuations)?;
        }
        Ok(if cancelled {
            Ending::Cancelled
        } else {
            Ending::Done
        })
    }

    /// Hands in as many jobs as the engine's queue has room for.
    fn submit(&mut self) -> Result<()> {
        while let Some(job) = self.jobs.get(self.submitted) {
            match self.handle.generate(job.request.clone()) {
                Ok(generation) => self.streams.add(generation),
                // There is room again when one of those under way has ended.
                Err(RequestError::QueueFull { .. }) if !self.streams.is_empty() => break,
                Err(error) => return Err(job.failure(explain_request(error, job.place.is_some()))),
            }
            self.submitted += 1;
        }
        Ok(())
    }

    fn take(&mut self, index: usize, event: Event) -> Result<()> {
        let of_job = self.first[index]..self.first[index] + self.jobs[index].n();
        let continuations = &mut self.continuations[of_job];
        match event {
            Event::Prompt { logprobs, .. } => continuations[0].prompt_logprobs.extend(logprobs),
            Event::Delta { choice, output } => {
                continuations[choice].push(output.ids, output.logprobs);
                // The engine knows nothing of stop strings.
                if continuations.iter().all(Continuation::is_settled) {
                    self.streams.cancel(index);
                }
            }
            Event::Finished { choice, finish } => continuations[choice].finish(finish),
            Event::Failed(failure) => return Err(anyhow!(failure)),
        }
        Ok(())
    }

    /// A stream ended: everything it had to give must have come.
    fn end(&self, index: usize) -> Result<()> {
        let of_job = self.first[index]..self.first[index] + self.jobs[index].n();
        if self.continuations[of_job].iter().all(Continuation::has_ended) {
            return Ok(());
        }
        let fault = self.handle.fault();
        Err(anyhow!(
            "the engine has stopped: {}",
            fault.unwrap_or_else(|| "no reason given".to_owned())
        ))
    }
}

/// Prints continuations in order. Text of the one whose turn it is comes as it grows.
struct Printer<'a> {
    printing: Printing<'a>,
    jobs: usize,
    /// Whose turn it is.
    head: usize,
    /// Its title is out.
    begun: bool,
    /// Bytes of its text that are out.
    shown: usize,
}

impl Printer<'_> {
    /// Prints what can be printed.
    fn advance(&mut self, continuations: &[Continuation<'_>]) -> Result<()> {
        while let Some(continuation) = continuations.get(self.head) {
            // Cancelled before anything came: there is nothing to print.
            if continuation.came_to_nothing() && !self.begun {
                self.next();
                continue;
            }
            if !self.printing.json {
                self.show(continuation)?;
            }
            if !continuation.has_ended() {
                break;
            }
            self.close(continuation)?;
        }
        Ok(())
    }

    /// The title, and the text as far as it is known and not yet shown.
    fn show(&mut self, continuation: &Continuation<'_>) -> Result<()> {
        if !self.begun {
            self.begun = true;
            if let Some(title) = title(continuation, self.jobs) {
                self.printing.ui.note(title);
            }
            print(&self.prompt(continuation.job))?;
        }
        print(&continuation.text[self.shown..])?;
        self.shown = continuation.text.len();
        Ok(())
    }

    /// The prompt, where it is shown: on a terminal it tells itself from its continuation.
    fn prompt(&self, job: &Job) -> String {
        match (self.printing.terminal, job.echo || !job.chat) {
            (Some(colours), true) => ui::dimmed(&job.text, colours),
            (None, _) if job.echo => job.text.clone(),
            _ => String::new(),
        }
    }

    /// The end of a continuation: its object, or what is said behind its text.
    fn close(&mut self, continuation: &Continuation<'_>) -> Result<()> {
        let Printing {
            tokenizer,
            json,
            load_time,
            ui,
            ..
        } = self.printing;
        self.next();
        let Some(report) = continuation.report(load_time) else {
            return Ok(());
        };
        let mut out = io::stdout().lock();
        if json {
            serde_json::to_writer(&mut out, &report.to_json(tokenizer)).map_err(io::Error::from)?;
        }
        writeln!(out)?;
        out.flush()?;
        if !json {
            for line in report.logprob_lines(tokenizer) {
                ui.note(line);
            }
            ui.note(report.closing_line(terminal::status_width()));
        }
        Ok(())
    }

    fn next(&mut self) {
        self.head += 1;
        self.begun = false;
        self.shown = 0;
    }
}

/// What tells a continuation from the others, where there are others.
fn title(continuation: &Continuation<'_>, jobs: usize) -> Option<String> {
    let Continuation { job, choice, .. } = continuation;
    let mut numbers = Vec::new();
    if jobs > 1 {
        numbers.push(format!("{}/{jobs}", job.index + 1));
    }
    if job.n() > 1 {
        numbers.push(format!("choice {}/{}", choice + 1, job.n()));
    }
    let preview = format::preview(&job.preview, 60);
    (!numbers.is_empty()).then(|| format!("[{}] {preview}", numbers.join(", ")))
}

fn print(text: &str) -> Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.context("cannot write to stdout")
}
