//! What routers ask of a replica: the model that it serves and its load, in the words of SGLang, whose routers and their
//! descendants ask for them.

use crate::app::App;
use crate::identifiers;
use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

/// `GET /server_info` and `/get_server_info`.
pub(crate) async fn server_info(State(app): State<App>) -> Json<Value> {
    let (limits, memory) = (app.engine.limits(), app.engine.memory());
    let mut info = model(&app);
    let more = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "status": if app.lifecycle.phase() == crate::lifecycle::Phase::Serving { "ready" } else { "draining" },
        "tp_size": 1,
        "dp_size": 1,
        "context_length": app.model.max_model_len,
        "page_size": memory.block_size,
        "max_running_requests": memory.slots,
        "max_total_num_tokens": memory.blocks * memory.block_size,
        "disable_radix_cache": !limits.prefix_caching,
        "kv_events": app.config.kv_events.as_ref().map(|events| json!({
            "publisher": "zmq",
            "endpoint_host": events.endpoint.ip(),
            "endpoint_port_base": events.endpoint.port(),
            "topic": events.topic,
            "block_size": memory.block_size,
            "dp_size": 1,
        })),
    });
    if let (Value::Object(info), Value::Object(more)) = (&mut info, more) {
        info.extend(more);
    }
    Json(info)
}

/// `GET /model_info` and `/get_model_info`.
pub(crate) async fn model_info(State(app): State<App>) -> Json<Value> {
    Json(model(&app))
}

/// The model. There is no path to its tokenizer: a router would look for it on its own disk, or ask the hub.
fn model(app: &App) -> Value {
    json!({
        "model_id": app.model.name(),
        "served_model_name": app.model.name(),
        "model_path": app.model.name(),
        "is_generation": true,
        "max_context_length": app.model.max_model_len,
        "vocab_size": app.engine.vocabulary(),
    })
}

/// `GET /get_load`: a list with one entry, for there is one rank.
pub(crate) async fn load(State(app): State<App>) -> Json<Value> {
    let load = Load::of(&app);
    Json(json!([{
        "dp_rank": 0,
        "num_reqs": load.running + load.waiting,
        "num_waiting_reqs": load.waiting,
        "num_tokens": load.tokens,
    }]))
}

/// `GET /v1/loads`, which has taken the place of `/get_load`.
pub(crate) async fn loads(State(app): State<App>) -> Json<Value> {
    let load = Load::of(&app);
    let slots = app.engine.memory().slots;
    let share = |part: usize, whole: usize| part as f64 / whole.max(1) as f64;
    let entry = json!({
        "dp_rank": 0,
        "num_running_reqs": load.running,
        "num_waiting_reqs": load.waiting,
        "num_total_reqs": load.running + load.waiting,
        "num_used_tokens": load.tokens,
        "max_total_num_tokens": load.most_tokens,
        "token_usage": share(load.tokens, load.most_tokens),
        "max_running_requests": slots,
        "utilization": share(load.running, slots),
    });
    Json(json!({
        "timestamp": identifiers::rfc3339_now(),
        "version": env!("CARGO_PKG_VERSION"),
        "dp_rank_count": 1,
        "loads": [entry],
        "aggregate": {
            "total_running_reqs": load.running,
            "total_waiting_reqs": load.waiting,
            "total_reqs": load.running + load.waiting,
            "avg_token_usage": share(load.tokens, load.most_tokens),
        },
    }))
}

/// What there is to do.
struct Load {
    running: usize,
    waiting: usize,
    /// Tokens whose blocks are in use, and that there are blocks for.
    tokens: usize,
    most_tokens: usize,
}

impl Load {
    fn of(app: &App) -> Self {
        let (stats, block_size) = (app.engine.stats(), app.engine.memory().block_size);
        Self {
            running: stats.running,
            waiting: stats.waiting,
            tokens: stats.blocks_used * block_size,
            most_tokens: stats.blocks * block_size,
        }
    }
}
