//! Flags and commands that people know from vLLM, llama.cpp and Ollama. Before clap sees a command line, each of them becomes one of ours, is left
//! out with a note, or is refused with what to do instead; `foreign/table.rs`, `foreign/rare.rs` and `foreign/commands.rs` say which. A flag that the command has itself
//! means what it means there.

mod commands;
mod rare;
mod table;

use super::config_file;
use clap::Command;
use table::{FLAGS, Foreign, Meaning, Takes, VALUES};

/// The commands that run models, which are the ones that others have too.
const COMMANDS: [&str; 4] = ["serve", "run", "chat", "generate"];

/// A command line of ours, and what was left out of it and why.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Translated {
    pub(super) arguments: Vec<String>,
    pub(super) notes: Vec<String>,
}

/// Makes `arguments`, the program's name first, a command line of ours; or says what cannot be done.
pub(super) fn translate(cli: &Command, arguments: Vec<String>) -> Result<Translated, String> {
    let arguments = commands::translate(&arguments).unwrap_or(Ok(arguments))?;
    // The first that is a command: `bench serve` is not `serve`.
    let mut words = arguments.iter().enumerate().skip(1);
    let command = words.find_map(|(at, word)| Some((at, cli.find_subcommand(word)?)));
    let Some((at, command)) = command.filter(|(_, command)| COMMANDS.contains(&command.get_name())) else {
        return Ok(Translated {
            arguments,
            notes: Vec::new(),
        });
    };
    let (before, given) = arguments.split_at(at + 1);
    let mut line = Line {
        cli,
        command,
        hub_file: None,
        done: Translated {
            arguments: before.to_vec(),
            notes: Vec::new(),
        },
    };
    line.take(config_file::expanded(given)?.into_iter())?;
    line.finish()
}

/// Every flag of others that is known.
fn every_flag() -> impl Iterator<Item = &'static Foreign> {
    [FLAGS, rare::MODEL, rare::ENGINE, rare::SERVER]
        .into_iter()
        .flatten()
}

/// A command line on its way to ours.
struct Line<'a> {
    cli: &'a Command,
    command: &'a Command,
    /// The file that goes with `-hf`.
    hub_file: Option<String>,
    done: Translated,
}

