//! `/v1/models`: what is on offer.

use crate::app::App;
use crate::error::ApiError;
use axum::Json;
use axum::extract::{Path, State};
use serde::Serialize;

#[derive(Serialize)]
pub(crate) struct ModelList {
    object: &'static str,
    data: Vec<ModelCard>,
}

#[derive(Serialize)]
pub(crate) struct ModelCard {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    root: String,
    parent: Option<String>,
    max_model_len: usize,
}

fn card(app: &App, name: &str) -> ModelCard {
    ModelCard {
        id: name.to_owned(),
        object: "model",
        created: app.model.created,
        owned_by: "paceline",
        root: app.model.source.clone(),
        parent: None,
        max_model_len: app.model.max_model_len,
    }
}

pub(crate) async fn list(State(app): State<App>) -> Json<ModelList> {
    Json(ModelList {
        object: "list",
        data: app.model.names.iter().map(|name| card(&app, name)).collect(),
    })
}

pub(crate) async fn retrieve(
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<Json<ModelCard>, ApiError> {
    let name = app.model.named(Some(&name))?;
    Ok(Json(card(&app, &name)))
}
