//! `/v1/engine`: the live state, for people and programs that look closer than metrics do.

use crate::app::App;
use crate::constraint::Grammars;
use crate::lifecycle::Phase;
use axum::Json;
use axum::extract::State;
use paceline::{Handle, NeuralDrafter, Stats};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

/// `GET /v1/engine`.
pub(crate) async fn engine(State(app): State<App>) -> Json<Value> {
    let stats = app.engine.stats();
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "status": status(&app),
        "uptime_seconds": app.started.elapsed().as_secs_f64(),
        "model": {
            "name": app.model.name(),
            "names": app.model.names,
            "source": app.model.source,
            "max_model_len": app.model.max_model_len,
            "chat": app.model.template.is_some(),
        },
        "sampling": {
            "requests": app.model.defaults.to_json(),
            "page": app.model.page_defaults.to_json(),
        },
        "device": device(&app.engine),
        "features": app.features,
        "slots": {
            "total": app.engine.memory().slots,
            "running": stats.running,
            "waiting": stats.waiting,
            "queue_age_seconds": stats.queue_age().as_secs_f64(),
            "preemptions": stats.counters.preemptions,
            "requests_ended": stats.finished,
            "tokens": stats.tokens,
        },
        "cache": cache(&app, &stats),
        "speculation": speculation(&app.engine, &stats),
        "grammars": grammars(&app.grammars),
        "pipeline": pipeline(&app.engine, &stats),
        "memory": memory(&app.engine),
        "limits": limits(&app),
        "traces": app.traces.as_ref().map(|traces| json!({ "spans_lost": traces.lost() })),
    }))
}

fn status(app: &App) -> Value {
    match app.lifecycle.phase() {
        Phase::Serving => json!({ "phase": "serving" }),
        Phase::Draining => json!({ "phase": "draining" }),
        Phase::Failed(reason) => json!({ "phase": "failed", "reason": reason }),
    }
}

/// The device, and how it stores what is not a weight.
fn device(engine: &Handle) -> Value {
    let device = engine.device();
    let elements = device.elements;
    json!({
        "name": device.name,
        "description": device.description,
        "kernels": device.kernels,
        "elements": {
            "activations": elements.activations.name(),
            "kv": elements.kv.name(),
            "states": elements.states.name(),
        },
        "total_memory": device.total_memory,
        "free_memory_at_start": device.free_memory,
    })
}

fn cache(app: &App, stats: &Stats) -> Value {
    let (engine, c) = (&app.engine, &stats.counters);
    let tcp = |address: SocketAddr| format!("tcp://{address}");
    json!({
        "prefix_caching": engine.limits().prefix_caching,
        "block_tokens": engine.memory().block_size,
        "blocks": stats.blocks,
        "blocks_used": stats.blocks_used,
        "blocks_free": stats.blocks - stats.blocks_used,
        "prefix": {
            "tokens_looked_up": c.prefix_queries,
            "tokens_found": c.prefix_hits,
            "hit_rate": share(c.prefix_hits, c.prefix_queries),
        },
        "snapshots": {
            "total": stats.snapshots,
            "in_use": stats.snapshots_used,
            "reserved": stats.snapshots_reserved,
            "written": c.snapshots_written,
            "published": c.snapshots_published,
            "used": c.snapshots_used,
        },
        "kv_events": app.config.kv_events.as_ref().map(|events| json!({
            "endpoint": tcp(events.endpoint),
            "replay_endpoint": events.replay_endpoint.map(tcp),
            "topic": events.topic,
        })),
    })
}

