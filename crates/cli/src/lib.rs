//! The `paceline` command line: flags become a validated configuration, one command runs, one exit code is given.
//!
//! A library beside a program of one line, as Cargo compiles it while the crates that it uses are still on their way to
//! machine code; a program has to wait for all of them.

mod client;
mod commands;
mod engine;
mod env;
mod flags;
mod format;
mod interrupt;
mod model;
mod packed;
mod seed;
mod terminal;
mod ui;

use flags::{Cli, Command};
use std::io;
use std::process::ExitCode;
use ui::Ui;

/// How a command ended that leaves nothing to be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// It did what it was asked to.
    Done,
    /// The user stopped it.
    Cancelled,
    /// It failed and has said why.
    Failed,
}

/// Runs the command that the process was started with, to its exit code.
pub fn main() -> ExitCode {
    paceline::return_large_allocations();
    let Cli {
        command,
        quiet,
        log,
        notes,
    } = Cli::parse_or_exit();
    let ui = Ui::new(quiet);
    for note in notes {
        ui.note(format_args!("note: {note}"));
    }
    let result = run(command, log, ui);
    match result {
        Ok(Ending::Done) => ExitCode::SUCCESS,
        Ok(Ending::Cancelled) => ExitCode::from(interrupt::EXIT_CODE),
        Ok(Ending::Failed) => ExitCode::FAILURE,
        // The reader of the output has closed it.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            ui::error(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command, log: Option<flags::LogLevel>, ui: Ui) -> anyhow::Result<Ending> {
    // A server has a log of its own, which its clients never wait for.
    if !matches!(command, Command::Serve(_)) {
        start_log(log)?;
    }
    match command {
        Command::Generate(flags) => return commands::generate::run(&flags.into_config(), ui),
        Command::Run(flags) => return commands::chat::run(flags.into_config(), ui),
        Command::Chat(flags) => return commands::chat::run(flags.into_config(), ui),
        Command::Serve(flags) => return commands::serve::run(flags.into_config(log), ui),
        Command::Bench(command) => return commands::bench::run(&command, ui),
        Command::Selftest(flags) => return commands::selftest::run(&flags),
        Command::Pull(flags) => commands::hub::pull(&flags, ui)?,
        Command::List(flags) => commands::hub::list(&flags)?,
        Command::Rm(flags) => commands::hub::rm(&flags, ui)?,
        Command::Pack(flags) => commands::pack::run(&flags, ui)?,
        Command::Inspect(flags) => commands::inspect::run(&flags, ui)?,
        Command::Doctor(flags) => commands::doctor::run(&flags)?,
        Command::Completions(flags) => commands::completions::run(&flags)?,
        Command::Man(flags) => commands::man::run(&flags)?,
    }
    Ok(Ending::Done)
}

fn start_log(level: Option<flags::LogLevel>) -> anyhow::Result<()> {
    let level = level.map_or_else(env::log_level, |level| Ok(Some(level)))?;
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_target(false)
        .with_max_level(level.unwrap_or(flags::LogLevel::Warn).filter())
        .init();
    Ok(())
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let broken = |cause: &io::Error| cause.kind() == io::ErrorKind::BrokenPipe;
    error
        .chain()
        .any(|cause| cause.downcast_ref::<io::Error>().is_some_and(broken))
}
