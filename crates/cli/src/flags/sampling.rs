//! The flags of the options that requests have, from the engine's table of them.

use super::numbers::TokenBias;
use clap::builder::ValueParser;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use paceline::{OPTIONS, OptionKind, Options, RequestError, RequestOption};
use serde_json::{Map, Value, json};

/// The heading of those that are about sampling.
const SAMPLING: &str = "Sampling (defaults come from the model's generation_config.json)";

/// The options that are no flags of `chat`: a conversation has one answer at a time and the engine for itself.
pub(crate) const NOT_IN_CHAT: [&str; 5] = ["n", "logprobs", "prompt_logprobs", "priority", "deadline_ms"];

/// Flags with one letter.
const LETTERS: [(&str, char); 3] = [("temperature", 't'), ("seed", 's'), ("n", 'n')];

/// The options as flags; in `CHAT`, those that a conversation has.
#[derive(Clone, Debug, Default)]
pub(crate) struct OptionFlags<const CHAT: bool>(pub(crate) Options);

impl<const CHAT: bool> OptionFlags<CHAT> {
    fn options() -> impl Iterator<Item = &'static RequestOption> {
        let here = |option: &&RequestOption| !CHAT || !NOT_IN_CHAT.contains(&option.name);
        OPTIONS.iter().filter(here)
    }
}

impl<const CHAT: bool> Args for OptionFlags<CHAT> {
    fn augment_args(command: Command) -> Command {
        command.args(Self::options().map(|option| flag(option, CHAT)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<const CHAT: bool> FromArgMatches for OptionFlags<CHAT> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut options = Options::default();
        for option in Self::options() {
            let value = given(option, matches);
            let set = options.set(option, &value);
            set.map_err(|error| clap::Error::raw(ErrorKind::ValueValidation, format!("{error}\n")))?;
        }
        Ok(Self(options))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn flag(option: &'static RequestOption, chat: bool) -> Arg {
    let default = match option.name {
        "max_tokens" if chat => " [default: what the context holds]",
        "max_tokens" => " [default: 256]",
        _ => "",
    };
    let heading = match option.name {
        "logprobs" | "prompt_logprobs" => "Output",
        "priority" | "deadline_ms" => "Engine",
        _ => SAMPLING,
    };
    let name = option.single.unwrap_or(option.name).replace('_', "-");
    let several = match option.kind {
        OptionKind::Tokens { .. } | OptionKind::Biases { .. } | OptionKind::Texts => {
            "; may be given several times"
        }
        _ => "",
    };
    let mut arg = Arg::new(option.name)
        .long(name)
        .help(format!("{}{several}{default}", option.help))
        .help_heading(heading);
    if let Some((_, letter)) = LETTERS.iter().find(|(name, _)| *name == option.name) {
        arg = arg.short(*letter);
    }
    let number = ValueParser::new(move |text: &str| checked(option, text));
    match option.kind {
        OptionKind::Number { .. } => arg
            .value_name("X")
            .allow_negative_numbers(true)
            .value_parser(number),
        OptionKind::Integer { .. } => arg
            .value_name("N")
            .allow_negative_numbers(true)
            .value_parser(number),
        OptionKind::Flag { .. } => arg.action(ArgAction::SetTrue),
        OptionKind::Tokens { .. } => arg
            .value_name("ID")
            .action(ArgAction::Append)
            .value_parser(number),
        OptionKind::Biases { .. } => {
            let bias = ValueParser::new(str::parse::<TokenBias>);
            arg.value_name("ID:BIAS")
                .action(ArgAction::Append)
                .value_parser(bias)
        }
        OptionKind::Texts => arg.value_name("TEXT").action(ArgAction::Append),
    }
}

/// A number as typed, within its bounds.
fn checked(option: &'static RequestOption, text: &str) -> Result<Value, String> {
    let value = as_json(text);
    within(option, &value).map(|()| value)
}

/// Whether an option can have a value; if not, the error is the bound.
pub(super) fn within(option: &'static RequestOption, value: &Value) -> Result<(), String> {
    Options::default()
        .set(option, value)
        .map_err(|error| match error {
            RequestError::Parameter { bound, .. } => format!("it must be {bound}"),
            other => other.to_string(),
        })
}

/// What was typed, as a value of JSON: a number if it is one.
fn as_json(text: &str) -> Value {
    let number = text.parse::<serde_json::Number>().map(Value::Number);
    number.unwrap_or_else(|_| json!(text))
}

/// What was given for an option, null if nothing was.
fn given(option: &RequestOption, matches: &ArgMatches) -> Value {
    let name = option.name;
    match option.kind {
        OptionKind::Number { .. } | OptionKind::Integer { .. } => {
            matches.get_one::<Value>(name).cloned().unwrap_or_default()
        }
        OptionKind::Flag { .. } if matches.get_flag(name) => json!(true),
        OptionKind::Flag { .. } => Value::Null,
        OptionKind::Tokens { .. } => {
            let ids = matches.get_many::<Value>(name);
            ids.map_or(Value::Null, |ids| ids.cloned().collect())
        }
        OptionKind::Biases { .. } => {
            let biases = matches.get_many::<TokenBias>(name);
            biases.map_or(Value::Null, |biases| {
                let entries = biases.map(|bias| (bias.0.to_string(), json!(bias.1)));
                Value::Object(entries.collect::<Map<_, _>>())
            })
        }
        OptionKind::Texts => {
            let texts = matches.get_many::<String>(name);
            texts.map_or(Value::Null, |texts| texts.cloned().collect())
        }
    }
}
