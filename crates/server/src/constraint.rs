//! What a reply must look like beyond what the model would write by itself.

use crate::body::shorten;
use crate::error::ApiError;
use serde_json::Value;

/// A form that a request asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form<'a> {
    /// A JSON object.
    JsonObject,
    /// JSON that a schema describes.
    JsonSchema(&'a Value),
    /// A call of any tool on offer.
    AnyCall,
    /// A call of the tool with this name.
    Call(&'a str),
}

/// The constraint for a form, asked for in `field`; `tools` are the tools on offer, in OpenAI's form. The engine
/// takes no constraints yet, so there is none to return: what is well-formed is refused as not supported.
pub(crate) fn constraint_of(form: Form<'_>, field: &str, tools: &[Value]) -> Result<(), ApiError> {
    let named = |name: &str| tools.iter().any(|tool| tool["function"]["name"] == name);
    let wanted = match form {
        Form::JsonObject => "JSON".to_owned(),
        Form::JsonSchema(schema) if schema.is_object() => "a JSON schema".to_owned(),
        Form::JsonSchema(_) => {
            let message = format!("`{field}`: the schema is missing or not an object");
            return Err(ApiError::field(field, message));
        }
        Form::AnyCall if tools.is_empty() => {
            let message = format!("`{field}` asks for a tool call, but there are no tools");
            return Err(ApiError::field(field, message));
        }
        Form::AnyCall => "a forced tool call".to_owned(),
        Form::Call(name) if named(name) => "a forced tool call".to_owned(),
        Form::Call(name) => {
            let name = shorten(name);
            let message = format!("`{field}` names the tool `{name}`, which is not among the tools");
            return Err(ApiError::field(field, message));
        }
    };
    let message = format!("`{field}`: {wanted} is not supported yet");
    Err(ApiError::field(field, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_asked_for_is_refused_by_the_name_of_its_field() {
        let tools = [json!({ "type": "function", "function": { "name": "f" } })];
        for (form, part) in [
            (Form::JsonObject, "not supported yet"),
            (Form::JsonSchema(&json!({})), "not supported yet"),
            (Form::JsonSchema(&json!(1)), "not an object"),
            (Form::AnyCall, "not supported yet"),
            (Form::Call("f"), "not supported yet"),
            (Form::Call("g"), "not among the tools"),
        ] {
            let error = constraint_of(form, "here", &tools).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("here"));
            assert!(error.message.contains(part), "{error}");
        }
        let error = constraint_of(Form::AnyCall, "here", &[]).unwrap_err();
        assert!(error.message.contains("no tools"));
    }
}
