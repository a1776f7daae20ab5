//! What can be typed on the command line.

mod bench;
mod bench_serve;
mod chat;
mod config_file;
mod engine;
mod foreign;
mod generate;
mod hub;
mod limits;
pub(crate) mod numbers;
mod sampling;
mod serve;
mod speculation;
mod tools;
mod unused;
mod vllm;

pub(crate) use bench::{
    BenchCommand, BenchLatencyFlags, BenchPipelineFlags, BenchQualityFlags, BenchSpeculationFlags,
    BenchThroughputFlags, MeasureFlags, WorkloadFlag,
};
pub(crate) use bench_serve::{BenchCompareFlags, BenchServeFlags, RequestFlags, ServerFlags};
pub(crate) use chat::{ChatFlags, RunFlags};
pub(crate) use generate::GenerateFlags;
pub(crate) use hub::{ListFlags, PullFlags, RmFlags};
pub(crate) use sampling::NOT_IN_CHAT;
pub(crate) use serve::ServeFlags;
pub(crate) use speculation::{DraftModel, DraftTokens, SpeculationFlags};
pub(crate) use tools::{CompletionsFlags, DoctorFlags, InspectFlags, ManFlags, PackFlags, SelftestFlags};

use crate::ui;
use anyhow::anyhow;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use tracing_subscriber::filter::LevelFilter;

const EXAMPLES: &str = "\
Examples:
  paceline generate --prompt \"Once upon a time\"
  paceline run org/name:Q4_K_M
  paceline serve path/to/model --port 8000
  paceline inspect path/to/model.gguf
  paceline doctor

Exit codes: 0 success, 1 failure, 2 wrong usage, 130 stopped by Ctrl-C.";

/// What the program says by itself: little enough for a terminal of 24 lines.
const BRIEF: &str = "\
{about}

Usage: {usage}

Commands:
{subcommands}

`paceline run` talks to the built-in model; `paceline --help` tells the rest.
";

/// Runs large language models on this machine.
///
/// A small story-telling model is built in, so every command works without a download. Other models are given
/// as a folder in Hugging Face layout, as a GGUF file, or by their name on the Hugging Face hub.
#[derive(Debug, Parser)]
#[command(name = "paceline", version, after_help = EXAMPLES, max_term_width = 100)]
#[command(disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Print nothing on stderr but errors.
    #[arg(short, long, global = true, help_heading = "Messages")]
    pub(crate) quiet: bool,
    /// Log to stderr from this level on [default: $PACELINE_LOG, or warn].
    #[arg(long, global = true, value_name = "LEVEL", help_heading = "Messages")]
    pub(crate) log: Option<LogLevel>,
    /// What was left out of the command line, and why.
    #[arg(skip)]
    pub(crate) notes: Vec<String>,
}

impl Cli {
    /// What was typed, if it makes sense; ends the program if not.
    pub(crate) fn parse_or_exit() -> Self {
        // What is not text is no flag of anyone's, and clap says so.
        let given: Result<Vec<String>, _> = std::env::args_os().map(OsString::into_string).collect();
        let cli = match given.map(|given| foreign::translate(&Self::command(), given)) {
            Ok(Ok(translated)) => Self {
                notes: translated.notes,
                ..Self::parse_ours(translated.arguments.into_iter().map(Into::into))
            },
            Ok(Err(refusal)) => refuse_usage(&refusal),
            Err(_) => Self::parse_ours(std::env::args_os()),
        };
        if let Some(conflict) = cli.command.speculation().and_then(SpeculationFlags::conflict) {
            refuse_usage(&conflict);
        }
        if let Command::Run(flags) = &cli.command
            && let Some(misplaced) = flags.misplaced_text()
        {
            refuse_usage(&misplaced);
        }
        if let Command::Generate(flags) = &cli.command
            && flags.lacks_prompt()
        {
            refuse_usage("no prompt: give --prompt, --prompt-ids or --prompts, or pipe one in");
        }
        cli
    }