fn speculation(engine: &Handle, stats: &Stats) -> Value {
    let (speculation, c) = (engine.speculation(), &stats.counters);
    let places = speculation.draft_tokens.min(c.drafted_by_position.len());
    let positions = c.drafted_by_position.iter().zip(&c.accepted_by_position);
    let positions = positions.take(places).map(|(drafted, accepted)| {
        json!({ "drafted": drafted, "accepted": accepted, "acceptance": share(*accepted, *drafted) })
    });
    let source = |drafted: u64, accepted: u64| json!({ "drafted": drafted, "accepted": accepted, "acceptance": share(accepted, drafted) });
    json!({
        "configuration": {
            "summary": speculation.to_string(),
            "ngram": speculation.ngram.map(|(min, max)| json!({ "min": min, "max": max })),
            "neural": speculation.neural.map(NeuralDrafter::name),
            "draft_tokens": speculation.draft_tokens,
            "depth_control": speculation.depth_control,
            "methods": speculation.methods().iter().map(|method| method.name()).collect::<Vec<_>>(),
        },
        "rows": c.draft_rows,
        "drafted": c.drafts_verified,
        "accepted": c.drafts_accepted,
        "acceptance": share(c.drafts_accepted, c.drafts_verified),
        "mean_length": stats.mean_length(),
        "by_position": positions.collect::<Vec<_>>(),
        "by_source": {
            "ngram": source(c.ngram.drafted, c.ngram.accepted),
            "neural": source(c.neural.drafted, c.neural.accepted),
            "grammar": source(c.grammar.drafted, c.grammar.accepted),
        },
        "draft_passes": c.draft_passes,
        "draft_seconds": seconds(c.draft_ns),
        "verify_seconds": seconds(stats.verify_ns()),
        "gained_seconds": c.gained_ns as f64 / 1e9,
        "wasted_tokens": c.wasted_tokens,
        "wasted_rows": c.wasted_rows,
    })
}

fn grammars(grammars: &Grammars) -> Value {
    let counts = grammars.counts();
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    json!({
        "compiled": read(&counts.compiled),
        "refused": read(&counts.refused),
        "compile_seconds": seconds(read(&counts.compile_ns)),
        "cache_hits": read(&counts.hits),
        "cache_misses": read(&counts.misses),
        "kept": grammars.kept(),
    })
}

fn pipeline(engine: &Handle, stats: &Stats) -> Value {
    let p = &stats.pipeline;
    json!({
        "depth": engine.limits().pipeline_depth,
        "steps": p.steps,
        "device_busy_seconds": seconds(p.device_ns),
        "bubble_seconds": seconds(p.bubble_ns),
        "bubble_share": stats.bubble_share(),
        "host_seconds": {
            "plan": seconds(p.plan_ns),
            "submit": seconds(p.submit_ns),
            "wait": seconds(p.waits.collect_ns),
            "collect": seconds(p.collect_ns),
        },
        "host_waits": { "collect": p.waits.collect, "elsewhere": p.waits.elsewhere },
    })
}

/// The plan of the memory, in bytes.
fn memory(engine: &Handle) -> Value {
    let plan = engine.memory();
    json!({
        "budget": plan.budget,
        "total": plan.total(),
        "weights": plan.weights,
        "blocks": plan.kv,
        "states": plan.states,
        "rings": plan.rings,
        "snapshots": plan.snapshots,
        "ngram_index": plan.ngram_index,
        "scratch": plan.scratch,
        "full_length_requests": plan.full_length_requests(),
    })
}

fn limits(app: &App) -> Value {
    let (config, limits) = (&app.config, app.engine.limits());
    let time = |time: std::time::Duration| time.as_secs_f64();
    json!({
        "max_model_len": app.engine.max_model_len(),
        "max_num_seqs": app.engine.memory().slots,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "max_waiting": limits.max_waiting,
        "max_choices": limits.max_choices,
        "threads": limits.threads,
        "programs": limits.programs.programs,
        "max_concurrent_requests": config.max_concurrent_requests,
        "max_requests_per_key": config.max_requests_per_key,
        "max_connections": config.max_connections,
        "max_connections_per_address": config.max_connections_per_address,
        "max_body_bytes": config.max_body_bytes,
        "max_header_bytes": config.max_header_bytes,
        "header_timeout_seconds": time(config.header_timeout),
        "body_timeout_seconds": time(config.body_timeout),
        "write_timeout_seconds": time(config.write_timeout),
        "max_reply_bytes": config.max_reply_bytes,
        "request_timeout_seconds": config.request_timeout.map(time),
        "drain_timeout_seconds": time(config.drain_timeout),
        "watchdog_timeout_seconds": config.watchdog_timeout.map(time),
    })
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// A part of a whole, if there is one.
fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}
