//! Tools of the Responses interface, and the form that templates know.

use crate::body::shorten;
use crate::constraint::{Forced, Form, allow, json_schema};
use crate::error::ApiError;
use paceline_grammar::GrammarSpec;
use serde_json::{Value, json};

/// The tools that the model is shown, in the form of chat completions, and whether one must be called.
pub(super) fn offered(tools: &[Value], choice: &Value) -> Result<(Vec<Value>, Forced), ApiError> {
    const FIELD: &str = "tool_choice";
    let functions = tools.iter().enumerate();
    let functions = functions.map(|(index, tool)| function(index, tool));
    let functions = functions.collect::<Result<Vec<_>, _>>()?;
    match (choice.as_str(), choice["type"].as_str()) {
        _ if choice.is_null() => Ok((functions, Forced::No)),
        (Some("auto"), _) => Ok((functions, Forced::No)),
        (Some("none"), _) => Ok((Vec::new(), Forced::No)),
        (Some("required"), _) => Ok((functions, Forced::Any)),
        (_, Some("function")) => {
            let name = name_of(FIELD, choice)?;
            Ok((functions, Forced::One(name.to_owned())))
        }
        (_, Some("allowed_tools")) => allow(FIELD, &functions, choice, name_of),
        _ => {
            let shown = shorten(&choice.to_string());
            let bound = "auto, none, required, a function or allowed tools";
            Err(ApiError::bound(FIELD, &shown, bound))
        }
    }
}

fn name_of<'a>(field: &str, tool: &'a Value) -> Result<&'a str, ApiError> {
    tool["name"].as_str().ok_or_else(|| {
        let field = format!("{field}.name");
        let message = format!("`{field}` is missing or not a string");
        ApiError::field(field, message)
    })
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
    if tool["strict"] == true {
        function["strict"] = true.into();
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

/// What `text.format` asks for: the form that the answer must have.
pub(super) fn form(format: &Value) -> Result<Option<Form>, ApiError> {
    const FIELD: &str = "text.format";
    match format["type"].as_str() {
        _ if format.is_null() => Ok(None),
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Form::answer(FIELD, GrammarSpec::JsonObject))),
        Some("json_schema") => {
            if !(format["name"].is_string() || format["name"].is_null()) {
                let message = format!("`{FIELD}.name` is not a string");
                return Err(ApiError::field(format!("{FIELD}.name"), message));
            }
            let spec = json_schema("text.format.schema", &format["schema"])?;
            Ok(Some(Form::answer(FIELD, spec)))
        }
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
            { "name": "f", "description": "d", "strict": true, "parameters": { "type": "object" } } });
        for choice in [Value::Null, json!("auto")] {
            assert_eq!(
                offered(&tools, &choice).unwrap(),
                (vec![function.clone()], Forced::No)
            );
        }
        assert!(offered(&tools, &json!("none")).unwrap().0.is_empty());
        let some = |mode: &str| json!({ "type": "allowed_tools", "mode": mode, "tools": [{ "type": "function", "name": "f" }] });
        for (choice, forced) in [
            (json!("required"), Forced::Any),
            (
                json!({ "type": "function", "name": "f" }),
                Forced::One("f".to_owned()),
            ),
            (some("auto"), Forced::No),
            (some("required"), Forced::Any),
        ] {
            let offered = offered(&tools, &choice).unwrap();
            assert_eq!(offered, (vec![function.clone()], forced));
        }
        for (choice, param) in [
            (json!({ "type": "function" }), "tool_choice.name"),
            (some("none"), "tool_choice.mode"),
            (json!({ "type": "mcp" }), "tool_choice"),
            (json!("all"), "tool_choice"),
        ] {
            let error = offered(&tools, &choice).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{error}");
        }
    }

    #[test]
    fn formats_are_forms_of_the_answer() {
        let schema = json!({ "type": "json_schema", "name": "n", "schema": {} });
        let asked = |format: &Value| form(format).unwrap().map(|form| form.spec);
        assert_eq!(asked(&Value::Null), None);
        assert_eq!(asked(&json!({ "type": "text" })), None);
        assert_eq!(
            asked(&json!({ "type": "json_object" })),
            Some(GrammarSpec::JsonObject)
        );
        assert_eq!(asked(&schema), Some(GrammarSpec::JsonSchema(json!({}))));
        for (format, param) in [
            (json!({ "type": "json_schema" }), "text.format.schema"),
            (
                json!({ "type": "json_schema", "name": 1, "schema": {} }),
                "text.format.name",
            ),
            (json!({ "type": "xml" }), "text.format.type"),
        ] {
            assert_eq!(form(&format).unwrap_err().param.as_deref(), Some(param));
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
