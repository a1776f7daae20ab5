//! What a line means: a message, or a command.

use anyhow::{Result, bail};
use std::path::PathBuf;

/// The commands, as `/help` shows them.
pub(super) const HELP: &str = "\
/help                 this list
/exit, /quit          leave (or Ctrl-D)
/clear, /reset        forget the conversation
/system [TEXT]        show or change what the model is told first; /system - takes it out
/retry, /regenerate   answer the last message again, with another seed
/undo                 take the last message and its answer back
/show                 show the conversation
/save FILE            write the conversation to a file
/load FILE            go on with a conversation from a file
/set [NAME VALUE]     show or change sampling: /set temperature 0.7, /set max_tokens 200; /set NAME - takes it back
/stats [on|off]       show the figures of all answers; show them after each, or not
/model                show the model and the server
/multiline            take several lines as one message, up to an empty line; again: back to one line

A line that ends in \\ goes on in the next one. //text is a message that starts with a slash.
Ctrl-C stops an answer and keeps what came of it.";

/// What a typed line means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Message(String),
    Command(Command),
}

/// What begins with a slash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Help,
    Exit,
    Clear,
    /// Nothing shows it; an empty text takes it out.
    System(Option<String>),
    Retry,
    Undo,
    Show,
    Save(PathBuf),
    Load(PathBuf),
    /// Nothing shows all; a name without a value takes it back.
    Set(Option<(String, Option<String>)>),
    Stats(Option<bool>),
    Model,
    Multiline,
}

/// Reads a line.
pub(super) fn parse(line: &str) -> Result<Line> {
    let Some(command) = line.strip_prefix('/') else {
        return Ok(Line::Message(line.to_owned()));
    };
    if command.starts_with('/') {
        return Ok(Line::Message(command.to_owned()));
    }
    let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    let rest = rest.trim();
    let command = match name {
        "help" | "?" => Command::Help,
        "exit" | "quit" | "bye" | "q" => Command::Exit,
        "clear" | "reset" | "new" => Command::Clear,
        "system" => Command::System(match rest {
            "" => None,
            "-" => Some(String::new()),
            text => Some(text.to_owned()),
        }),
        "retry" | "regenerate" => Command::Retry,
        "undo" => Command::Undo,
        "show" | "history" => Command::Show,
        "save" => Command::Save(file(name, rest)?),
        "load" => Command::Load(file(name, rest)?),
        "set" => Command::Set(setting(rest)?),
        "stats" => Command::Stats(match rest {
            "" => None,
            "on" => Some(true),
            "off" => Some(false),
            other => bail!("/stats {other}: it is on or off"),
        }),
        "model" => Command::Model,
        "multiline" => Command::Multiline,
        other => bail!("/{other} is no command; /help lists them, and //{other} is a message"),
    };
    Ok(Line::Command(command))
}

fn file(name: &str, rest: &str) -> Result<PathBuf> {
    if rest.is_empty() {
        bail!("/{name} needs the name of a file");
    }
    Ok(PathBuf::from(rest))
}

fn setting(rest: &str) -> Result<Option<(String, Option<String>)>> {
    if rest.is_empty() {
        return Ok(None);
    }
    let Some((name, value)) = rest.split_once(char::is_whitespace) else {
        bail!("/set {rest} needs a value, or - to take it back");
    };
    let value = Some(value.trim().to_owned()).filter(|value| value != "-");
    Ok(Some((name.replace('-', "_"), value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_start_with_a_slash_is_a_message() {
        assert_eq!(parse("a / b").unwrap(), Line::Message("a / b".to_owned()));
        assert_eq!(parse("//etc").unwrap(), Line::Message("/etc".to_owned()));
    }

    #[test]
    fn commands_take_what_follows_them() {
        let command = |line: &str| match parse(line).unwrap() {
            Line::Command(command) => command,
            Line::Message(text) => panic!("{text}"),
        };
        assert_eq!(
            command("/system Be  brief. "),
            Command::System(Some("Be  brief.".to_owned()))
        );
        assert_eq!(command("/system"), Command::System(None));
        assert_eq!(command("/save a b.json"), Command::Save("a b.json".into()));
        let set =
            |name: &str, value: Option<&str>| Command::Set(Some((name.to_owned(), value.map(str::to_owned))));
        assert_eq!(command("/set max-tokens 9"), set("max_tokens", Some("9")));
        assert_eq!(command("/set seed -"), set("seed", None));
        assert_eq!(command("/stats off"), Command::Stats(Some(false)));
    }

    #[test]
    fn wrong_commands_are_told_what_is_wrong() {
        for (line, part) in [
            ("/", "/help"),
            ("/frobnicate", "//frobnicate"),
            ("/save", "file"),
            ("/set temperature", "value"),
            ("/stats maybe", "on or off"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn every_command_of_the_list_is_known() {
        let lines = HELP
            .lines()
            .filter(|line| line.starts_with('/') && !line.starts_with("//"));
        for line in lines {
            let names = line.split_whitespace().map_while(|word| word.strip_prefix('/'));
            for name in names {
                let name = name.trim_end_matches(',');
                let known = ["", " on", " temperature 1"]
                    .iter()
                    .any(|rest| parse(&format!("/{name}{rest}")).is_ok());
                assert!(known, "{name}");
            }
        }
    }
}
