//! Tools as Anthropic's clients describe them, and as templates do.

use crate::body::shorten;
use crate::constraint::Forced;
use crate::error::ApiError;
use serde_json::{Value, json};

/// Tools that the model is shown.
#[derive(Debug, PartialEq)]
pub(super) struct Offered {
    /// In OpenAI's form.
    pub(super) tools: Vec<Value>,
    /// There may be several calls at a time.
    pub(super) parallel: bool,
    pub(super) forced: Forced,
}

/// The tools on offer, and which must be called.
pub(super) fn offered(tools: Vec<Value>, choice: Option<&Value>) -> Result<Offered, ApiError> {
    let tools = tools.into_iter().enumerate();
    let tools = tools.map(|(index, tool)| function(index, &tool));
    let mut offered = Offered {
        tools: tools.collect::<Result<Vec<_>, _>>()?,
        parallel: true,
        forced: Forced::No,
    };
    let Some(choice) = choice.filter(|choice| !choice.is_null()) else {
        return Ok(offered);
    };
    offered.parallel = match &choice["disable_parallel_tool_use"] {
        Value::Null => true,
        Value::Bool(disabled) => !disabled,
        other => {
            let shown = shorten(&other.to_string());
            let field = "tool_choice.disable_parallel_tool_use";
            return Err(ApiError::bound(field, &shown, "true or false"));
        }
    };
    match choice["type"].as_str() {
        Some("auto") => {}
        Some("none") => offered.tools.clear(),
        Some("any") => offered.forced = Forced::Any,
        Some("tool") => {
            let Some(name) = choice["name"].as_str() else {
                let message = "`tool_choice.name` is missing or not a string";
                return Err(ApiError::field("tool_choice.name", message));
            };
            offered.forced = Forced::One(name.to_owned());
        }
        _ => {
            let kind = shorten(&choice["type"].to_string());
            let bound = "auto, any, tool or none";
            return Err(ApiError::bound("tool_choice.type", &kind, bound));
        }
    }
    Ok(offered)
}

fn function(index: usize, tool: &Value) -> Result<Value, ApiError> {
    let param = format!("tools[{index}]");
    if !matches!(tool["type"].as_str(), None | Some("custom")) {
        let kind = shorten(&tool["type"].to_string());
        let bound = "custom or absent: tools that a server runs are not there";
        return Err(ApiError::bound(&format!("{param}.type"), &kind, bound));
    }
    let Some(name) = tool["name"].as_str().filter(|name| !name.is_empty()) else {
        let message = format!("`{param}.name` is missing, empty or not a string");
        return Err(ApiError::field(format!("{param}.name"), message));
    };
    if !tool["input_schema"].is_object() {
        let message = format!("`{param}.input_schema` is missing or not an object");
        return Err(ApiError::field(format!("{param}.input_schema"), message));
    }
    let mut function = json!({ "name": name, "parameters": tool["input_schema"] });
    if let Some(description) = tool["description"].as_str() {
        function["description"] = description.into();
    }
    if tool["strict"] == true {
        function["strict"] = true.into();
    }
    Ok(json!({ "type": "function", "function": function }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_take_the_form_that_templates_know() {
        let tools = || vec![json!({ "name": "f", "description": "d", "input_schema": { "type": "object" } })];
        let function = json!({ "type": "function", "function":
            { "name": "f", "description": "d", "parameters": { "type": "object" } } });
        let auto = json!({ "type": "auto", "disable_parallel_tool_use": true });
        let got = |choice: &Value| offered(tools(), Some(choice)).unwrap();
        let one = |parallel, forced| Offered {
            tools: vec![function.clone()],
            parallel,
            forced,
        };
        assert_eq!(offered(tools(), None).unwrap(), one(true, Forced::No));
        assert_eq!(got(&auto), one(false, Forced::No));
        assert!(got(&json!({ "type": "none" })).tools.is_empty());
        assert_eq!(got(&json!({ "type": "any" })), one(true, Forced::Any));
        let named = Forced::One("f".to_owned());
        assert_eq!(got(&json!({ "type": "tool", "name": "f" })), one(true, named));
        for (choice, param) in [
            (json!({ "type": "tool" }), "tool_choice.name"),
            (json!({ "type": "all" }), "tool_choice.type"),
            (json!("auto"), "tool_choice.type"),
        ] {
            let error = offered(tools(), Some(&choice)).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{error}");
        }
    }

    #[test]
    fn tools_that_cannot_be_offered_are_named() {
        for (tool, param) in [
            (
                json!({ "type": "bash_20250124", "name": "bash" }),
                "tools[0].type",
            ),
            (json!({ "input_schema": {} }), "tools[0].name"),
            (json!({ "name": "f" }), "tools[0].input_schema"),
            (json!(1), "tools[0].name"),
        ] {
            let error = offered(vec![tool], None).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{error}");
        }
    }
}
