//! Calls of tools that a reply must or may have.

use crate::body::shorten;
use crate::error::ApiError;
use paceline_grammar::{Call, GrammarSpec};
use paceline_text::ToolFormat;
use serde_json::{Value, json};

/// Whether a reply must call a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Forced {
    /// It is up to the model.
    #[default]
    No,
    /// Any of those on offer.
    Any,
    /// The tool with this name, once.
    One(String),
}

impl Forced {
    /// Whether calls are to be written under a grammar even if it is up to the model to make any: those that were
    /// promised to follow their schemas, and those of a model that was not made to write them.
    fn is_guided(&self, offer: &Offer<'_>) -> bool {
        let strict = |tool: &Value| tool["function"]["strict"] == true;
        *self == Self::No && (offer.format == Some(ToolFormat::Generic) || offer.tools.iter().any(strict))
    }
}

/// The tools on offer, and how the model calls them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer<'a> {
    /// In OpenAI's form.
    pub(crate) tools: &'a [Value],
    pub(crate) format: Option<ToolFormat>,
    /// There may be several calls.
    pub(crate) parallel: bool,
}

impl Forced {
    /// The grammar of what must be called, asked for in `field`.
    pub(super) fn spec(&self, field: &str, offer: &Offer<'_>) -> Result<Option<GrammarSpec>, ApiError> {
        let (called, parallel) = match self {
            Self::No => return Ok(None),
            Self::Any if offer.tools.is_empty() => {
                let message = format!("`{field}` asks for a tool call, but there are no tools");
                return Err(ApiError::field(field, message));
            }
            Self::Any => (offer.tools, offer.parallel),
            Self::One(name) => (std::slice::from_ref(named(field, offer.tools, name)?), false),
        };
        let Some(format) = offer.format else {
            let message = format!(
                "`{field}`: it is not known how the model writes tool calls, so none can be forced; \
                 see --tool-call-parser"
            );
            return Err(ApiError::field(field, message));
        };
        calls(format, called, parallel).map(Some)
    }
}

impl Offer<'_> {
    /// The grammar of a text that may become a call, if calls have to follow one.
    pub(super) fn guided(&self, forced: &Forced) -> Result<Option<GrammarSpec>, ApiError> {
        match self.format {
            Some(format) if !self.tools.is_empty() && forced.is_guided(self) => {
                let spec = calls(format, self.tools, self.parallel)?;
                let GrammarSpec::Calls { calls, separator } = spec else {
                    return Ok(Some(spec));
                };
                let trigger = format.trigger().map(str::to_owned);
                Ok(Some(GrammarSpec::TextOrCalls {
                    calls,
                    separator,
                    trigger,
                }))
            }
            _ => Ok(None),
        }
    }

    /// The grammar of calls that may come instead of an answer. Where calls do not begin as no answer does, there is
    /// none: nothing would tell the two apart.
    pub(super) fn instead(&self) -> Result<Option<GrammarSpec>, ApiError> {
        match self.format.filter(|format| format.trigger().is_some()) {
            Some(format) if !self.tools.is_empty() => calls(format, self.tools, self.parallel).map(Some),
            _ => Ok(None),
        }
    }
}

/// OpenAI's choice of some of the tools, given in `field`: those, and whether one must be called. `name_of` finds the
/// name in an entry of the list, which is in `field` too.
pub(crate) fn allow(
    field: &str,
    tools: &[Value],
    choice: &Value,
    name_of: for<'a> fn(&str, &'a Value) -> Result<&'a str, ApiError>,
) -> Result<(Vec<Value>, Forced), ApiError> {
    let forced = match choice["mode"].as_str() {
        Some("auto") => Forced::No,
        Some("required") => Forced::Any,
        _ => {
            let mode = shorten(&choice["mode"].to_string());
            return Err(ApiError::bound(
                &format!("{field}.mode"),
                &mode,
                "auto or required",
            ));
        }
    };
    let Some(entries) = choice["tools"].as_array() else {
        let field = format!("{field}.tools");
        let message = format!("`{field}` is missing or not a list");
        return Err(ApiError::field(field, message));
    };
    let tool = |(index, entry): (usize, &Value)| {
        let field = format!("{field}.tools[{index}]");
        named(&field, tools, name_of(&field, entry)?).cloned()
    };
    let tools = entries.iter().enumerate().map(tool).collect::<Result<_, _>>()?;
    Ok((tools, forced))
}

fn named<'a>(field: &str, tools: &'a [Value], name: &str) -> Result<&'a Value, ApiError> {
    let found = tools.iter().find(|tool| tool["function"]["name"] == name);
    found.ok_or_else(|| {
        let name = shorten(name);
        let message = format!("`{field}` names the tool `{name}`, which is not among the tools");
        ApiError::field(field, message)
    })
}

