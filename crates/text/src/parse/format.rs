//! The formats by name, how a template gives them away, and the text around a call.

use serde_json::Value;

use super::reasoning::{CLOSE, OPEN};
use crate::error::{Result, TextError};

/// How a model writes tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ToolFormat {
    /// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen2.5, Qwen3.
    Hermes,
    /// `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`: Qwen3-Coder, Qwen3.5.
    Qwen3Coder,
    /// `{"name": ..., "parameters": {...}}` as the whole output: Llama 3.
    Llama3Json,
    /// As Hermes, one call at a time, for models that were not made for any format: the conversation itself says how to
    /// write a call; see [`ChatInput::spell_out_calls`](crate::ChatInput::spell_out_calls).
    Generic,
}

/// The text around the arguments of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallFrame {
    /// What comes before the arguments, with the tool's name in it.
    pub prefix: String,
    /// What comes after the arguments.
    pub suffix: String,
    /// The arguments are written one by one, each in the frame that [`ToolFormat::wrap_parameter`] gives;
    /// otherwise they are one JSON object.
    pub parameters: bool,
}

impl ToolFormat {
    /// The names that [`ToolFormat::from_name`] knows.
    pub const NAMES: &'static [&'static str] = &[
        "hermes",
        "qwen3_coder",
        "qwen3_xml",
        "llama3_json",
        "llama4_json",
        "generic",
    ];

    /// The format that vLLM's `--tool-call-parser` calls so; `generic` is our own.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "hermes" => Ok(Self::Hermes),
            "qwen3_coder" | "qwen3_xml" => Ok(Self::Qwen3Coder),
            "llama3_json" | "llama4_json" => Ok(Self::Llama3Json),
            "generic" => Ok(Self::Generic),
            _ => Err(unknown("tool call", name, Self::NAMES)),
        }
    }

    /// The name that vLLM has for the format, the first where there are several.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hermes => "hermes",
            Self::Qwen3Coder => "qwen3_coder",
            Self::Llama3Json => "llama3_json",
            Self::Generic => "generic",
        }
    }

    /// The format in which a chat template asks for calls, if it is one of these.
    pub fn detect(template: &str) -> Option<Self> {
        let has = |text: &str| template.contains(text);
        if has("<function=") && has("<parameter=") {
            return Some(Self::Qwen3Coder);
        }
        // Other formats share the tag but not the object in it: GLM writes pairs of <arg_key> and <arg_value>.
        if has("<tool_call>") && has("arguments") && !has("<arg_key>") {
            return Some(Self::Hermes);
        }
        // The sentence is in the templates of Llama 3.1 to 4; the small models' have no <|python_tag|>.
        if has(r#"{"name": function name, "parameters": "#) {
            return Some(Self::Llama3Json);
        }
        None
    }

    /// The text around the arguments of a call of the tool `name`, as the model itself would write it.
    pub fn wrap(self, name: &str) -> CallFrame {
        let quoted = Value::from(name);
        let (prefix, suffix) = match self {
            Self::Hermes | Self::Generic => (
                format!("<tool_call>\n{{\"name\": {quoted}, \"arguments\": "),
                "}\n</tool_call>",
            ),
            Self::Qwen3Coder => (
                format!("<tool_call>\n<function={name}>\n"),
                "</function>\n</tool_call>",
            ),
            Self::Llama3Json => (format!("{{\"name\": {quoted}, \"parameters\": "), "}"),
        };
        CallFrame {
            prefix,
            suffix: suffix.to_owned(),
            parameters: self == Self::Qwen3Coder,
        }
    }

    /// The text before and after the value of the argument `key`, in a format that writes them one by one. Values
    /// are text where the tool's schema says string, and JSON otherwise.
    pub fn wrap_parameter(self, key: &str) -> Option<(String, String)> {
        (self == Self::Qwen3Coder).then(|| (format!("<parameter={key}>\n"), "\n</parameter>\n".to_owned()))
    }

    /// What stands between two calls, in a format that has several in one answer.
    pub fn separator(self) -> Option<&'static str> {
        match self {
            Self::Hermes | Self::Qwen3Coder => Some("\n"),
            Self::Llama3Json => Some("; "),
            // A model that was not trained to call tools does not know when it has called enough.
            Self::Generic => None,
        }
    }

    /// The text that every call begins with and no answer does, if there is one: from here on, a grammar of
    /// calls may hold.
    pub fn trigger(self) -> Option<&'static str> {
        match self {
            Self::Hermes | Self::Qwen3Coder | Self::Generic => Some("<tool_call>"),
            Self::Llama3Json => None,
        }
    }
}

/// How a model marks its reasoning. Both write `<think> ... </think>`; they differ in where a text begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReasoningFormat {
    /// The text begins inside the reasoning, unless the prompt closed it.
    DeepseekR1,
    /// The text begins outside the reasoning, unless the prompt opened it.
    Qwen3,
}

impl ReasoningFormat {
    /// The names that [`ReasoningFormat::from_name`] knows: vLLM's.
    pub const NAMES: &'static [&'static str] = &["deepseek_r1", "qwen3"];

    /// The format that vLLM's `--reasoning-parser` calls so.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "deepseek_r1" => Ok(Self::DeepseekR1),
            "qwen3" => Ok(Self::Qwen3),
            _ => Err(unknown("reasoning", name, Self::NAMES)),
        }
    }

    /// The name that vLLM has for the format.
    pub fn name(self) -> &'static str {
        match self {
            Self::DeepseekR1 => "deepseek_r1",
            Self::Qwen3 => "qwen3",
        }
    }

    /// The format of the reasoning that a chat template writes or removes, if it is one of these.
    pub fn detect(template: &str) -> Option<Self> {
        if !template.contains(CLOSE) {
            return None;
        }
        // DeepSeek's own markers have fullwidth bars. Its early templates do not write the opening tag.
        if template.contains("<｜Assistant｜>") {
            return Some(Self::DeepseekR1);
        }
        template.contains(OPEN).then_some(Self::Qwen3)
    }

    /// The texts that a block of reasoning begins and ends with.
    pub fn tags(self) -> (&'static str, &'static str) {
        (OPEN, CLOSE)
    }

    /// Whether an output begins inside the reasoning, by the end of the rendered prompt.
    pub fn starts_inside(self, prompt: &str) -> bool {
        let prompt = prompt.trim_end();
        match self {
            Self::DeepseekR1 => !prompt.ends_with(CLOSE),
            Self::Qwen3 => prompt.ends_with(OPEN),
        }
    }
}

fn unknown(what: &'static str, name: &str, choices: &[&str]) -> TextError {
    TextError::UnknownFormat {
        what,
        name: name.to_owned(),
        choices: choices.join(", "),
    }
}
