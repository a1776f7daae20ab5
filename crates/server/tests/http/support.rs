//! A server on a port of its own, and a client.

use futures_util::future::join_all;
use paceline::{Engine, EngineConfig, Handle, SamplingDefaults, Stats};
use paceline_server::{ModelDetails, ServeError, ServedModel, Server, ServerConfig};
use paceline_testkit::storyteller;
use paceline_text::{ChatTemplate, ReasoningFormat, Tokenizer, TokenizerConfig, ToolFormat};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// How long anything may take before a test counts as stuck.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// Name of the model.
pub(crate) const MODEL: &str = "storyteller";

/// A running server.
pub(crate) struct TestServer {
    pub(crate) base: String,
    pub(crate) client: reqwest::Client,
    pub(crate) engine: Handle,
    drain: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), ServeError>>,
}

/// The built-in model as a server offers it.
pub(crate) fn served_model(max_model_len: usize) -> ServedModel {
    let checkpoint = storyteller();
    let config = checkpoint.tokenizer_config().unwrap().to_string();
    let config = TokenizerConfig::from_json_bytes(config.as_bytes()).unwrap();
    let tokenizer = Tokenizer::from_json_bytes(checkpoint.tokenizer_json().unwrap()).unwrap();
    ServedModel {
        names: vec![MODEL.to_owned(), "org/alias".to_owned()],
        source: "assets/storyteller".to_owned(),
        details: ModelDetails {
            format: "safetensors",
            architecture: "qwen3_5",
            parameters: 9_098_208,
            weights: "BF16".to_owned(),
        },
        template: Some(ChatTemplate::from_config(&config).unwrap()),
        tokenizer: Some(tokenizer.with_config(&config)),
        defaults: SamplingDefaults::default(),
        page_defaults: SamplingDefaults::default(),
        max_model_len,
        tool_format: Some(ToolFormat::Hermes),
        reasoning_format: Some(ReasoningFormat::Qwen3),
        created: 1,
    }
}

/// A body with more or other fields.
pub(crate) fn with(mut body: Value, more: Value) -> Value {
    let Value::Object(more) = more else {
        panic!("{more} has no fields");
    };
    body.as_object_mut().unwrap().extend(more);
    body
}

/// The data of the events of a stream, whose names must be the types in them.
pub(crate) fn named_events(text: &str) -> Vec<Value> {
    let event = |frame: &str| {
        let (name, data) = frame.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name, format!("event: {}", data["type"].as_str().unwrap()));
        data
    };
    text.split_terminator("\n\n").map(event).collect()
}

/// Eight clients ask for a stream of 400 tokens each and go after its first bytes: the rest must not be generated. That
/// the engine becomes idle would tell nothing, since it does so when it has generated everything.
pub(crate) async fn leave_streams(path: &str, body: &Value) {
    let server = TestServer::start().await;
    let mut streams = join_all((0..8).map(|_| server.send(path, body))).await;
    for stream in &mut streams {
        assert!(stream.chunk().await.unwrap().is_some());
    }
    drop(streams);
    let tokens = server.idle().await.tokens;
    assert!(tokens < 8 * 400, "{tokens} tokens for clients that have left");
}

/// Gives each field values of all kinds, which must be answered or refused, and never be our fault.
pub(crate) async fn try_odd_values(path: &str, body: &Value, fields: &[&str]) {
    let server = TestServer::start().await;
    let deep = (0..100).fold(json!({}), |inner, _| json!({ "x": [inner] }));
    let odd = [
        json!(null),
        json!(true),
        json!(-1),
        json!(1e300),
        json!(u64::MAX),
        json!(""),
        json!("odd"),
        json!([]),
        json!({}),
        json!([[]]),
        json!([{}]),
        json!([null]),
        json!({ "type": "odd" }),
        json!({ "type": 1 }),
        json!([{ "type": "function" }]),
        json!([{ "role": "user", "content": [{}] }]),
        deep,
    ];
    for field in fields {
        for value in &odd {
            let body = with(body.clone(), json!({ *field: value }));
            let (status, reply) = server.post(path, &body).await;
            let known = matches!(status, 200 | 400 | 404);
            assert!(known, "{field}: {value} gave {status} and {reply}");
            let error = reply.get("error").is_some_and(|error| !error.is_null());
            assert_eq!(status != 200, error, "{reply}");
        }
    }
    assert_eq!(server.idle().await.running, 0);
}

/// An engine small enough to have many of.
pub(crate) fn engine_config() -> EngineConfig {
    EngineConfig {
        threads: 1,
        max_num_seqs: 8,
        max_model_len: Some(512),
        num_blocks: Some(512),
        ..EngineConfig::default()
    }
}

impl TestServer {
    /// With default options.
    pub(crate) async fn start() -> Self {
        Self::with(ServerConfig::default(), engine_config()).await
    }

    /// With options of the server.
    pub(crate) async fn configured(change: impl FnOnce(&mut ServerConfig)) -> Self {
        let mut config = ServerConfig::default();
        change(&mut config);
        Self::with(config, engine_config()).await
    }

    /// With options of server and engine.
    pub(crate) async fn with(config: ServerConfig, engine: EngineConfig) -> Self {
        Self::launch(config, engine, |_| {}).await
    }

    /// With a model that is told to be different.
    pub(crate) async fn serving(change: impl FnOnce(&mut ServedModel)) -> Self {
        Self::launch(ServerConfig::default(), engine_config(), change).await
    }

