//! Forms of a text, as requests ask for them.

use crate::body::shorten;
use crate::error::ApiError;
use paceline_grammar::GrammarSpec;
use serde_json::Value;

/// A form that the text must have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Form {
    /// The field that asks for it.
    pub(crate) field: String,
    pub(crate) spec: GrammarSpec,
    /// The model may call tools instead: the form is that of an answer, not of everything the model writes.
    pub(crate) calls_instead: bool,
}

impl Form {
    /// The form of an answer.
    pub(crate) fn answer(field: impl Into<String>, spec: GrammarSpec) -> Self {
        Self {
            field: field.into(),
            spec,
            calls_instead: true,
        }
    }

    /// The form of everything that the model writes.
    pub(crate) fn text(field: impl Into<String>, spec: GrammarSpec) -> Self {
        Self {
            field: field.into(),
            spec,
            calls_instead: false,
        }
    }
}

/// The only one of several forms.
pub(crate) fn only(forms: impl IntoIterator<Item = Form>) -> Result<Option<Form>, ApiError> {
    let mut forms = forms.into_iter();
    let first = forms.next();
    match (&first, forms.next()) {
        (Some(first), Some(second)) => Err(two(&first.field, &second.field)),
        _ => Ok(first),
    }
}

/// Two fields that cannot be served together.
pub(super) fn two(first: &str, second: &str) -> ApiError {
    let message =
        format!("`{first}` and `{second}` both say what the text must be; there may be one of them");
    ApiError::field(second, message)
}

/// A schema, given in `field` as an object or as the text of one.
pub(crate) fn json_schema(field: &str, schema: &Value) -> Result<GrammarSpec, ApiError> {
    let parsed;
    let schema = match schema {
        Value::String(text) => {
            parsed = serde_json::from_str(text).map_err(|error| {
                let message = format!("`{field}` is no JSON: {}", shorten(&error.to_string()));
                ApiError::field(field, message)
            })?;
            &parsed
        }
        schema => schema,
    };
    if !schema.is_object() {
        let message = format!("`{field}`: the schema is missing or not an object");
        return Err(ApiError::field(field, message));
    }
    Ok(GrammarSpec::JsonSchema(schema.clone()))
}

/// A grammar in Lark's notation. That of llama.cpp looks much the same at first and means something else.
pub(crate) fn grammar(field: &str, text: String) -> Result<GrammarSpec, ApiError> {
    if text.contains("::=") {
        let message = format!(
            "`{field}` is in GBNF or EBNF (it has `::=`); grammars here are Lark's, in llguidance's dialect: \
             `start: \"yes\" | \"no\"`"
        );
        return Err(ApiError::field(field, message));
    }
    Ok(GrammarSpec::Lark(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn schemas_are_objects_or_the_text_of_objects() {
        let wanted = GrammarSpec::JsonSchema(json!({ "type": "string" }));
        for schema in [json!({ "type": "string" }), json!(r#"{"type": "string"}"#)] {
            assert_eq!(json_schema("here", &schema).unwrap(), wanted);
        }
        for schema in [json!(null), json!(1), json!("{"), json!("1"), json!([])] {
            let error = json_schema("here", &schema).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("here"), "{error}");
        }
    }

    #[test]
    fn a_grammar_in_another_notation_is_told_so() {
        assert!(grammar("here", "start: \"a\"".to_owned()).is_ok());
        let error = grammar("here", "root ::= \"a\"".to_owned()).unwrap_err();
        assert!(
            error.message.contains("GBNF") && error.message.contains("Lark"),
            "{error}"
        );
    }

    #[test]
    fn two_forms_are_both_named() {
        let form = |field: &str| Form::text(field, GrammarSpec::JsonObject);
        assert_eq!(only([]).unwrap(), None);
        assert_eq!(only([form("a")]).unwrap(), Some(form("a")));
        let error = only([form("a"), form("b")]).unwrap_err();
        assert!(
            error.message.contains("`a`") && error.message.contains("`b`"),
            "{error}"
        );
    }
}
