//! `/v1/engine/events`: steps and gauges as they come, for those who look; `/v1/engine/trace`: the steps as a file.
//!
//! A viewer looks at the engine's recent steps a few times per second. The engine does not know how many viewers there are, only
//! whether there is one; a viewer that reads slowly comes back late and is told what it missed.

use crate::app::App;
use crate::error::ApiError;
use crate::lifecycle::Phase;
use crate::sse::{self, Frames};
use axum::extract::{RawQuery, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use paceline::{Span, Stats, StepViewer, WatchedStep};
use serde::Serialize;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::time::{Duration, Instant};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// How often a viewer looks for new steps.
const TICK: Duration = Duration::from_millis(100);

/// Gauges come with every so many looks.
const GAUGES_EVERY: u32 = 5;

/// Steps of a trace at most.
const TRACE_STEPS: usize = 512;

/// The longest time that a trace may be asked to record for, in seconds.
const LONGEST_TRACE: f64 = 60.0;

/// `GET /v1/engine/events`.
pub(crate) async fn events(State(app): State<App>) -> Response {
    let view = View::new(app);
    sse::response(
        "text/event-stream; charset=utf-8",
        futures_util::stream::unfold(view, |mut view| async move {
            let frames = view.next().await?;
            Some((Ok::<_, Infallible>(frames), view))
        }),
    )
}

/// One viewer.
struct View {
    app: App,
    viewer: StepViewer,
    ticks: Interval,
    /// Looks so far.
    looks: u32,
    /// Numbers of the last gauges, and when that was.
    before: (Instant, Stats),
}

impl View {
    fn new(app: App) -> Self {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            viewer: app.engine.watch(),
            before: (Instant::now(), app.engine.stats()),
            ticks,
            looks: 0,
            app,
        }
    }

    /// The next frames; nothing once the server goes down.
    async fn next(&mut self) -> Option<Bytes> {
        let mut frames = Frames::default();
        loop {
            self.ticks.tick().await;
            if self.app.lifecycle.phase() != Phase::Serving {
                return None;
            }
            let first = self.looks == 0;
            if first {
                frames.event("hello", &self.hello());
            }
            let (steps, lost) = self.viewer.take();
            if first || !steps.is_empty() || lost > 0 {
                let steps: Vec<StepEvent> = steps.iter().map(StepEvent::of).collect();
                frames.event(
                    "steps",
                    &json!({ "now": self.app.engine.now_ns(), "lost": lost, "steps": steps }),
                );
            }
            if self.looks.is_multiple_of(GAUGES_EVERY) && !first {
                frames.event("gauges", &self.gauges());
            }
            self.looks = self.looks.wrapping_add(1).max(1);
            if let Some(bytes) = frames.take() {
                return Some(bytes);
            }
        }
    }

    fn hello(&self) -> Value {
        let engine = &self.app.engine;
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "now": engine.now_ns(),
            "pipeline_depth": engine.limits().pipeline_depth,
            "draft_tokens": engine.speculation().draft_tokens,
            "history": self.viewer.kept(),
        })
    }

    fn gauges(&mut self) -> Value {
        let now = (Instant::now(), self.app.engine.stats());
        let (then, before) = std::mem::replace(&mut self.before, now);
        let (at, stats) = &self.before;
        let engine = &self.app.engine;
        let interval = at.duration_since(then).as_secs_f64();
        let rate = |count: fn(&Stats) -> u64| (count(stats) - count(&before)) as f64 / interval.max(1e-9);
        let more = |count: fn(&Stats) -> u64| count(stats) - count(&before);
        let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
        let (device, bubble) = (more(|s| s.pipeline.device_ns), more(|s| s.pipeline.bubble_ns));
        json!({
            "now": engine.now_ns(),
            "interval_ms": interval * 1e3,
            "tokens_per_second": rate(|s| s.tokens),
            "tokens_run_per_second": rate(|s| s.sizes.step_tokens.sum()),
            "steps_per_second": rate(|s| s.pipeline.steps),
            "requests_per_second": rate(|s| s.finished),
            "time_to_first_token_ms": first_token_ms(&before, stats),
            "running": stats.running,
            "waiting": stats.waiting,
            "slots": engine.memory().slots,
            "blocks": { "used": stats.blocks_used, "total": stats.blocks },
            "snapshots": { "used": stats.snapshots_used, "total": stats.snapshots },
            "prefix_hit_rate": share(more(|s| s.counters.prefix_hits), more(|s| s.counters.prefix_queries)),
            "device_busy": rate(|s| s.pipeline.device_ns) / 1e9,
            "device_idle": share(bubble, device + bubble),
            "drafts": drafts(&before, stats, engine.speculation().draft_tokens),
        })
    }
}