    /// With options of server and engine, and a model that is told to be different.
    pub(crate) async fn launch(
        config: ServerConfig,
        engine: EngineConfig,
        change: impl FnOnce(&mut ServedModel),
    ) -> Self {
        let engine = Engine::start(&storyteller(), engine, &|_| {}).unwrap();
        Self::of(config, engine, change).await
    }

    /// With options of the server, an engine that runs, and a model that is told to be different.
    pub(crate) async fn of(
        config: ServerConfig,
        engine: Handle,
        change: impl FnOnce(&mut ServedModel),
    ) -> Self {
        let mut model = served_model(engine.max_model_len());
        change(&mut model);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::listening(listener, config, (engine, model))
    }

    /// On sockets with properties of their own.
    pub(crate) fn on(listener: TcpListener, config: ServerConfig, engine: EngineConfig) -> Self {
        let engine = Engine::start(&storyteller(), engine, &|_| {}).unwrap();
        let model = served_model(engine.max_model_len());
        Self::listening(listener, config, (engine, model))
    }

    fn listening(
        listener: TcpListener,
        config: ServerConfig,
        (engine, model): (Handle, ServedModel),
    ) -> Self {
        let scheme = if config.tls.is_some() { "https" } else { "http" };
        let base = format!("{scheme}://{}", listener.local_addr().unwrap());
        let (drain, drained) = oneshot::channel();
        let server = Server {
            config,
            model,
            engine: engine.clone(),
            features: Vec::new(),
        };
        let task = tokio::spawn(server.serve(listener, async {
            let _ = drained.await;
        }));
        Self {
            base,
            client: client().build().unwrap(),
            engine,
            drain: Some(drain),
            task,
        }
    }

    /// The address without the scheme.
    pub(crate) fn address(&self) -> &str {
        self.base.split_once("://").unwrap().1
    }

    /// Sends JSON and returns the reply as it is.
    pub(crate) async fn send(&self, path: &str, body: &Value) -> reqwest::Response {
        let request = self.client.post(format!("{}{path}", self.base)).json(body);
        tokio::time::timeout(PATIENCE, request.send())
            .await
            .unwrap()
            .unwrap()
    }

    /// Sends JSON and returns status and JSON.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        read(self.send(path, body).await).await
    }

    /// Sends JSON that must be accepted.
    pub(crate) async fn ok(&self, path: &str, body: &Value) -> Value {
        let (status, reply) = self.post(path, body).await;
        assert_eq!(status, 200, "{body} gave {reply}");
        reply
    }

    /// Sends any bytes.
    pub(crate) async fn raw(&self, path: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
        let request = self.client.post(format!("{}{path}", self.base)).body(body);
        let request = request.header("content-type", "application/json");
        read(
            tokio::time::timeout(PATIENCE, request.send())
                .await
                .unwrap()
                .unwrap(),
        )
        .await
    }

    /// Gets a path.
    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        let request = self.client.get(format!("{}{path}", self.base));
        read(
            tokio::time::timeout(PATIENCE, request.send())
                .await
                .unwrap()
                .unwrap(),
        )
        .await
    }

    /// Sends JSON and returns the data of the frames that come back.
    pub(crate) async fn stream(&self, path: &str, body: &Value) -> Vec<String> {
        let response = self.send(path, body).await;
        assert_eq!(response.status(), 200);
        let kind = response.headers()["content-type"].to_str().unwrap();
        assert!(kind.starts_with("text/event-stream"));
        let text = tokio::time::timeout(PATIENCE, response.text())
            .await
            .unwrap()
            .unwrap();
        frames(&text)
    }

    /// The same as JSON, without the final word.
    pub(crate) async fn chunks(&self, path: &str, body: &Value) -> Vec<Value> {
        let mut frames = self.stream(path, body).await;
        assert_eq!(frames.pop().as_deref(), Some("[DONE]"));
        let parse = |frame: &String| serde_json::from_str(frame).unwrap();
        frames.iter().map(parse).collect()
    }

    /// The engine's numbers once nothing runs any more.
    pub(crate) async fn idle(&self) -> Stats {
        let start = Instant::now();
        loop {
            let stats = self.engine.stats();
            if stats.running == 0 && stats.waiting == 0 {
                return stats;
            }
            assert!(start.elapsed() < PATIENCE, "still at work: {stats:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Tells the server to go down.
    pub(crate) fn drain(&mut self) {
        let _ = self.drain.take().unwrap().send(());
    }

    /// Waits for the server's end.
    pub(crate) async fn ended(self) -> Result<(), ServeError> {
        tokio::time::timeout(PATIENCE, self.task).await.unwrap().unwrap()
    }
}

/// A client of servers without encryption: it looks for no authorities, which machines need not have.
pub(crate) fn client() -> reqwest::ClientBuilder {
    // A second test in this process finds the first one's.
    let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().tls_certs_only([])
}

async fn read(response: reqwest::Response) -> (u16, Value) {
    let status = response.status().as_u16();
    let text = tokio::time::timeout(PATIENCE, response.text())
        .await
        .unwrap()
        .unwrap();
    let value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("no JSON: {text}"));
    (status, value)
}

/// The data of server-sent events.
pub(crate) fn frames(text: &str) -> Vec<String> {
    let data = |frame: &str| {
        let lines = frame.lines().filter_map(|line| line.strip_prefix("data: "));
        lines.collect::<Vec<_>>().join("\n")
    };
    let frames = text.split("\n\n").map(data);
    frames.filter(|data| !data.is_empty()).collect()
}