impl Line<'_> {
    fn take(&mut self, mut given: impl Iterator<Item = String>) -> Result<(), String> {
        let mut ahead: Option<String> = None;
        while let Some(argument) = ahead.take().or_else(|| given.next()) {
            if argument == "--" {
                self.done.arguments.push(argument);
                self.done.arguments.extend(given);
                return Ok(());
            }
            let (flag, attached) = match argument.split_once('=') {
                Some((flag, value)) if flag.starts_with("--") => (flag.to_owned(), Some(value.to_owned())),
                _ => (argument.clone(), None),
            };
            let flag = flag.as_str();
            let foreign = every_flag().find(|foreign| foreign.names.contains(&flag));
            let Some(foreign) = foreign.filter(|_| !self.knows(flag)) else {
                self.own(argument, (flag, attached.as_deref()), &mut given)?;
                continue;
            };
            let value = match (foreign.takes, attached) {
                (_, Some(value)) => Some(value),
                (Takes::Nothing, None) => None,
                (Takes::Value, None) => Some(given.next().ok_or(format!("{flag} needs a value"))?),
                (Takes::Switch, None) => {
                    let next = given.next();
                    let is_value = next.as_deref().is_some_and(is_switch);
                    let (value, rest) = if is_value { (next, None) } else { (None, next) };
                    ahead = rest;
                    value
                }
            };
            self.foreign(foreign, flag, value)?;
        }
        Ok(())
    }

    /// A flag or value of ours, or of nobody's: clap sees to it, but for values that mean something elsewhere.
    fn own(
        &mut self,
        argument: String,
        (flag, attached): (&str, Option<&str>),
        given: &mut impl Iterator<Item = String>,
    ) -> Result<(), String> {
        let mut rules = VALUES.iter().filter(|(own, ..)| *own == flag).peekable();
        if rules.peek().is_none() || !self.knows(flag) {
            self.done.arguments.push(argument);
            return Ok(());
        }
        let next = if attached.is_none() { given.next() } else { None };
        let value = attached.or(next.as_deref()).unwrap_or_default();
        if let Some((.., meaning)) = rules.find(|(_, matches, _)| matches(value)) {
            return self.apply(*meaning, flag, Some(value.to_owned()));
        }
        self.done.arguments.push(argument);
        self.done.arguments.extend(next);
        Ok(())
    }

    fn foreign(&mut self, foreign: &Foreign, flag: &str, value: Option<String>) -> Result<(), String> {
        if foreign.names.contains(&"--hf-file") {
            self.hub_file = value;
            return Ok(());
        }
        let given = value.as_deref().unwrap_or_default();
        let mut rules = VALUES.iter().filter(|(name, ..)| foreign.names.contains(name));
        let rule = rules.find(|(_, matches, _)| matches(given));
        self.apply(
            rule.map_or(foreign.meaning, |(.., meaning)| *meaning),
            flag,
            value,
        )
    }

    fn apply(&mut self, meaning: Meaning, flag: &str, value: Option<String>) -> Result<(), String> {
        let typed = match &value {
            Some(value) => format!("{flag} {value}"),
            None => flag.to_owned(),
        };
        match meaning {
            Meaning::Ours(_, defaults) if value.as_deref().is_some_and(|value| defaults.contains(&value)) => {
            }
            Meaning::Ours(ours, _) => {
                self.check(flag, ours)?;
                self.done.arguments.push(ours.to_owned());
                self.done.arguments.extend(value);
            }
            Meaning::Instead(ours) => {
                if let Some(first) = ours.first() {
                    self.check(flag, first)?;
                }
                self.done.arguments.extend(ours.iter().map(ToString::to_string));
            }
            Meaning::Nothing(why) => self.note(&typed, why),
            Meaning::Only(values, why, _)
                if value.as_deref().is_some_and(|value| values.contains(&value)) =>
            {
                self.note(&typed, why);
            }
            Meaning::Only(_, _, instead) | Meaning::Refused(instead) => {
                let instead = instead.replace("VALUE", value.as_deref().unwrap_or_default());
                return Err(format!("{typed} cannot be used: {instead}"));
            }
        }
        Ok(())
    }

    /// Refuses a flag whose counterpart the command does not have.
    fn check(&self, flag: &str, ours: &str) -> Result<(), String> {
        if self.knows(ours) {
            return Ok(());
        }
        let command = self.command.get_name();
        Err(format!(
            "{flag} is {ours} here, which `paceline {command}` does not have"
        ))
    }

    fn note(&mut self, typed: &str, why: &str) {
        self.done.notes.push(format!("{typed} has no effect: {why}"));
    }

    /// Whether the command has the flag itself.
    fn knows(&self, flag: &str) -> bool {
        let everywhere = self.cli.get_arguments();
        self.command
            .get_arguments()
            .chain(everywhere)
            .any(|known| match flag.strip_prefix("--") {
                Some(long) => {
                    known.get_long() == Some(long)
                        || known.get_all_aliases().is_some_and(|all| all.contains(&long))
                }
                None => known.get_short().is_some_and(|short| flag == format!("-{short}")),
            })
    }

    fn finish(mut self) -> Result<Translated, String> {
        if let Some(file) = self.hub_file {
            let arguments = &mut self.done.arguments;
            let model = arguments.iter().position(|argument| argument == "--model");
            let name = model.and_then(|at| arguments.get_mut(at + 1));
            let name = name.ok_or("--hf-file needs -hf with the repository that the file is in")?;
            *name = format!("{name}:{file}");
        }
        Ok(self.done)
    }
}