/// What became of the drafts in between.
fn drafts(before: &Stats, stats: &Stats, places: usize) -> Value {
    let (before, now) = (&before.counters, &stats.counters);
    let places = (0..places.min(now.drafted_by_position.len())).map(|place| {
        json!({
            "drafted": now.drafted_by_position[place] - before.drafted_by_position[place],
            "accepted": now.accepted_by_position[place] - before.accepted_by_position[place],
        })
    });
    json!({
        "drafted": now.drafts_verified - before.drafts_verified,
        "accepted": now.drafts_accepted - before.drafts_accepted,
        "by_position": places.collect::<Vec<_>>(),
    })
}

/// The mean time from arrival to first token of the requests that got theirs in between: in the queue, then in the slot.
fn first_token_ms(before: &Stats, stats: &Stats) -> Option<f64> {
    let (before, now) = (&before.sizes, &stats.sizes);
    let mean = |before: &paceline::Histogram, now: &paceline::Histogram| {
        let count = now.count() - before.count();
        (count > 0).then(|| (now.sum() - before.sum()) as f64 / count as f64 / 1e6)
    };
    let queued = mean(&before.queued_ns, &now.queued_ns).unwrap_or(0.0);
    mean(&before.prefill_ns, &now.prefill_ns).map(|prefill| queued + prefill)
}

/// A step as viewers see it. Times are begin and end, in nanoseconds.
#[derive(Debug, Serialize)]
struct StepEvent {
    step: u64,
    rows: usize,
    tokens: usize,
    prompt_tokens: usize,
    in_flight: usize,
    drafted: usize,
    accepted: usize,
    accepted_by_position: Vec<u32>,
    plan: [u64; 2],
    submit: [u64; 2],
    wait: [u64; 2],
    collect: [u64; 2],
    emit: [u64; 2],
    device: [u64; 2],
    draft_ns: u64,
    idle_ns: Option<u64>,
}

impl StepEvent {
    fn of(step: &WatchedStep) -> Self {
        let record = &step.record;
        let span = |span: Span| [span.begin, span.end];
        let places = step.accepted_by_position;
        let used = places
            .iter()
            .rposition(|count| *count > 0)
            .map_or(0, |last| last + 1);
        Self {
            step: record.step,
            rows: record.rows,
            tokens: record.tokens_run,
            prompt_tokens: step.prompt_tokens,
            in_flight: record.in_flight,
            drafted: record.drafted,
            accepted: record.accepted,
            accepted_by_position: places[..used].to_vec(),
            plan: span(record.plan),
            submit: span(record.submit),
            wait: span(record.wait),
            collect: span(record.collect),
            emit: span(step.emit),
            device: [record.device.0, record.device.1],
            draft_ns: record.draft_ns,
            idle_ns: record.bubble_ns,
        }
    }
}

/// `GET /v1/engine/trace`: what was recorded last; with `seconds`, after recording for that long.
pub(crate) async fn trace(State(app): State<App>, RawQuery(query): RawQuery) -> Result<Response, ApiError> {
    if let Some(time) = seconds(query.as_deref().unwrap_or_default())? {
        let _viewer = app.engine.watch();
        let abort = app.lifecycle.abort_token();
        let _ = tokio::time::timeout(time, abort.cancelled()).await;
    }
    let mut response = app.engine.trace(TRACE_STEPS).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(
        header::CONTENT_DISPOSITION,
        HeaderValue::from_static("attachment; filename=\"paceline-trace.json\""),
    );
    Ok(response)
}

/// How long to record, if the query says so.
fn seconds(query: &str) -> Result<Option<Duration>, ApiError> {
    const FIELD: &str = "seconds";
    let mut given = query.split('&').filter_map(|pair| pair.strip_prefix("seconds="));
    let Some(text) = given.next() else {
        return Ok(None);
    };
    let number = text.parse::<f64>().ok();
    let number = number.filter(|number| (0.0..=LONGEST_TRACE).contains(number));
    let bound = format!("a number of seconds from 0 to {LONGEST_TRACE}");
    let number = number.ok_or_else(|| ApiError::bound(FIELD, &crate::body::shorten(text), &bound))?;
    Ok(Some(Duration::from_secs_f64(number)))
}
