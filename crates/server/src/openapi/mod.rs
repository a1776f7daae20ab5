//! `/openapi.json`: all endpoints, for programs.
//!
//! The document is kept by hand in the JSON files beside this one, because the wire types read several forms per
//! field and check bounds that no derive can see. Tests hold it to the truth: it has exactly the router's paths and
//! methods, its examples are accepted, and the replies to them have the form that it gives.

use crate::app::App;
use crate::error::{ApiError, ErrorKind};
use axum::Json;
use axum::extract::State;
use paceline::{OPTIONS, OptionKind};
use serde_json::{Value, json};

/// The parts: the first has what all share, the others paths and schemas of their own.
const PARTS: [&str; 10] = [
    include_str!("base.json"),
    include_str!("openai.json"),
    include_str!("structured.json"),
    include_str!("embeddings.json"),
    include_str!("responses.json"),
    include_str!("anthropic.json"),
    include_str!("operations.json"),
    include_str!("engine.json"),
    include_str!("foreign.json"),
    include_str!("routers.json"),
];

/// What every part adds to.
const JOINED: [&str; 2] = ["/paths", "/components/schemas"];

/// `GET /openapi.json`.
pub(crate) async fn document(State(app): State<App>) -> Result<Json<Value>, ApiError> {
    let mut document = joined().map_err(|error| {
        tracing::error!("the OpenAPI document: {error}");
        ApiError::new(ErrorKind::Internal, "the OpenAPI document cannot be read")
    })?;
    fill_in(&mut document, &app);
    Ok(Json(document))
}

fn joined() -> serde_json::Result<Value> {
    let mut document = Value::Null;
    for part in PARTS {
        let part: Value = serde_json::from_str(part)?;
        if document.is_null() {
            document = part;
            continue;
        }
        for place in JOINED {
            let more = part.pointer(place).and_then(Value::as_object);
            let known = document.pointer_mut(place).and_then(Value::as_object_mut);
            if let (Some(known), Some(more)) = (known, more) {
                known.extend(more.clone());
            }
        }
    }
    Ok(document)
}

/// Writes in the bounds of options, which are those of the engine's table, and what they do.
fn fill_in_options(document: &mut Value) {
    for option in OPTIONS {
        let place = format!("/components/schemas/Sampling/properties/{}", option.name);
        let Some(property) = document.pointer_mut(&place).and_then(Value::as_object_mut) else {
            continue;
        };
        property.insert("description".to_owned(), format!("{}.", option.help).into());
        let mut bound = |name: &str, value: Value| property.insert(name.to_owned(), value);
        match option.kind {
            OptionKind::Number { bound: bounds, .. } => {
                let low = if bounds.above {
                    "exclusiveMinimum"
                } else {
                    "minimum"
                };
                bound(low, json!(bounds.low));
                if bounds.high.is_finite() {
                    bound("maximum", json!(bounds.high));
                }
            }
            OptionKind::Integer { low, high, .. } => {
                bound("minimum", json!(low as i64));
                bound("maximum", json!(high as u64));
            }
            _ => {}
        }
    }
}

