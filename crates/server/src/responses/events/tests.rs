//! Events of outputs that the built-in model would not write by itself.

use super::*;
use crate::conversation::Reading;
use crate::generation::{Collected, Completion, Failure, Piece};
use crate::interface::Writer as _;
use crate::sse::testing::{self, finish};
use paceline_text::{OutputParser, OutputParserOptions, ReasoningFormat, ToolFormat};
use serde_json::{Value, json};

const CALL: &str = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>";

fn events() -> Events {
    let options = OutputParserOptions {
        reasoning: Some(ReasoningFormat::Qwen3),
        tool_format: Some(ToolFormat::Hermes),
        ..OutputParserOptions::default()
    };
    let writer = Writer {
        reply: Reply {
            id: "resp_1".to_owned(),
            status: "in_progress",
            parallel_tool_calls: true,
            ..Reply::default()
        },
        reading: Reading::default(),
        input_tokens: 7,
    };
    Events {
        reader: PartReader::new(OutputParser::new(&options), true),
        writer,
        items: Items::default(),
        sent: EventWriter::default(),
        cancelled: None,
    }
}

/// The events, whose numbers must count.
fn stream(text: &str, reason: FinishReason) -> Vec<Value> {
    let failure = Failure::Engine("smoke".to_owned());
    let events = testing::events(events(), text, (reason, failure));
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    events
}

fn of<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["type"] == kind).collect()
}

/// The deltas of a kind, joined, which must be what the done event says.
fn joined(events: &[Value], kind: &str, field: &str) -> String {
    let deltas = of(events, &format!("{kind}.delta"));
    let text: String = deltas
        .iter()
        .map(|event| event["delta"].as_str().unwrap())
        .collect();
    assert_eq!(of(events, &format!("{kind}.done"))[0][field], text);
    text
}

#[test]
fn reasoning_text_and_calls_are_items_one_after_another() {
    let events = stream(
        &format!("<think>\nhm\n</think>\n\nSure.\n{CALL}"),
        FinishReason::Stop,
    );
    let kinds: Vec<_> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds[..4],
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added"
        ]
    );
    assert_eq!(joined(&events, "response.reasoning_text", "text"), "hm");
    assert_eq!(
        joined(&events, "response.output_text", "text").trim_end(),
        "Sure."
    );
    let arguments = joined(&events, "response.function_call_arguments", "arguments");
    assert_eq!(
        serde_json::from_str::<Value>(&arguments).unwrap(),
        json!({ "a": 1 })
    );
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    let done: Vec<_> = of(&events, "response.output_item.done")
        .iter()
        .map(|event| event["item"].clone())
        .collect();
    assert_eq!(last["response"]["output"], json!(done));
    let kinds: Vec<_> = done.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call"]);
    assert!(done.iter().all(|item| item["status"] == "completed"));
    assert_eq!(last["response"]["usage"]["total_tokens"], 12);
}

#[test]
fn an_item_is_added_empty_and_at_its_place() {
    let events = stream(&format!("{CALL}\n{CALL}"), FinishReason::Stop);
    for (index, event) in of(&events, "response.output_item.added").iter().enumerate() {
        assert_eq!(event["output_index"], index);
        assert_eq!(
            (&event["item"]["arguments"], &event["item"]["status"]),
            (&json!(""), &json!("in_progress"))
        );
    }
    assert_eq!(of(&events, "response.output_item.added").len(), 2);
}

#[test]
fn a_text_that_is_cut_off_is_incomplete() {
    let events = stream("Once upon", FinishReason::Length);
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.incomplete");
    let response = &last["response"];
    assert_eq!(
        (&response["status"], &response["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    assert_eq!(response["output"][0]["status"], "incomplete");
}

#[test]
fn a_failure_is_the_last_event() {
    let events = stream("Once", FinishReason::Cancelled);
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.failed");
    let response = &last["response"];
    assert_eq!(
        (&response["status"], &response["error"]["code"]),
        (&json!("failed"), &json!("server_error"))
    );
    assert!(response["error"]["message"].as_str().unwrap().contains("smoke"));
}

#[test]
fn a_whole_response_is_what_its_stream_ends_with() {
    let streamed = stream("Once upon a time", FinishReason::Stop);
    let completion = Completion {
        whole: Piece {
            text: "Once upon a time".to_owned(),
            ..Piece::default()
        },
        finish: Some(finish(FinishReason::Stop)),
    };
    let collected = Collected {
        completions: vec![completion],
        ..Collected::default()
    };
    let whole = serde_json::to_value(events().writer.whole(collected)).unwrap();
    let last = &streamed.last().unwrap()["response"];
    assert_eq!(whole["output"][0]["content"], last["output"][0]["content"]);
    assert_eq!(whole["usage"], last["usage"]);
    assert_eq!(whole["status"], "completed");
}

#[test]
fn a_text_that_its_constraint_ends_says_what_it_ran_into() {
    let events = stream("Once", FinishReason::Constraint);
    let details = &events.last().unwrap()["response"]["incomplete_details"];
    assert_eq!(
        *details,
        json!({ "reason": "constraint", "message": "a dead end" })
    );
}
