//! `/tokenize`, `/detokenize` and `/tokenizer_info`.

use crate::support::TestServer;
use serde_json::json;

#[tokio::test]
async fn text_becomes_tokens_and_text_again() {
    let server = TestServer::start().await;
    let text = "Once upon a time, there was a dog. 🐕";
    let tokens = server
        .ok("/tokenize", &json!({ "prompt": text, "return_token_strs": true }))
        .await;
    let count = tokens["tokens"].as_array().unwrap().len();
    assert_eq!(
        (tokens["count"].as_u64(), tokens["max_model_len"].as_u64()),
        (Some(count as u64), Some(512))
    );
    assert_eq!(tokens["token_strs"].as_array().unwrap().len(), count);
    let back = server
        .ok("/detokenize", &json!({ "tokens": tokens["tokens"] }))
        .await;
    assert_eq!(back["prompt"], text);
}

#[tokio::test]
async fn a_conversation_has_the_tokens_that_chat_counts() {
    let server = TestServer::start().await;
    let messages = json!([{ "role": "user", "content": "Hello" }]);
    let tokens = server.ok("/tokenize", &json!({ "messages": messages })).await;
    let reply = server
        .ok(
            "/v1/chat/completions",
            &json!({ "messages": messages, "max_tokens": 1 }),
        )
        .await;
    assert_eq!(tokens["count"], reply["usage"]["prompt_tokens"]);
}

#[tokio::test]
async fn what_is_neither_is_refused() {
    let server = TestServer::start().await;
    for (path, body) in [
        ("/tokenize", json!({})),
        ("/tokenize", json!({ "prompt": 1 })),
        ("/tokenize", json!({ "prompt": "a", "messages": [] })),
        ("/tokenize", json!({ "prompt": "a", "tools": [[]] })),
        ("/detokenize", json!({})),
        ("/detokenize", json!({ "tokens": [1, 99999] })),
        ("/detokenize", json!({ "tokens": [-1] })),
        ("/detokenize", json!({ "tokens": vec![1; 513] })),
    ] {
        let (status, reply) = server.post(path, &body).await;
        assert_eq!(status, 400, "{body} gave {reply}");
    }
}

#[tokio::test]
async fn clients_that_tokenise_here_learn_what_ends_a_text() {
    let server = TestServer::start().await;
    let (status, info) = server.get("/tokenizer_info").await;
    assert_eq!(status, 200, "{info}");
    let known = json!([
        info["bos_token"],
        info["eos_token"],
        info["pad_token"],
        info["model_max_length"]
    ]);
    assert_eq!(known, json!([null, "<|im_end|>", "<|im_end|>", 512]));
    // Conversations that a client writes out with it are those that the server would.
    let template = info["chat_template"].as_str().unwrap();
    let messages = json!([{ "role": "user", "content": "Hello" }]);
    let own = server.ok("/tokenize", &json!({ "messages": messages })).await;
    let given = server
        .ok(
            "/tokenize",
            &json!({ "messages": messages, "chat_template": template }),
        )
        .await;
    assert_eq!(own["tokens"], given["tokens"]);
}