/// Writes in what depends on the model and the engine.
fn fill_in(document: &mut Value, app: &App) {
    fill_in_options(document);
    let names = app.model.names.iter().map(|name| json!(name));
    let names: Vec<Value> = names.chain([Value::Null]).collect();
    let limits = app.engine.limits();
    let drafts = app.engine.speculation().draft_tokens;
    let methods = app.engine.speculation().methods();
    let methods: Vec<&str> = methods.iter().map(|method| method.name()).collect();
    for (place, field, value) in [
        ("/info", "version", json!(env!("CARGO_PKG_VERSION"))),
        ("/components/schemas/ModelName", "enum", json!(names)),
        (
            "/components/schemas/TokenId",
            "maximum",
            json!(app.engine.vocabulary().saturating_sub(1)),
        ),
        (
            "/components/schemas/Sampling/properties/n",
            "maximum",
            json!(limits.max_choices),
        ),
        // For completions that echo: to score a text.
        (
            "/components/schemas/Sampling/properties/max_tokens",
            "minimum",
            json!(0),
        ),
        ("/components/schemas/Drafts", "maximum", json!(drafts)),
        (
            "/components/schemas/EmbeddingRequest/properties/dimensions",
            "maximum",
            json!(app.engine.width()),
        ),
        ("/components/schemas/SpeculationMethod", "enum", json!(methods)),
        (
            "/components/schemas/Sampling/properties/priority",
            "minimum",
            json!(app.config.min_priority),
        ),
        (
            "/components/schemas/EmbeddingRequest/properties/priority",
            "minimum",
            json!(app.config.min_priority),
        ),
    ] {
        if let Some(place) = document.pointer_mut(place).and_then(Value::as_object_mut) {
            place.insert(field.to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Paths and methods of the router, from its source: axum does not tell.
    fn routes() -> BTreeSet<(String, &'static str)> {
        let source = include_str!("../routes.rs");
        let end = source.find(".fallback(").unwrap_or(source.len());
        let mut routes = BTreeSet::new();
        for route in source[..end].split(".route(").skip(1) {
            let path = route.split('"').nth(1).unwrap().replace("{*", "{");
            for method in ["get", "post", "put", "delete", "patch"] {
                if route.contains(&format!("{method}(")) {
                    routes.insert((path.clone(), method));
                }
            }
        }
        routes
    }

    fn described(document: &Value) -> BTreeSet<(String, &'static str)> {
        let mut described = BTreeSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for method in ["get", "post", "put", "delete", "patch"] {
                if methods.get(method).is_some() {
                    described.insert((path.clone(), method));
                }
            }
        }
        described
    }

    #[test]
    fn every_route_is_described_and_nothing_else() {
        let document = joined().unwrap();
        assert!(routes().len() > 10);
        assert_eq!(described(&document), routes());
    }

    #[test]
    fn parts_do_not_overwrite_each_other() {
        for place in JOINED {
            let mut names = BTreeSet::new();
            for part in PARTS {
                let part: Value = serde_json::from_str(part).unwrap();
                for name in part.pointer(place).unwrap().as_object().unwrap().keys() {
                    assert!(names.insert(name.clone()), "{name} is there twice");
                }
            }
        }
    }

    /// Calls `visit` with every reference in a value.
    fn references<'a>(value: &'a Value, visit: &mut impl FnMut(&'a str)) {
        match value {
            Value::Object(object) => {
                if let Some(Value::String(reference)) = object.get("$ref") {
                    visit(reference);
                }
                object.values().for_each(|value| references(value, visit));
            }
            Value::Array(list) => list.iter().for_each(|value| references(value, visit)),
            _ => {}
        }
    }

    #[test]
    fn references_lead_somewhere_and_all_schemas_are_used() {
        let document = joined().unwrap();
        let mut used = BTreeSet::new();
        references(&document, &mut |reference| {
            used.insert(reference);
        });
        for reference in &used {
            let place = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(place).is_some(), "{reference}");
        }
        for name in document["components"]["schemas"].as_object().unwrap().keys() {
            assert!(
                used.contains(format!("#/components/schemas/{name}").as_str()),
                "{name}"
            );
        }
    }

    #[test]
    fn operations_have_names_of_their_own_and_say_what_can_go_wrong() {
        let document = joined().unwrap();
        let mut names = BTreeSet::new();
        for (path, method) in described(&document) {
            let operation = &document["paths"][&path][method];
            assert!(names.insert(operation["operationId"].as_str().unwrap()), "{path}");
            let responses = operation["responses"].as_object().unwrap();
            assert!(
                responses.contains_key("200") && responses.contains_key("500"),
                "{path}"
            );
            if operation.get("requestBody").is_some() {
                for status in ["400", "401", "404", "408", "413"] {
                    assert!(responses.contains_key(status), "{path} lacks {status}");
                }
            }
        }
    }
}
