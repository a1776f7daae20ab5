//! The flags of the options that requests have, from the engine's table of them.

use super::numbers::TokenBias;
use clap::builder::ValueParser;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use paceline::{OPTIONS, OptionKind, Options, RequestError, RequestOption};
use serde_json::{Map, Value, json};
use std::fmt::Debug;
use std::marker::PhantomData;

/// The command that has the flags.
pub(crate) trait OfCommand: Clone + Debug + Default + Send + Sync + 'static {
    /// The heading of those that are about sampling.
    const HEADING: &'static str =
        "Sampling (defaults: the model's, or else temperature 0.8, top-k 40, top-p 0.95, min-p 0.05)";
    /// How many tokens there are at most where nothing is said.
    const MAX_TOKENS: &'static str = "256";

    /// Whether it has a flag for this option.
    fn has(_option: &str) -> bool {
        true
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Generate;

impl OfCommand for Generate {}

#[derive(Clone, Debug, Default)]
pub(crate) struct Chat;

impl OfCommand for Chat {
    const MAX_TOKENS: &'static str = "what the context holds";

    fn has(option: &str) -> bool {
        !NOT_IN_CHAT.contains(&option)
    }
}

/// What a server gives to requests that do not say.
#[derive(Clone, Debug, Default)]
pub(crate) struct Serve;

impl OfCommand for Serve {
    const HEADING: &'static str =
        "Sampling of requests that do not say (defaults: the model's, or else OpenAI's temperature 1)";

    fn has(option: &str) -> bool {
        OF_SERVERS.contains(&option)
    }
}

/// The options that a server has defaults for; lengths and stops are for requests to say.
const OF_SERVERS: [&str; 8] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
];

/// The options that are no flags of `chat`: a conversation has one answer at a time and the engine for itself.
pub(crate) const NOT_IN_CHAT: [&str; 5] = ["n", "logprobs", "prompt_logprobs", "priority", "deadline_ms"];

/// Flags with one letter.
const LETTERS: [(&str, char); 3] = [("temperature", 't'), ("seed", 's'), ("n", 'n')];

/// Flags as llama.cpp has them.
const ALIASES: [(&str, &str); 2] = [("temperature", "temp"), ("repetition_penalty", "repeat-penalty")];

/// The options as flags, as far as the command has them.
#[derive(Clone, Debug, Default)]
pub(crate) struct OptionFlags<C>(pub(crate) Options, PhantomData<C>);

impl<C: OfCommand> OptionFlags<C> {
    fn options() -> impl Iterator<Item = &'static RequestOption> {
        OPTIONS.iter().filter(|option| C::has(option.name))
    }
}

impl<C: OfCommand> Args for OptionFlags<C> {
    fn augment_args(command: Command) -> Command {
        command.args(Self::options().map(flag::<C>))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<C: OfCommand> FromArgMatches for OptionFlags<C> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut options = Options::default();
        for option in Self::options() {
            let value = given(option, matches);
            let set = options.set(option, &value);
            set.map_err(|error| clap::Error::raw(ErrorKind::ValueValidation, format!("{error}\n")))?;
        }
        Ok(Self(options, PhantomData))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn flag<C: OfCommand>(option: &'static RequestOption) -> Arg {
    let default = match option.name {
        "max_tokens" => format!(" [default: {}]", C::MAX_TOKENS),
        _ => String::new(),
    };
    let heading = match option.name {
        "logprobs" | "prompt_logprobs" => "Output",
        "priority" | "deadline_ms" => "Engine",
        _ => C::HEADING,
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
    if let Some((_, alias)) = ALIASES.iter().find(|(name, _)| *name == option.name) {
        arg = arg.alias(*alias);
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

/// Options in an object, by their names in JSON.
pub(super) fn object(text: &str) -> Result<Options, String> {
    let fields: Map<String, Value> =
        serde_json::from_str(text).map_err(|error| format!("not a JSON object of options: {error}"))?;
    let mut options = Options::default();
    for (name, value) in &fields {
        let option = RequestOption::named(name).filter(|option| Serve::has(option.name));
        let option =
            option.ok_or_else(|| format!("`{name}`: unknown; known are {}", OF_SERVERS.join(", ")))?;
        options.set(option, value).map_err(|error| error.to_string())?;
    }
    Ok(options)
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
