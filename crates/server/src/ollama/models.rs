//! What there is to serve: `/api/tags`, `/api/ps`, `/api/show`, `/api/version`.

use crate::app::{App, Caller};
use crate::body::Body;
use crate::error::ApiError;
use crate::identifiers::rfc3339;
use crate::interface;
use crate::model::{ModelDetails, ServedModel};
use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// The tag that Ollama gives to a model without one.
const LATEST: &str = ":latest";

/// Checks the name in a request, with the usual tag or without.
pub(super) fn named(model: &ServedModel, name: Option<&str>) -> Result<String, ApiError> {
    let known = model.named(name);
    match name.and_then(|name| name.strip_suffix(LATEST)) {
        Some(bare) if known.is_err() => model.named(Some(bare)).map(|_| format!("{bare}{LATEST}")),
        _ => known,
    }
}

/// A time by which a model would be let go: it never is.
const NEVER: u64 = 253_370_764_800;

fn details(model: &ServedModel) -> Value {
    let ModelDetails {
        format,
        architecture,
        parameters,
        weights,
    } = &model.details;
    json!({
        "parent_model": "",
        "format": format,
        "family": architecture,
        "families": [architecture],
        "parameter_size": size(*parameters),
        "quantization_level": weights,
    })
}

/// A number of parameters as Ollama writes it: `134.52M`, `7.6B`.
fn size(parameters: u64) -> String {
    let number = parameters as f64;
    match parameters {
        0..1_000 => parameters.to_string(),
        1_000..1_000_000 => format!("{:.0}K", number / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2}M", number / 1e6),
        _ => format!("{:.1}B", number / 1e9),
    }
}

/// A model in a list.
fn card(app: &App, name: &str) -> Map<String, Value> {
    let digest = Sha256::digest(app.model.source.as_bytes());
    let digest = digest.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    let card = json!({
        "name": name,
        "model": name,
        "modified_at": rfc3339(app.model.created),
        "size": app.engine.memory().weights,
        "digest": digest,
        "details": details(&app.model),
    });
    match card {
        Value::Object(card) => card,
        _ => Map::new(),
    }
}

/// `GET /api/tags`.
pub(crate) async fn tags(State(app): State<App>) -> Json<Value> {
    let cards = app.model.names.iter().map(|name| card(&app, name));
    Json(json!({ "models": cards.collect::<Vec<_>>() }))
}

/// `GET /api/ps`: the model is always there.
pub(crate) async fn ps(State(app): State<App>) -> Json<Value> {
    let memory = app.engine.memory();
    let cards = app.model.names.iter().take(1).map(|name| {
        let mut card = card(&app, name);
        card.insert("size".to_owned(), memory.total().into());
        card.insert(
            "size_vram".to_owned(),
            if app.engine.device().name == "cpu" {
                0
            } else {
                memory.total()
            }
            .into(),
        );
        card.insert("expires_at".to_owned(), rfc3339(NEVER).into());
        card.insert("context_length".to_owned(), app.model.max_model_len.into());
        card
    });
    Json(json!({ "models": cards.collect::<Vec<_>>() }))
}

/// `GET /api/version`.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") }))
}

/// `POST /api/show`.
pub(crate) async fn show(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Response, ApiError> {
    let width = app.engine.width();
    let shown = move |model: &crate::preparation::Preparing<'_>, fields: &mut crate::fields::Fields<'_>| {
        let name = fields.take::<String>("model")?.or(fields.take("name")?);
        named(model, name.as_deref())?;
        fields.ignore(&["verbose", "system", "template", "options"]);
        Ok(description(model, width))
    };
    let (reply, unknown) = app.understand(&caller, body, shown).await?;
    let mut response = axum::response::IntoResponse::into_response(Json(reply));
    interface::warn(&mut response, unknown);
    Ok(response)
}

fn description(model: &ServedModel, width: usize) -> Value {
    let options = model.page_defaults.options().to_json();
    let parameters = options.iter().map(|(name, value)| format!("{name:<30} {value}"));
    let template = model.template.as_ref().map_or("", |template| template.source());
    let mut capabilities = vec!["completion", "embedding"];
    capabilities.extend(model.tool_format.map(|_| "tools"));
    capabilities.extend(model.reasoning_format.map(|_| "thinking"));
    // Clients look up the architecture, and then what is under its name.
    let architecture = &model.details.architecture;
    let mut info = serde_json::Map::from_iter([
        ("general.architecture".to_owned(), json!(architecture)),
        ("general.basename".to_owned(), json!(model.name())),
        (
            "general.parameter_count".to_owned(),
            json!(model.details.parameters),
        ),
    ]);
    info.insert(
        format!("{architecture}.context_length"),
        model.max_model_len.into(),
    );
    info.insert(format!("{architecture}.embedding_length"), width.into());
    json!({
        "modelfile": format!("FROM {}\n", model.source),
        "parameters": parameters.collect::<Vec<_>>().join("\n"),
        "template": template,
        "modified_at": rfc3339(model.created),
        "details": details(model),
        "model_info": info,
        "capabilities": capabilities,
    })
}