/// Whether a word is the value of a flag that may go without one.
fn is_switch(word: &str) -> bool {
    matches!(word, "on" | "off" | "auto" | "true" | "false" | "0" | "1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::Cli;
    use clap::{CommandFactory, Parser};

    fn translated(line: &str) -> Result<Translated, String> {
        let words = ["paceline"].into_iter().chain(line.split(' '));
        translate(&Cli::command(), words.map(str::to_owned).collect())
    }

    fn ours(line: &str) -> String {
        let translated = translated(line).unwrap();
        assert_eq!(translated.notes, [""; 0], "{line}");
        let parsed = Cli::try_parse_from(&translated.arguments);
        assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
        translated.arguments[1..].join(" ")
    }

    #[test]
    fn flags_of_others_become_ours() {
        for (theirs, expected) in [
            (
                "serve -m m.gguf -c 4096 -np 4",
                "serve -m m.gguf --max-model-len 4096 --max-num-seqs 4",
            ),
            ("serve -hf org/name:Q4_K_M", "serve --model org/name:Q4_K_M"),
            (
                "serve --hf-repo org/name --hf-file m.gguf",
                "serve --model org/name:m.gguf",
            ),
            ("serve -c 0 x", "serve x"),
            ("serve --ctx-size=8k", "serve --max-model-len 8k"),
            ("serve x --max-model-len auto", "serve x"),
            ("serve -ngl 0", "serve --device cpu"),
            (
                "serve -a chat --no-webui --timeout 60",
                "serve --served-model-name chat --no-page --request-timeout 60",
            ),
            (
                "run -hf org/name --repeat-penalty 1.1",
                "run --model org/name --repeat-penalty 1.1",
            ),
            ("chat -sys Hi --predict 5", "chat --system Hi --max-tokens 5"),
            (
                "generate -p x --n-predict 5 --seed 4",
                "generate -p x --max-tokens 5 --seed 4",
            ),
            (
                "serve -md small --draft-max 3",
                "serve --draft-model small --draft-tokens 3",
            ),
            (
                "serve --speculative-model [ngram] --num-speculative-tokens 3",
                "serve --speculation ngram --draft-tokens 3",
            ),
            ("serve x -dev cpu", "serve x --device cpu"),
            ("serve --num-gpu-blocks-override 64", "serve --num-blocks 64"),
            ("serve org/name --revision v2", "serve org/name --revision v2"),
            ("serve x -ctk f16", "serve x --kv-cache-dtype f16"),
            ("bench latency -c 4", "bench latency -c 4"),
            ("bench serve --warmup 0", "bench serve --warmup 0"),
            ("help", "--help"),
            ("help bench serve", "bench serve --help"),
            ("version", "--version"),
            ("serve help", "serve help"),
        ] {
            if theirs.starts_with("bench") || theirs.contains("help") || theirs == "version" {
                assert_eq!(translated(theirs).unwrap().arguments[1..].join(" "), expected);
            } else {
                assert_eq!(ours(theirs), expected);
            }
        }
    }

    #[test]
    fn flags_that_change_nothing_are_left_out_with_a_note() {
        for line in [
            "serve x --jinja -fa on -cb --mlock --no-mmap -ub 512 -ngl 99",
            "run x --trust-remote-code --enforce-eager --jinja",
            "generate -p x -tp 1 --quantization gguf --flash-attn --no-warmup",
            "serve x --guided-decoding-backend xgrammar --scheduling-policy priority --max-logprobs 20",
            "serve x --load-format safetensors",
            "serve x -fit on -kvu --no-repack -lv 3 --swa-full --enable-expert-parallel --log-colors",
        ] {
            let Translated { arguments, notes } = translated(line).unwrap();
            assert!(!notes.is_empty(), "{line}");
            assert!(
                notes.iter().all(|note| note.contains(" has no effect: ")),
                "{notes:?}"
            );
            assert!(Cli::try_parse_from(&arguments).is_ok(), "{line}: {arguments:?}");
        }
    }

    #[test]
    fn what_cannot_be_done_is_told_with_what_to_do() {
        for (line, part) in [
            ("serve x -tp 2", "one device"),
            ("serve x --tensor-parallel-size=2", "must be 1"),
            ("run x --tensor-parallel-size 2", "one device"),
            ("serve x --quantization awq", "GGUF"),
            ("serve x --enable-lora", "merge"),
            ("serve x --tokenizer y", "tokenizer.json"),
            ("serve x --dtype half", "--dtype auto"),
            ("serve x --kv-cache-dtype fp8", "float16 or bfloat16"),
            ("serve x -ctk q8_0", "float16 or bfloat16"),
            ("run x --cache-type-k=q4_0", "float16 or bfloat16"),
            ("serve x --download-dir /d", "HF_HUB_CACHE"),
            ("serve x --offline", "HF_HUB_OFFLINE"),
            ("serve x --no-kv-offload", "--device"),
            ("serve x --ignore-eos", "requests"),
            ("serve x --kv-transfer-config {}", "--kv-events-config"),
            ("serve x --log-file f", "2> f"),
            ("serve x -n 5", "max_tokens in requests"),
            ("chat -n 5", "--max-tokens 5"),
            ("serve x --predict 5", "does not have"),
            ("generate -p x -n 128", "--max-tokens 128"),
            ("generate -p x -t 8", "--threads 8"),
            ("serve x --hf-file m.gguf", "-hf"),
            ("serve x --mirostat 2", "top-p"),
            ("serve x -c", "needs a value"),
            ("serve x --config /nonexistent.yaml", "/nonexistent.yaml"),
            ("ps", "its page"),
            ("stop x", "Ctrl-C"),
            ("create x -f Modelfile", "--config"),
        ] {
            let message = match translated(line) {
                Err(message) => message,
                Ok(translated) => Cli::try_parse_from(&translated.arguments)
                    .unwrap_err()
                    .to_string(),
            };
            assert!(message.contains(part), "{line}: {message}");
            assert!(!message.contains("similar argument"), "{line}: {message}");
        }
    }

    #[test]
    fn every_flag_of_the_table_is_read_by_every_command_and_told_in_the_documents() {
        let documented = include_str!("../../../../docs/flags.md");
        for foreign in every_flag() {
            for name in foreign.names {
                assert!(
                    documented.contains(&format!("`{name}")),
                    "{name} is not in docs/flags.md"
                );
                assert_eq!(
                    every_flag().filter(|other| other.names.contains(name)).count(),
                    1,
                    "{name}"
                );
                for command in COMMANDS {
                    let value = if foreign.takes == Takes::Value { " 1" } else { "" };
                    let message = match translated(&format!("{command} {name}{value}")) {
                        Err(message) => message,
                        Ok(translated) => Cli::try_parse_from(&translated.arguments)
                            .err()
                            .map(|error| error.to_string())
                            .unwrap_or_default(),
                    };
                    for guess in ["unexpected argument", "similar argument"] {
                        assert!(!message.contains(guess), "{command} {name}: {message}");
                    }
                }
            }
        }
    }
}
