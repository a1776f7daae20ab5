//! What a server says of itself.

use paceline_client::{Client, ClientError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The server that was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ServerFacts {
    pub(super) url: String,
    /// The model that was asked for.
    pub(super) model: String,
    /// `owned_by` of its models.
    pub(super) owner: Option<String>,
    /// Its version, where it tells.
    pub(super) version: Option<String>,
    /// Longest sequence, where it tells.
    pub(super) max_model_len: Option<u64>,
}

impl ServerFacts {
    /// Asks the server. One that lists no models is fine if the model is given.
    pub(super) async fn ask(client: &Client, model: Option<&str>) -> Result<Self, ClientError> {
        let list = match client.get("/v1/models").await {
            Ok(list) => list,
            Err(ClientError::Status { .. } | ClientError::Protocol { .. }) if model.is_some() => Value::Null,
            Err(error) => return Err(error),
        };
        let cards = list["data"].as_array().map(Vec::as_slice).unwrap_or_default();
        let card = match model {
            Some(name) => cards.iter().find(|card| card["id"] == name),
            None => cards.first(),
        };
        let id = card.and_then(|card| card["id"].as_str());
        let Some(model) = model.or(id) else {
            let reason = "it lists no models; name one with --model".to_owned();
            return Err(ClientError::Protocol { reason });
        };
        let version = client.get("/version").await.ok();
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        Ok(Self {
            url: client.root().to_owned(),
            model: model.to_owned(),
            owner: text(card.map(|card| &card["owned_by"])),
            version: text(version.as_ref().map(|version| &version["version"])),
            max_model_len: card.and_then(|card| card["max_model_len"].as_u64()),
        })
    }

    /// One line for people.
    pub(super) fn line(&self) -> String {
        let about = [self.owner.as_deref(), self.version.as_deref()];
        let about: Vec<&str> = about.into_iter().flatten().collect();
        if about.is_empty() {
            return format!("{}, model {}", self.url, self.model);
        }
        format!("{} ({}), model {}", self.url, about.join(" "), self.model)
    }
}
