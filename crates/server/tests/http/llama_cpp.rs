//! What clients of llama-server ask for; and scores of texts.

use crate::support::{TestServer, frames, with};
use serde_json::{Value, json};

#[tokio::test]
async fn a_completion_is_what_the_other_interface_makes_of_it() {
    let server = TestServer::start().await;
    let body = json!({ "prompt": "Once upon a time", "n_predict": 20, "temperature": 0, "cache_prompt": true, "seed": -1 });
    let usual =
        json!({ "prompt": "Once upon a time", "max_tokens": 20, "temperature": 0, "return_token_ids": true });
    let usual = server.ok("/v1/completions", &usual).await;
    let choice = &usual["choices"][0];
    let whole = server.ok("/completion", &body).await;
    assert_eq!(
        (&whole["content"], &whole["tokens"]),
        (&choice["text"], &choice["token_ids"])
    );
    assert_eq!(
        (&whole["stop"], &whole["stop_type"], &whole["tokens_predicted"]),
        (&json!(true), &json!("limit"), &json!(20))
    );
    assert_eq!(whole["timings"]["predicted_n"], 20);
    let streamed = server
        .send("/completion", &with(body.clone(), json!({ "stream": true })))
        .await;
    let pieces: Vec<Value> = frames(&streamed.text().await.unwrap())
        .iter()
        .map(|frame| serde_json::from_str(frame).unwrap())
        .collect();
    let text: String = pieces
        .iter()
        .map(|piece| piece["content"].as_str().unwrap())
        .collect();
    assert_eq!(json!(text), choice["text"]);
    let (last, rest) = pieces.split_last().unwrap();
    assert!(
        rest.iter().all(|piece| piece["stop"] == false)
            && last["stop"] == true
            && last["timings"].is_object()
    );
    let stopped = server
        .ok(
            "/completion",
            &with(body.clone(), json!({ "stop": [","], "n_predict": -1 })),
        )
        .await;
    assert_eq!(
        (&stopped["stop_type"], &stopped["stopping_word"]),
        (&json!("word"), &json!(","))
    );
    let formed = server
        .ok(
            "/completion",
            &with(body, json!({ "json_schema": { "enum": ["yes"] } })),
        )
        .await;
    assert_eq!(formed["content"], "\"yes\"");
}

#[tokio::test]
async fn the_server_tells_what_it_is_and_how_it_writes_conversations() {
    let server = TestServer::start().await;
    let (_, props) = server.get("/props").await;
    assert_eq!(
        (
            &props["total_slots"],
            &props["default_generation_settings"]["n_ctx"]
        ),
        (&json!(8), &json!(512))
    );
    let (_, slots) = server.get("/slots").await;
    assert_eq!(slots.as_array().unwrap().len(), 8);
    assert!(
        slots
            .as_array()
            .unwrap()
            .iter()
            .all(|slot| slot["is_processing"] == false)
    );
    let messages = json!([{ "role": "user", "content": "Hello there" }]);
    let text = server
        .ok("/apply-template", &json!({ "messages": messages }))
        .await;
    let tokens = server
        .ok(
            "/tokenize",
            &json!({ "prompt": text["prompt"], "add_special_tokens": false }),
        )
        .await;
    let talk = server.ok("/tokenize", &json!({ "messages": messages })).await;
    assert_eq!(tokens["tokens"], talk["tokens"]);
    let (_, info) = server.get("/tokenizer_info").await;
    assert_eq!(
        (&info["chat_template"], &info["eos_token"]),
        (&props["chat_template"], &props["eos_token"])
    );
}

#[tokio::test]
async fn scores_are_those_of_the_vectors_and_put_documents_in_order() {
    let server = TestServer::start().await;
    let texts = [
        "The fox ran into the woods.",
        "A red ball.",
        "The fox ran into the woods!",
    ];
    let vectors = server.ok("/v1/embeddings", &json!({ "input": texts })).await;
    let vector = |place: usize| vectors["data"][place]["embedding"].as_array().unwrap();
    let product = |one: usize, other: usize| -> f64 {
        let pairs = vector(one).iter().zip(vector(other));
        pairs
            .map(|(one, other)| one.as_f64().unwrap() * other.as_f64().unwrap())
            .sum()
    };
    let scored = server
        .ok("/v1/score", &json!({ "text_1": texts[0], "text_2": texts }))
        .await;
    for place in 0..3 {
        let score = scored["data"][place]["score"].as_f64().unwrap();
        assert!((score - product(0, place)).abs() < 1e-5, "{place}: {score}");
    }
    let pairs = server
        .ok(
            "/v1/score",
            &json!({ "text_1": [texts[0], texts[1]], "text_2": [texts[1], texts[1]] }),
        )
        .await;
    assert!((pairs["data"][1]["score"].as_f64().unwrap() - 1.0).abs() < 1e-5);
    for path in ["/rerank", "/v1/rerank", "/v2/rerank"] {
        let ranked = server
            .ok(
                path,
                &json!({ "query": texts[0], "documents": [texts[1], { "text": texts[2] }], "top_n": 1 }),
            )
            .await;
        let results = ranked["results"].as_array().unwrap();
        assert_eq!(
            (
                results.len(),
                &results[0]["index"],
                &results[0]["document"]["text"]
            ),
            (1, &json!(1), &json!(texts[2]))
        );
        assert!((results[0]["relevance_score"].as_f64().unwrap() - product(0, 2)).abs() < 1e-5);
    }
    for (path, body, param) in [
        (
            "/v1/score",
            json!({ "text_1": ["a", "b"], "text_2": "c" }),
            "text_1",
        ),
        ("/rerank", json!({ "query": "a", "documents": [] }), "documents"),
        (
            "/rerank",
            json!({ "query": "a", "documents": [5] }),
            "documents[0]",
        ),
    ] {
        let (status, reply) = server.post(path, &body).await;
        assert_eq!((status, &reply["error"]["param"]), (400, &json!(param)));
    }
}
