//! `/v1/embeddings`.

use crate::support::{MODEL, TestServer, engine_config};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use paceline::{EmbeddingRequest, EngineConfig};
use paceline_server::ServerConfig;
use paceline_types::{Pooling, TokenId};
use serde_json::{Value, json};

const PATH: &str = "/v1/embeddings";

/// The vectors of a reply.
fn vectors(reply: &Value) -> Vec<Vec<f32>> {
    let data = reply["data"].as_array().unwrap();
    let vector = |(index, row): (usize, &Value)| {
        assert_eq!(
            (&row["index"], &row["object"]),
            (&json!(index), &json!("embedding"))
        );
        match &row["embedding"] {
            Value::String(text) => {
                let bytes = BASE64_STANDARD.decode(text).unwrap();
                let float = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
                bytes.chunks(4).map(float).collect()
            }
            Value::Array(values) => values
                .iter()
                .map(|value| value.as_f64().unwrap() as f32)
                .collect(),
            other => panic!("{other}"),
        }
    };
    data.iter().enumerate().map(vector).collect()
}

async fn tokens(server: &TestServer, text: &str) -> Vec<TokenId> {
    let reply = server.ok("/tokenize", &json!({ "prompt": text })).await;
    let ids = reply["tokens"].as_array().unwrap();
    ids.iter().map(|id| id.as_u64().unwrap() as TokenId).collect()
}

/// What the engine makes of a text.
fn plain(server: &TestServer, tokens: &[TokenId], pooling: Pooling) -> Vec<f32> {
    let request = EmbeddingRequest::new(tokens.to_vec(), pooling);
    server.engine.embed(request).unwrap().wait().unwrap().values
}