fn calls(format: ToolFormat, tools: &[Value], parallel: bool) -> Result<GrammarSpec, ApiError> {
    let call = |(index, tool): (usize, &Value)| {
        let function = &tool["function"];
        let name = function["name"].as_str().unwrap_or_default();
        match &function["parameters"] {
            // A tool that says nothing of parameters has none.
            Value::Null => Ok(Call::of(format, name, &no_parameters())),
            parameters @ Value::Object(_) => Ok(Call::of(format, name, parameters)),
            _ => {
                let field = format!("tools[{index}].function.parameters");
                let message = format!("`{field}` is not an object");
                Err(ApiError::field(field, message))
            }
        }
    };
    Ok(GrammarSpec::Calls {
        calls: tools.iter().enumerate().map(call).collect::<Result<_, _>>()?,
        separator: parallel.then(|| format.separator()).flatten().map(str::to_owned),
    })
}

fn no_parameters() -> Value {
    json!({ "type": "object", "properties": {}, "additionalProperties": false })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constraint::{Form, wanted};

    fn tools() -> Vec<Value> {
        let tool = |name: &str| json!({ "type": "function", "function": { "name": name } });
        vec![tool("f"), tool("g")]
    }

    fn count(spec: &GrammarSpec) -> (usize, bool) {
        match spec {
            GrammarSpec::Calls { calls, separator } => (calls.len(), separator.is_some()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_forced_is_any_tool_or_one() {
        let (tools, one) = (tools(), Forced::One("g".to_owned()));
        let offer = |parallel| Offer {
            tools: &tools,
            format: Some(ToolFormat::Hermes),
            parallel,
        };
        let spec = |forced: &Forced, parallel| {
            let wanted = wanted(None, (forced, "tool_choice"), &offer(parallel)).unwrap();
            wanted.map(|wanted| count(&wanted.spec))
        };
        assert_eq!(spec(&Forced::No, true), None);
        assert_eq!(spec(&Forced::Any, true), Some((2, true)));
        assert_eq!(spec(&Forced::Any, false), Some((2, false)));
        assert_eq!(spec(&one, true), Some((1, false)));
    }

    #[test]
    fn what_cannot_be_forced_is_refused_by_the_name_of_its_field() {
        let tools = tools();
        let hermes = Some(ToolFormat::Hermes);
        for (forced, tools, format, part) in [
            (Forced::Any, &[][..], hermes, "no tools"),
            (Forced::One("h".to_owned()), &tools, hermes, "not among the tools"),
            (Forced::Any, &tools, None, "--tool-call-parser"),
        ] {
            let offer = Offer {
                tools,
                format,
                parallel: true,
            };
            let error = wanted(None, (&forced, "here"), &offer).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("here"));
            assert!(error.message.contains(part), "{error}");
        }
    }

    #[test]
    fn some_of_the_tools_may_be_allowed() {
        let allow = |choice: Value| {
            allow("here", &tools(), &choice, |_, entry| {
                Ok(entry.as_str().unwrap_or_default())
            })
        };
        let (left, forced) = allow(json!({ "mode": "required", "tools": ["g"] })).unwrap();
        assert_eq!((left, forced), (tools()[1..].to_vec(), Forced::Any));
        assert_eq!(
            allow(json!({ "mode": "auto", "tools": ["g", "f"] })).unwrap().1,
            Forced::No
        );
        for (choice, param) in [
            (json!({ "mode": "all", "tools": [] }), "here.mode"),
            (json!({ "mode": "auto" }), "here.tools"),
            (json!({ "mode": "auto", "tools": ["f", "h"] }), "here.tools[1]"),
        ] {
            assert_eq!(allow(choice).unwrap_err().param.as_deref(), Some(param));
        }
    }

    #[test]
    fn calls_stand_in_for_the_form_of_an_answer_and_for_no_other() {
        let tools = tools();
        let offer = |format| Offer {
            tools: &tools,
            format: Some(format),
            parallel: true,
        };
        let answer = || Some(Form::answer("answer", GrammarSpec::JsonObject));
        let text = || Some(Form::text("text", GrammarSpec::JsonObject));
        let free = (&Forced::No, "tool_choice");
        let got = |form, format| wanted(form, free, &offer(format)).unwrap().unwrap().spec;
        assert!(matches!(
            got(answer(), ToolFormat::Hermes),
            GrammarSpec::Either(_)
        ));
        assert_eq!(got(answer(), ToolFormat::Llama3Json), GrammarSpec::JsonObject);
        assert_eq!(got(text(), ToolFormat::Hermes), GrammarSpec::JsonObject);
        let forced = (&Forced::Any, "tool_choice");
        let got = wanted(answer(), forced, &offer(ToolFormat::Hermes)).unwrap();
        assert_eq!(got.unwrap().field, "tool_choice");
        let error = wanted(text(), forced, &offer(ToolFormat::Hermes)).unwrap_err();
        assert!(error.message.contains("`text`") && error.message.contains("`tool_choice`"));
    }
}
