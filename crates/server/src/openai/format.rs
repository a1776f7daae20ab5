//! The fields that say what form a text must have: OpenAI's, vLLM's and llama.cpp's.

use crate::body::shorten;
use crate::constraint::{Form, grammar, json_schema, only};
use crate::error::ApiError;
use crate::fields::{Field, Fields, Unknown};
use paceline_grammar::GrammarSpec;
use serde_json::Value;
use serde_json::value::RawValue;

/// The fields of a request; at most one of them may ask for something.
#[derive(Debug)]
pub(crate) struct FormatFields {
    response_format: Option<Value>,
    structured_outputs: Option<StructuredOutputs>,
    guided_json: Option<Value>,
    guided_regex: Option<String>,
    guided_grammar: Option<String>,
    guided_choice: Option<Vec<String>>,
    json_schema: Option<Value>,
    grammar: Option<String>,
}

/// vLLM's newer field.
#[derive(Debug)]
struct StructuredOutputs {
    json: Option<Value>,
    regex: Option<String>,
    grammar: Option<String>,
    choice: Option<Vec<String>>,
    json_object: Option<bool>,
    structural_tag: Option<Value>,
}

impl Field for StructuredOutputs {
    fn read(place: &str, json: &RawValue, unknown: &mut Unknown) -> Result<Self, ApiError> {
        let mut fields = Fields::inside(place, json)?;
        let asked = Self {
            json: fields.take("json")?,
            regex: fields.take("regex")?,
            grammar: fields.take("grammar")?,
            choice: fields.take("choice")?,
            json_object: fields.take("json_object")?,
            structural_tag: fields.take("structural_tag")?,
        };
        fields.leave(unknown);
        Ok(asked)
    }
}

impl FormatFields {
    /// Takes them.
    pub(crate) fn take(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        let response_format = fields.take_known("response_format", &["type", "json_schema", "schema"])?;
        let schema = response_format
            .as_ref()
            .and_then(|format| format["json_schema"].as_object());
        let known = ["name", "description", "schema", "strict"];
        fields
            .unknown()
            .note_but("response_format.json_schema", schema, &known);
        Ok(Self {
            response_format,
            structured_outputs: fields.take("structured_outputs")?,
            guided_json: fields.take("guided_json")?,
            guided_regex: fields.take("guided_regex")?,
            guided_grammar: fields.take("guided_grammar")?,
            guided_choice: fields.take("guided_choice")?,
            json_schema: fields.take("json_schema")?,
            grammar: fields.take("grammar")?,
        })
    }

    /// The form that is asked for.
    pub(crate) fn form(self) -> Result<Option<Form>, ApiError> {
        let mut forms = Vec::new();
        if let Some(format) = self.response_format.filter(|format| !format.is_null()) {
            let spec = response_format("response_format", &format)?;
            forms.extend(spec.map(|spec| Form::answer("response_format", spec)));
        }
        if let Some(asked) = self.structured_outputs {
            forms.extend(asked.forms()?);
        }
        add_all(
            &mut forms,
            ["guided_json", "guided_regex", "guided_grammar", "guided_choice"],
            (
                self.guided_json,
                self.guided_regex,
                self.guided_grammar,
                self.guided_choice,
            ),
        )?;
        // What clients of llama.cpp send, which leave an empty grammar where they have none.
        let text = self.grammar.filter(|text| !text.is_empty());
        add_all(
            &mut forms,
            ["json_schema", "", "grammar", ""],
            (self.json_schema, None, text, None),
        )?;
        only(forms)
    }
}

impl StructuredOutputs {
    fn forms(self) -> Result<Vec<Form>, ApiError> {
        const TAG: &str = "structured_outputs.structural_tag";
        if self.structural_tag.is_some_and(|tag| !tag.is_null()) {
            let message = format!("`{TAG}` is not supported; describe the whole text as a grammar");
            return Err(ApiError::field(TAG, message));
        }
        let mut forms = Vec::new();
        add_all(
            &mut forms,
            [
                "structured_outputs.json",
                "structured_outputs.regex",
                "structured_outputs.grammar",
                "structured_outputs.choice",
            ],
            (self.json, self.regex, self.grammar, self.choice),
        )?;
        if self.json_object == Some(true) {
            forms.push(Form::text(
                "structured_outputs.json_object",
                GrammarSpec::JsonObject,
            ));
        }
        Ok(forms)
    }
}

type Asked = (Option<Value>, Option<String>, Option<String>, Option<Vec<String>>);

/// A schema, an expression, a grammar and a choice, by the names of their fields.
fn add_all(forms: &mut Vec<Form>, names: [&str; 4], asked: Asked) -> Result<(), ApiError> {
    let (schema, regex, text, choice) = asked;
    if let Some(schema) = schema.filter(|schema| !schema.is_null()) {
        forms.push(Form::text(names[0], json_schema(names[0], &schema)?));
    }
    if let Some(regex) = regex {
        forms.push(Form::text(names[1], GrammarSpec::Regex(regex)));
    }
    if let Some(text) = text {
        forms.push(Form::text(names[2], grammar(names[2], text)?));
    }
    if let Some(choice) = choice {
        forms.push(Form::text(names[3], GrammarSpec::Choice(choice)));
    }
    Ok(())
}

