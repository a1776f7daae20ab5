//! How tokens came, step by step: an extension that a request asks for with `return_token_origins`.

use crate::generation::Step;
use crate::model::ServedModel;
use paceline_types::{DraftSource, TokenId};
use serde::Serialize;

/// One step. Those of kind `decode` are what the usage counts as steps of speculation.
#[derive(Debug, Serialize)]
pub(crate) struct StepReply {
    kind: &'static str,
    source: Option<&'static str>,
    drafted: usize,
    accepted: usize,
    rejected: Vec<TokenReply>,
    tokens: Vec<TokenReply>,
}

#[derive(Debug, Serialize)]
struct TokenReply {
    id: TokenId,
    text: String,
    /// Of tokens that are part of the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<&'static str>,
}

impl StepReply {
    pub(crate) fn of(model: &ServedModel, step: Step) -> Self {
        let origins = step.origins;
        let source = origins.source.map(DraftSource::name);
        let rejected = origins.rejected.iter().map(|id| TokenReply {
            id: *id,
            text: model.token_text(*id),
            origin: None,
        });
        let tokens = step.tokens.into_iter().enumerate().map(|(place, (id, text))| {
            let drafted = source.filter(|_| place < origins.accepted);
            TokenReply {
                id,
                text,
                origin: Some(drafted.unwrap_or("sampled")),
            }
        });
        Self {
            kind: if origins.decode { "decode" } else { "prefill" },
            source,
            drafted: origins.accepted + origins.rejected.len(),
            accepted: origins.accepted,
            rejected: rejected.collect(),
            tokens: tokens.collect(),
        }
    }
}
