//! Step times as a Chrome trace, which Perfetto reads too: a host track and a device track.

use crate::WatchedStep;
use paceline_schedule::{Span, StepRecord};
use serde_json::{Value, json};

const HOST: u32 = 1;
const DEVICE: u32 = 2;

/// The trace of these steps.
pub(crate) fn chrome(steps: &[WatchedStep]) -> String {
    let mut events = vec![
        json!({"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "paceline"}}),
        json!({"ph": "M", "name": "thread_name", "pid": 1, "tid": HOST, "args": {"name": "host"}}),
        json!({"ph": "M", "name": "thread_name", "pid": 1, "tid": DEVICE, "args": {"name": "device"}}),
    ];
    for WatchedStep { record, emit, .. } in steps {
        events.push(span("plan", HOST, record.plan, record));
        events.push(span("submit", HOST, record.submit, record));
        events.push(span("wait", HOST, record.wait, record));
        events.push(span("collect", HOST, record.collect, record));
        events.push(span("emit", HOST, *emit, record));
        let device = Span {
            begin: record.device.0,
            end: record.device.1,
        };
        events.push(span(&format!("step {}", record.step), DEVICE, device, record));
        if record.draft_ns > 0 {
            // A step ends with the drafts for the next one.
            let draft = Span {
                begin: device.end.saturating_sub(record.draft_ns).max(device.begin),
                end: device.end,
            };
            events.push(span("draft", DEVICE, draft, record));
        }
        if let Some(bubble) = record.bubble_ns.filter(|ns| *ns > 0) {
            let idle = Span {
                begin: record.device.0.saturating_sub(bubble),
                end: record.device.0,
            };
            events.push(span("bubble", DEVICE, idle, record));
        }
    }
    json!({"traceEvents": events, "displayTimeUnit": "ns"}).to_string()
}

fn span(name: &str, track: u32, span: Span, record: &StepRecord) -> Value {
    json!({
        "ph": "X",
        "name": name,
        "pid": 1,
        "tid": track,
        "ts": span.begin as f64 / 1000.0,
        "dur": span.end.saturating_sub(span.begin) as f64 / 1000.0,
        "args": {
            "step": record.step,
            "rows": record.rows,
            "tokens": record.tokens,
            "in_flight": record.in_flight,
            "drafted": record.drafted,
            "accepted": record.accepted,
            "draft_ns": record.draft_ns,
        },
    })
}