/// What OpenAI's field of this name asks for; nothing if it is text. A JSON object may have a schema beside it, as
/// clients of llama.cpp write it.
fn response_format(field: &str, format: &Value) -> Result<Option<GrammarSpec>, ApiError> {
    match format["type"].as_str() {
        Some("text") => Ok(None),
        Some("json_object") if format["schema"].is_object() => {
            json_schema(&format!("{field}.schema"), &format["schema"]).map(Some)
        }
        Some("json_object") => Ok(Some(GrammarSpec::JsonObject)),
        Some("json_schema") => {
            let field = format!("{field}.json_schema.schema");
            json_schema(&field, &format["json_schema"]["schema"]).map(Some)
        }
        _ => {
            let kind = shorten(&format["type"].to_string());
            let bound = "text, json_object or json_schema";
            Err(ApiError::bound(&format!("{field}.type"), &kind, bound))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::Body;
    use serde_json::json;

    fn form(body: &Value) -> Result<Option<Form>, ApiError> {
        let body = Body::of(serde_json::to_vec(body).unwrap());
        FormatFields::take(&mut Fields::of(&body).unwrap())?.form()
    }

    fn check(body: &Value, field: &str, spec: &GrammarSpec) {
        let form = form(body).unwrap().unwrap();
        assert_eq!((form.field.as_str(), &form.spec), (field, spec), "{body}");
        assert_eq!(form.calls_instead, field == "response_format");
    }

    #[test]
    fn every_field_asks_for_what_its_server_means_by_it() {
        let integer = json!({ "type": "integer" });
        let schema = GrammarSpec::JsonSchema(integer.clone());
        let object = json!({ "type": "json_object" });
        check(
            &json!({ "response_format": object }),
            "response_format",
            &GrammarSpec::JsonObject,
        );
        let beside = json!({ "type": "json_object", "schema": integer });
        check(&json!({ "response_format": beside }), "response_format", &schema);
        let named = json!({ "name": "n", "strict": true, "schema": integer });
        let format = json!({ "type": "json_schema", "json_schema": named });
        check(&json!({ "response_format": format }), "response_format", &schema);
        let text = json!({ "guided_json": "{\"type\": \"integer\"}" });
        check(&text, "guided_json", &schema);
        check(&json!({ "json_schema": integer }), "json_schema", &schema);
        let lark = GrammarSpec::Lark("start: \"a\"".to_owned());
        check(&json!({ "grammar": "start: \"a\"" }), "grammar", &lark);
        let choice = GrammarSpec::Choice(vec!["a".to_owned(), "b".to_owned()]);
        for (kind, value, spec) in [
            ("json", integer, schema),
            ("regex", json!("a+"), GrammarSpec::Regex("a+".to_owned())),
            ("grammar", json!("start: \"a\""), lark),
            ("choice", json!(["a", "b"]), choice),
        ] {
            let guided = format!("guided_{kind}");
            check(&json!({ guided.as_str(): value }), &guided, &spec);
            let newer = json!({ "structured_outputs": { kind: value } });
            check(&newer, &format!("structured_outputs.{kind}"), &spec);
        }
        check(
            &json!({ "structured_outputs": { "json_object": true } }),
            "structured_outputs.json_object",
            &GrammarSpec::JsonObject,
        );
    }

    #[test]
    fn text_and_nothing_ask_for_nothing() {
        for body in [
            json!({}),
            json!({ "response_format": null, "guided_json": null, "structured_outputs": null }),
            json!({ "response_format": { "type": "text" }, "grammar": "" }),
            json!({ "structured_outputs": { "json_object": false } }),
        ] {
            assert_eq!(form(&body).unwrap(), None);
        }
    }

    #[test]
    fn what_cannot_be_asked_for_is_named() {
        for (body, param) in [
            (json!({ "response_format": 1 }), "response_format.type"),
            (
                json!({ "response_format": { "type": "xml" } }),
                "response_format.type",
            ),
            (
                json!({ "response_format": { "type": "json_schema" } }),
                "response_format.json_schema.schema",
            ),
            (json!({ "guided_json": "{" }), "guided_json"),
            (json!({ "grammar": "root ::= \"a\"" }), "grammar"),
            (
                json!({ "structured_outputs": { "structural_tag": {} } }),
                "structured_outputs.structural_tag",
            ),
            (
                json!({ "guided_regex": "a", "guided_choice": ["a"] }),
                "guided_choice",
            ),
            (
                json!({ "response_format": { "type": "json_object" }, "structured_outputs": { "regex": "a" } }),
                "structured_outputs.regex",
            ),
        ] {
            let error = form(&body).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{error}");
        }
    }
}
