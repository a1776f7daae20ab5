//! Commands that people know from Ollama and others, and what they are here.

/// What a command of others is here.
enum Meaning {
    /// A flag behind the words that follow it.
    Flag(&'static str),
    /// Nothing; what to do instead.
    Refused(&'static str),
}

const COMMANDS: [(&str, Meaning); 5] = [
    ("help", Meaning::Flag("--help")),
    ("version", Meaning::Flag("--version")),
    (
        "ps",
        Meaning::Refused(
            "a model is loaded as long as the `serve`, `run` or `chat` that uses it; what a server does is on its page",
        ),
    ),
    (
        "stop",
        Meaning::Refused(
            "a model is unloaded when the `serve`, `run` or `chat` that uses it ends: Ctrl-C ends them",
        ),
    ),
    (
        "create",
        Meaning::Refused(
            "models are used as they are; give system prompt and sampling as flags of `serve`, `run` or `chat`, \
             or in a file with --config",
        ),
    ),
];

/// A command line of ours, if the first word of `arguments`, the program's name before it, is a command of others.
pub(super) fn translate(arguments: &[String]) -> Option<Result<Vec<String>, String>> {
    let (program, [command, behind @ ..]) = arguments.split_first()? else {
        return None;
    };
    let (_, meaning) = COMMANDS.iter().find(|(name, _)| name == command)?;
    Some(match meaning {
        Meaning::Flag(flag) => {
            let words = [program].into_iter().chain(behind).cloned();
            Ok(words.chain([(*flag).to_owned()]).collect())
        }
        Meaning::Refused(instead) => Err(format!("there is no `paceline {command}`: {instead}")),
    })
}
