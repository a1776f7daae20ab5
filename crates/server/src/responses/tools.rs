//! Tools of the Responses interface, and the form that templates know.

use crate::body::shorten;
use crate::constraint::{Form, constraint_of};
use crate::error::ApiError;
use serde_json::{Value, json};

/// The tools that the model is shown, in the form of chat completions.
pub(super) fn offered(tools: &[Value], choice: &Value) -> Result<Vec<Value>, ApiError> {
    let functions = tools.iter().enumerate();
    let functions = functions.map(|(index, tool)| function(index, tool));
    let functions = functions.collect::<Result<Vec<_>, _>>()?;
    match choice {
        Value::Null => Ok(functions),
        Value::String(choice) if choice == "auto" => Ok(functions),
        Value::String(choice) if choice == "none" => Ok(Vec::new()),
        Value::String(choice) if choice == "required" => {
            constraint_of(Form::AnyCall, "tool_choice", &functions)?;
            Ok(functions)
        }
        Value::Object(named) if named.get("type").is_some_and(|kind| kind == "function") => {
            let Some(name) = choice["name"].as_str() else {
                let message = "`tool_choice.name` is missing or not a string";
                return Err(ApiError::field("tool_choice.name", message));
            };
            constraint_of(Form::Call(name), "tool_choice", &functions)?;
            Ok(functions)
        }
        other => {
            let shown = shorten(&other.to_string());
            let bound = "auto, none, required or a function";
            Err(ApiError::bound("tool_choice", &shown, bound))
        }
    }
}

fn function(index: usize, tool: &Value) -> Result<Value, ApiError> {
    let param = format!("tools[{index}]");
    if tool["type"] != "function" {
        let kind = shorten(&tool["type"].to_string());
        let bound = "function: tools that a server runs are not there";
        return Err(ApiError::bound(&format!("{param}.type"), &kind, bound));
    }
    let Some(name) = tool["name"].as_str().filter(|name| !name.is_empty()) else {
        let message = format!("`{param}.name` is missing, empty or not a string");
        return Err(ApiError::field(format!("{param}.name"), message));
    };
    let mut function = json!({ "name": name });
    if let Some(description) = tool["description"].as_str() {
        function["description"] = description.into();
    }
    match &tool["parameters"] {
        Value::Null => function["parameters"] = json!({ "type": "object", "properties": {} }),
        schema @ Value::Object(_) => function["parameters"] = schema.clone(),
        _ => {
            let message = format!("`{param}.parameters` is not an object");
            return Err(ApiError::field(format!("{param}.parameters"), message));
        }
    }
    Ok(json!({ "type": "function", "function": function }))
}

/// Checks `text.format`: the form that the answer must have.
pub(super) fn check_format(format: &Value) -> Result<(), ApiError> {
    const FIELD: &str = "text.format";
    match format["type"].as_str() {
        _ if format.is_null() => Ok(()),
        Some("text") => Ok(()),
        Some("json_object") => constraint_of(Form::JsonObject, FIELD, &[]),
        Some("json_schema") => constraint_of(Form::JsonSchema(&format["schema"]), FIELD, &[]),
        _ => {
            let kind = shorten(&format["type"].to_string());
            let bound = "text, json_object or json_schema";
            Err(ApiError::bound(&format!("{FIELD}.type"), &kind, bound))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_take_the_form_that_templates_know() {
        let tools = [
            json!({ "type": "function", "name": "f", "description": "d", "strict": true,
            "parameters": { "type": "object" } }),
        ];
        let function = json!({ "type": "function", "function":
            { "name": "f", "description": "d", "parameters": { "type": "object" } } });
        for choice in [Value::Null, json!("auto")] {
            assert_eq!(offered(&tools, &choice).unwrap(), std::slice::from_ref(&function));
        }
        assert!(offered(&tools, &json!("none")).unwrap().is_empty());
        for (choice, param) in [
            (json!("required"), "tool_choice"),
            (json!({ "type": "function", "name": "f" }), "tool_choice"),
            (json!({ "type": "function" }), "tool_choice.name"),
            (json!({ "type": "mcp" }), "tool_choice"),
            (json!("all"), "tool_choice"),
        ] {
            let error = offered(&tools, &choice).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{error}");
        }
    }

    #[test]
    fn tools_that_cannot_be_offered_are_named() {
        for (tool, param) in [
            (json!({ "type": "web_search" }), "tools[0].type"),
            (json!({ "type": "function" }), "tools[0].name"),
            (
                json!({ "type": "function", "name": "f", "parameters": 1 }),
                "tools[0].parameters",
            ),
            (json!(1), "tools[0].type"),
        ] {
            let error = offered(&[tool], &Value::Null).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{error}");
        }
    }
}
