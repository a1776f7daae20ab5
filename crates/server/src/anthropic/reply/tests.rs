//! Events of outputs that the built-in model would not write by itself.

use super::*;
use crate::generation::Failure;
use crate::sse::testing::{self, finish};
use paceline_text::{OutputParserOptions, ReasoningFormat, ToolFormat};
use serde_json::{Value, json};

const CALL: &str = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>";

fn events(parallel_calls: bool) -> Events {
    let options = OutputParserOptions {
        reasoning: Some(ReasoningFormat::Qwen3),
        tool_format: Some(ToolFormat::Hermes),
        ..OutputParserOptions::default()
    };
    let writer = Writer {
        id: "msg_1".to_owned(),
        model: "m".to_owned(),
        input_tokens: 7,
        reading: Reading::default(),
        parallel_calls,
    };
    Events {
        reader: PartReader::new(paceline_text::OutputParser::new(&options), parallel_calls),
        blocks: Blocks::default(),
        writer,
        cancelled: None,
    }
}

fn stream(text: &str, reason: FinishReason) -> Vec<Value> {
    testing::events(events(true), text, (reason, Failure::ShuttingDown))
}

fn joined(events: &[Value], index: usize, kind: &str, field: &str) -> String {
    let deltas = events
        .iter()
        .filter(|event| event["index"] == index && event["delta"]["type"] == kind);
    deltas
        .map(|event| event["delta"][field].as_str().unwrap())
        .collect()
}

#[test]
fn thinking_text_and_calls_are_blocks_one_after_another() {
    let events = stream(
        &format!("<think>\nhm\n</think>\n\nSure.\n{CALL}"),
        FinishReason::Stop,
    );
    let kinds: Vec<_> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds[..3], ["message_start", "ping", "content_block_start"]);
    assert_eq!(
        kinds[kinds.len() - 3..],
        ["content_block_stop", "message_delta", "message_stop"]
    );
    let starts: Vec<_> = events
        .iter()
        .filter(|event| event["type"] == "content_block_start")
        .map(|event| {
            (
                event["index"].as_u64().unwrap(),
                event["content_block"]["type"].clone(),
            )
        })
        .collect();
    assert_eq!(
        starts,
        [(0, json!("thinking")), (1, json!("text")), (2, json!("tool_use"))]
    );
    assert_eq!(joined(&events, 0, "thinking_delta", "thinking"), "hm");
    assert_eq!(joined(&events, 1, "text_delta", "text").trim_end(), "Sure.");
    let input = joined(&events, 2, "input_json_delta", "partial_json");
    assert_eq!(serde_json::from_str::<Value>(&input).unwrap(), json!({ "a": 1 }));
    let end = &events[events.len() - 2];
    assert_eq!(
        end["delta"],
        json!({ "stop_reason": "tool_use", "stop_sequence": null })
    );
    assert_eq!(
        (&end["usage"]["input_tokens"], &end["usage"]["output_tokens"]),
        (&json!(7), &json!(5))
    );
}

#[test]
fn blocks_are_numbered_and_closed_before_the_next() {
    let events = stream(&format!("{CALL}\n{CALL}"), FinishReason::Stop);
    let mut open = None;
    let mut next = 0;
    for event in &events {
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!((open, &event["index"]), (None, &json!(next)));
                open = Some(next);
                next += 1;
            }
            "content_block_delta" => assert_eq!(Some(event["index"].as_u64().unwrap()), open),
            "content_block_stop" => {
                assert_eq!(Some(event["index"].as_u64().unwrap()), open.take());
            }
            _ => assert_eq!(open, None),
        }
    }
    assert_eq!(next, 2);
}

#[test]
fn a_failure_is_the_last_event() {
    let events = stream("Once", FinishReason::Cancelled);
    let last = events.last().unwrap();
    assert_eq!(
        (&last["type"], &last["error"]["type"]),
        (&json!("error"), &json!("overloaded_error"))
    );
    assert!(events.iter().all(|event| event["type"] != "message_stop"));
}

#[test]
fn a_whole_answer_has_the_input_as_an_object() {
    let mut blocks = Blocks::default();
    let mut reader = events(false).reader;
    let mut parts = reader.push(&format!("{CALL}\n{CALL}"));
    parts.extend(reader.finish());
    for part in parts {
        blocks.add(part, &mut Frames::default());
    }
    let message =
        events(false)
            .writer
            .message(blocks.into_content(), Some(&finish(FinishReason::Stop)), &reader);
    let message = serde_json::to_value(message).unwrap();
    assert_eq!(message["content"].as_array().unwrap().len(), 1);
    let block = &message["content"][0];
    assert_eq!(
        (&block["type"], &block["input"]),
        (&json!("tool_use"), &json!({ "a": 1 }))
    );
    assert!(block["id"].as_str().unwrap().starts_with("toolu_"));
    assert_eq!(message["stop_reason"], "tool_use");
}

#[test]
fn a_call_that_is_cut_off_is_no_call() {
    let text = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1";
    let mut blocks = Blocks::default();
    let mut reader = events(true).reader;
    let mut parts = reader.push(text);
    parts.extend(reader.finish());
    for part in parts {
        blocks.add(part, &mut Frames::default());
    }
    let message = events(true).writer.message(
        blocks.into_content(),
        Some(&finish(FinishReason::Length)),
        &reader,
    );
    let message = serde_json::to_value(message).unwrap();
    assert_eq!(message["stop_reason"], "max_tokens");
    let text = message["content"][0]["text"].as_str().unwrap();
    assert!(text.starts_with("{\"a\": 1"), "{text}");
}

#[test]
fn an_answer_that_its_constraint_ends_says_what_it_ran_into() {
    let events = stream("Once", FinishReason::Constraint);
    let told: Vec<_> = events.iter().map(|event| &event["delta"]).collect();
    let ending = told.iter().find(|delta| delta["stop_reason"] == "constraint");
    let details = &ending.unwrap()["stop_details"];
    assert_eq!(
        (&details["type"], &details["explanation"]),
        (&json!("constraint"), &json!("a dead end"))
    );
    let events = stream("Once", FinishReason::Length);
    assert!(
        events
            .iter()
            .all(|event| event["delta"].get("stop_details").is_none())
    );
}