    fn parse_ours(arguments: impl Iterator<Item = OsString>) -> Self {
        let arguments: Vec<OsString> = arguments.collect();
        let mut command = Self::command();
        if arguments.len() < 2 {
            command = command.help_template(BRIEF);
        }
        let parsed = command.try_get_matches_from(&arguments);
        let ours = parsed.and_then(|mut matches| Self::from_arg_matches_mut(&mut matches));
        ours.unwrap_or_else(|mut error| {
            let command = command_path(&arguments);
            if let Some(refusal) = unknown_flag(&error, &command) {
                refuse_usage(&refusal);
            }
            if let Some(hint) = stray_word_hint(&error, &command) {
                error.insert(
                    ContextKind::Suggested,
                    ContextValue::StyledStrs(vec![hint.into()]),
                );
            }
            error.exit()
        })
    }
}

/// The command that a line names: `paceline bench serve`.
fn command_path(words: &[OsString]) -> String {
    let cli = Cli::command();
    let (mut command, mut path) = (&cli, cli.get_name().to_owned());
    for word in words.iter().skip(1) {
        if let Some(next) = command.find_subcommand(word) {
            command = next;
            path = format!("{path} {}", next.get_name());
        }
    }
    path
}

/// What to say of a flag that nobody has; clap would guess which one was meant.
fn unknown_flag(error: &clap::Error, command: &str) -> Option<String> {
    let flag = stray(error).filter(|stray| stray.starts_with('-'))?;
    Some(format!(
        "{flag} is unknown: `{command} --help` lists the flags there are, docs/flags.md those of other programs"
    ))
}

/// What a command has no place for, if that is what is wrong.
fn stray(error: &clap::Error) -> Option<&str> {
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(stray)) if error.kind() == ErrorKind::UnknownArgument => Some(stray),
        _ => None,
    }
}

/// What to do with a word that a command has no place for.
fn stray_word_hint(error: &clap::Error, command: &str) -> Option<&'static str> {
    (stray(error).is_some() && command == "paceline generate")
        .then_some("a prompt goes behind '--prompt', a model behind '--model'")
}

/// The exit code for wrong usage, which is clap's too.
const WRONG_USAGE: i32 = 2;

/// Ends the program as for flags that make no sense: with a sentence, and none of clap's usage, which knows no command here.
pub(crate) fn refuse_usage(message: &str) -> ! {
    ui::error(&anyhow!("{message}"));
    ui::hint("For more information, try '--help'.");
    std::process::exit(WRONG_USAGE)
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<RunFlags>),
    Generate(Box<GenerateFlags>),
    Chat(Box<ChatFlags>),
    Serve(Box<ServeFlags>),
    Pull(PullFlags),
    #[command(alias = "ls")]
    List(ListFlags),
    #[command(alias = "remove")]
    Rm(RmFlags),
    Pack(PackFlags),
    #[command(alias = "show")]
    Inspect(InspectFlags),
    Doctor(DoctorFlags),
    Selftest(SelftestFlags),
    #[command(subcommand)]
    Bench(BenchCommand),
    Completions(CompletionsFlags),
    Man(ManFlags),
}

impl Command {
    /// The flags about drafts, of commands that have them.
    fn speculation(&self) -> Option<&SpeculationFlags> {
        match self {
            Self::Run(flags) => Some(flags.speculation()),
            Self::Generate(flags) => Some(flags.speculation()),
            Self::Chat(flags) => Some(flags.speculation()),
            Self::Serve(flags) => Some(flags.speculation()),
            Self::Bench(command) => command.speculation(),
            Self::Pull(_)
            | Self::List(_)
            | Self::Rm(_)
            | Self::Pack(_)
            | Self::Inspect(_)
            | Self::Doctor(_)
            | Self::Selftest(_)
            | Self::Completions(_)
            | Self::Man(_) => None,
        }
    }
}

/// How much is logged.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    /// The same as the log knows it.
    pub(crate) fn filter(self) -> LevelFilter {
        match self {
            Self::Off => LevelFilter::OFF,
            Self::Error => LevelFilter::ERROR,
            Self::Warn => LevelFilter::WARN,
            Self::Info => LevelFilter::INFO,
            Self::Debug => LevelFilter::DEBUG,
            Self::Trace => LevelFilter::TRACE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_contradict_each_other_nowhere() {
        Cli::command().debug_assert();
    }
}
