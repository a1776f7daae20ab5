//! Which path leads where, and what every request passes on its way.

use crate::anthropic::Messages;
use crate::app::App;
use crate::error::{ApiError, ErrorKind};
use crate::interface::create;
use crate::llama_cpp::Completion;
use crate::openai::chat::Chat;
use crate::openai::completions::Completions;
use crate::responses::Responses;
use crate::{
    active, anthropic, engine_state, envelope, events, health, llama_cpp, metrics, ollama, openai, openapi,
    page, replica, scores, tokens,
};
use axum::Router;
use axum::extract::Request;
use axum::middleware::from_fn;
use axum::routing::{delete, get, post};

/// All paths of the server.
pub(crate) fn router(app: &App) -> Router {
    let paths = Router::new()
        .route("/v1/chat/completions", post(create::<Chat>))
        .route("/v1/completions", post(create::<Completions>))
        .route("/v1/embeddings", post(openai::embeddings::create))
        .route("/v1/responses", post(create::<Responses>))
        .route("/v1/messages", post(create::<Messages>))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .route("/v1/models", get(openai::models::list))
        .route("/v1/models/{*name}", get(openai::models::retrieve))
        .route("/v1/score", post(scores::score))
        .route("/rerank", post(scores::rerank))
        .route("/v1/rerank", post(scores::rerank))
        .route("/v2/rerank", post(scores::rerank))
        .route("/api/chat", post(ollama::chat))
        .route("/api/generate", post(ollama::generate))
        .route("/api/embed", post(ollama::embed))
        .route("/api/tags", get(ollama::tags))
        .route("/api/ps", get(ollama::ps))
        .route("/api/show", post(ollama::show))
        .route("/api/version", get(ollama::version))
        .route("/completion", post(create::<Completion>))
        .route("/props", get(llama_cpp::props))
        .route("/slots", get(llama_cpp::slots))
        .route("/apply-template", post(llama_cpp::apply_template))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/tokenizer_info", get(tokens::tokenizer_info))
        .route("/health", get(health::health).post(health::health))
        .route("/ping", get(health::health).post(health::health))
        .route("/ready", get(health::ready))
        .route("/version", get(health::version))
        .route("/metrics", get(metrics::scrape))
        .route("/server_info", get(replica::server_info))
        .route("/get_server_info", get(replica::server_info))
        .route("/model_info", get(replica::model_info))
        .route("/get_model_info", get(replica::model_info))
        .route("/get_load", get(replica::load))
        .route("/v1/loads", get(replica::loads))
        .route("/v1/engine", get(engine_state::engine))
        .route("/v1/engine/events", get(events::events))
        .route("/v1/engine/trace", get(events::trace))
        .route("/v1/engine/requests", get(active::list))
        .route("/v1/engine/requests/{*id}", delete(active::cancel))
        .route("/openapi.json", get(openapi::document));
    let paths = if app.config.page { page::add(paths) } else { paths };
    let paths = paths
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method);
    envelope::wrap(paths.with_state(app.clone()), app)
        .layer(from_fn(anthropic::speak))
        .layer(from_fn(ollama::speak))
}

async fn not_found(request: Request) -> ApiError {
    let path = crate::body::shorten(request.uri().path());
    ApiError::new(ErrorKind::NotFound, format!("there is nothing at {path}"))
}

async fn wrong_method(request: Request) -> ApiError {
    let (method, path) = (request.method(), request.uri().path());
    ApiError::new(ErrorKind::Method, format!("{path} does not take {method}"))
}