fn length(vector: &[f32]) -> f64 {
    let square: f64 = vector.iter().map(|x| f64::from(*x).powi(2)).sum();
    square.sqrt()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_form_of_a_text_gives_the_vector_of_the_engine() {
    let server = TestServer::start().await;
    let text = "Once upon a time there was a fox.";
    let ids = tokens(&server, text).await;
    for (pooling, name) in [(Pooling::Mean, "mean"), (Pooling::Last, "last")] {
        let expected = plain(&server, &ids, pooling);
        assert_eq!(expected.len(), server.engine.width());
        for input in [json!(text), json!([text]), json!(ids), json!([ids])] {
            for encoding in ["float", "base64"] {
                let body = json!({ "model": MODEL, "input": input, "pooling": name, "normalize": false,
                    "encoding_format": encoding, "user": "somebody" });
                let reply = server.ok(PATH, &body).await;
                assert_eq!(
                    vectors(&reply),
                    std::slice::from_ref(&expected),
                    "{input} {encoding}"
                );
                assert_eq!(
                    (&reply["object"], &reply["model"]),
                    (&json!("list"), &json!(MODEL))
                );
                assert_eq!(reply["usage"]["prompt_tokens"], ids.len());
                assert_eq!(reply["usage"]["total_tokens"], ids.len());
            }
        }
    }
    // The server's own choice is the mean, at unit length.
    let reply = server.ok(PATH, &json!({ "input": text })).await;
    let found = vectors(&reply).remove(0);
    let mean = plain(&server, &ids, Pooling::Mean);
    let expected: Vec<f32> = mean
        .iter()
        .map(|x| (f64::from(*x) / length(&mean)) as f32)
        .collect();
    assert_eq!(found, expected);
    let short = server.ok(PATH, &json!({ "input": text, "dimensions": 5 })).await;
    let short = vectors(&short).remove(0);
    assert_eq!(short.len(), 5);
    assert!((length(&short) - 1.0).abs() < 1e-6);
    server.idle().await;
}

#[tokio::test]
async fn the_server_may_pool_otherwise_unless_a_request_says() {
    let server = TestServer::configured(|config| config.pooling = Pooling::Last).await;
    let vector = |body: Value| {
        let server = &server;
        async move { vectors(&server.ok(PATH, &body).await).remove(0) }
    };
    let own = vector(json!({ "input": "a fox" })).await;
    assert_eq!(own, vector(json!({ "input": "a fox", "pooling": "last" })).await);
    assert_ne!(own, vector(json!({ "input": "a fox", "pooling": "mean" })).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_texts_share_the_engine_with_stories_and_change_none() {
    // A queue that is shorter than the list of texts.
    let config = EngineConfig {
        max_num_seqs: 4,
        max_waiting: 8,
        ..engine_config()
    };
    let server = TestServer::with(ServerConfig::default(), config).await;
    let story = json!({ "prompt": "Once upon a time", "max_tokens": 60, "seed": 1, "ignore_eos": true });
    let alone = server.ok("/v1/completions", &story).await;
    let texts: Vec<String> = (0..40).map(|i| format!("Text number {i} of many.")).collect();
    let mut expected = Vec::new();
    for text in &texts {
        let reply = server.ok(PATH, &json!({ "input": text })).await;
        expected.push(vectors(&reply).remove(0));
    }
    let body = json!({ "input": texts });
    let (all, beside) = tokio::join!(server.ok(PATH, &body), server.ok("/v1/completions", &story));
    assert_eq!(vectors(&all), expected);
    assert_eq!(beside["choices"][0]["text"], alone["choices"][0]["text"]);
    let counted: u64 = all["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(counted > 40 * 3);
    server.idle().await;
}

#[tokio::test]
async fn what_is_out_of_bounds_is_named_with_its_bound() {
    let server = TestServer::start().await;
    let width = server.engine.width();
    let widths = format!("1..={width}");
    for (body, param, part) in [
        (json!({}), "input", "missing"),
        (json!({ "input": 5 }), "input", "a string, token ids"),
        (json!({ "input": [] }), "input", "1 to 2048"),
        (
            json!({ "input": vec!["x"; 2049] }),
            "input",
            "there are 2049 inputs",
        ),
        (json!({ "input": "" }), "input", "0 tokens long"),
        (json!({ "input": ["x", ""] }), "input[1]", "0 tokens long"),
        (
            json!({ "input": vec![1; 513] }),
            "input",
            "This model's maximum context length is 512 tokens. However, `input` has 513 tokens.",
        ),
        (
            json!({ "input": [[1], [1 << 20]] }),
            "input[1]",
            "with token 1048576",
        ),
        (json!({ "input": [-1] }), "input", "-1 is not a token id"),
        (json!({ "input": "x", "dimensions": 0 }), "dimensions", &widths),
        (
            json!({ "input": "x", "dimensions": width + 1 }),
            "dimensions",
            &widths,
        ),
        (
            json!({ "input": "x", "encoding_format": "hex" }),
            "encoding_format",
            "hex",
        ),
        (json!({ "input": "x", "pooling": "max" }), "pooling", "max"),
        (
            json!({ "input": "x", "normalize": 1 }),
            "normalize",
            "true or false",
        ),
        (
            json!({ "input": "x", "deadline_ms": 0 }),
            "deadline_ms",
            "within 1..=",
        ),
    ] {
        let (status, reply) = server.post(PATH, &body).await;
        let shown = body.to_string().chars().take(80).collect::<String>();
        assert_eq!(status, 400, "{shown}: {reply}");
        assert_eq!(reply["error"]["param"], param, "{shown}: {reply}");
        let message = reply["error"]["message"].as_str().unwrap();
        assert!(message.contains(part), "{shown}: {message}");
    }
    let (status, _) = server
        .post(PATH, &json!({ "input": "x", "model": "other" }))
        .await;
    assert_eq!(status, 404);
    assert_eq!(server.idle().await.blocks_used, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_ends_it_and_a_client_that_goes_frees_its_place() {
    let config = EngineConfig {
        max_num_batched_tokens: 1,
        max_num_seqs: 1,
        ..engine_config()
    };
    let server = TestServer::with(ServerConfig::default(), config).await;
    let long = vec![1; 512];
    let body = json!({ "input": vec![long; 40], "deadline_ms": 1 });
    let (status, reply) = server.post(PATH, &body).await;
    assert_eq!(status, 408, "{reply}");
    assert!(reply["error"]["message"].as_str().unwrap().contains("deadline"));
    server.idle().await;
    let mut body = body;
    body.as_object_mut().unwrap().remove("deadline_ms");
    let request = server
        .client
        .post(format!("{}{PATH}", server.base))
        .json(&body)
        .send();
    let asking = tokio::spawn(request);
    while server.engine.stats().running == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    asking.abort();
    assert_eq!(server.idle().await.blocks_used, 0);
}
