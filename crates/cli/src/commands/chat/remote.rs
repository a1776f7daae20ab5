//! A server with OpenAI's interface answers.

use super::answer::{Answer, AnswerFigures, Part, Question};
use super::settings;
use crate::interrupt::Interrupt;
use anyhow::{Context, Result, anyhow};
use paceline_client::{Chunk, Client, ClientError, Endpoint, Usage};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// How soon Ctrl-C is noticed when nothing comes.
const PATIENCE: Duration = Duration::from_millis(50);

/// A model behind a server.
pub(super) struct Remote {
    client: Client,
    runtime: Runtime,
    model: String,
    plain: bool,
}

impl Remote {
    /// Asks the server for its models.
    pub(super) fn open(client: Client, model: Option<&str>, plain: bool) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start what talks to the server")?;
        let listed = runtime.block_on(client.get("/v1/models"));
        let model = match (model, listed) {
            (Some(model), Ok(_) | Err(ClientError::Status { .. } | ClientError::Protocol { .. })) => {
                model.to_owned()
            }
            (None, Ok(list)) => {
                let first = list["data"][0]["id"].as_str();
                let first = first.with_context(|| format!("{} lists no models; name one", client.root()))?;
                first.to_owned()
            }
            (_, Err(error)) => return Err(explain(&error)),
        };
        Ok(Self {
            client,
            runtime,
            model,
            plain,
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.model
    }

    pub(super) fn continues(&self) -> bool {
        self.plain
    }

    pub(super) fn introduction(&self) -> Vec<String> {
        let mut lines = vec![format!("{} at {}", self.model, self.client.root())];
        if self.plain {
            lines.push("It continues your text.".to_owned());
        }
        lines
    }

    /// Answers; see [`Speaker`](super::Speaker).
    pub(super) fn answer(
        &self,
        question: &Question<'_>,
        interrupt: &Interrupt,
        show: &mut dyn FnMut(Part) -> Result<()>,
    ) -> Result<Answer> {
        let (endpoint, body) = self.body(question);
        let start = Instant::now();
        let mut taken = Taken::default();
        let reading = async {
            let mut reply = self
                .client
                .stream(endpoint, &body)
                .await
                .map_err(|error| explain(&error))?;
            while let Some(chunk) = reply.next().await? {
                for part in taken.take(chunk) {
                    show(part)?;
                }
            }
            anyhow::Ok(())
        };
        // Dropping the reply ends the request, so leaving the block is enough.
        let complete = self.runtime.block_on(async {
            tokio::select! {
                read = reading => read.map(|()| true),
                () = until(interrupt) => Ok(false),
            }
        })?;
        Ok(taken.answer(complete, start))
    }

    fn body(&self, question: &Question<'_>) -> (Endpoint, Value) {
        let mut body = settings::fields(question.settings);
        body.insert("model".to_owned(), json!(self.model));
        body.insert("stream".to_owned(), json!(true));
        body.insert("stream_options".to_owned(), json!({ "include_usage": true }));
        let conversation = question.conversation;
        let endpoint = if self.plain {
            body.insert("prompt".to_owned(), json!(conversation.to_text(0)));
            Endpoint::Completions
        } else {
            body.insert("messages".to_owned(), json!(conversation.to_json(0)));
            Endpoint::Chat
        };
        (endpoint, Value::Object(body))
    }
}

/// Ends when the user has had enough.
async fn until(interrupt: &Interrupt) {
    while !interrupt.requested() {
        tokio::time::sleep(PATIENCE).await;
    }
}

/// What has come of an answer.
#[derive(Default)]
struct Taken {
    text: String,
    pieces: u64,
    first: Option<Instant>,
    last: Option<Instant>,
    end: Option<String>,
    usage: Option<Usage>,
}

impl Taken {
    fn take(&mut self, chunk: Chunk) -> Vec<Part> {
        if chunk.has_output() {
            self.pieces += 1;
            self.first.get_or_insert(chunk.at);
            self.last = Some(chunk.at);
        }
        self.end = chunk.finish_reason.or(self.end.take());
        self.usage = chunk.usage.or(self.usage);
        self.text.push_str(&chunk.text);
        let parts = [Part::Reasoning(chunk.reasoning), Part::Text(chunk.text)];
        let full = |part: &Part| matches!(part, Part::Text(text) | Part::Reasoning(text) if !text.is_empty());
        parts.into_iter().filter(full).collect()
    }

    fn answer(self, complete: bool, start: Instant) -> Answer {
        let since = |at: Option<Instant>| at.map_or_else(|| start.elapsed(), |at| at - start);
        let usage = self.usage.unwrap_or_default();
        let drafts = usage.speculation.unwrap_or_default();
        let mean = drafts.mean_acceptance_length.unwrap_or(1.0);
        Answer {
            text: self.text,
            end: match self.end {
                Some(end) if complete => end,
                _ => "cancelled".to_owned(),
            },
            figures: AnswerFigures {
                prompt_tokens: usage.prompt_tokens,
                cached_tokens: usage.cached_tokens,
                tokens: self.usage.map_or(self.pieces, |usage| usage.completion_tokens),
                first: since(self.first),
                total: since(self.last),
                steps: drafts.steps,
                step_tokens: mean * drafts.steps as f64,
                drafted: drafts.drafted,
                accepted: drafts.accepted,
            },
            left_out: 0,
        }
    }
}

/// What to do about an error.
fn explain(error: &ClientError) -> anyhow::Error {
    match error {
        ClientError::Connect { .. } => {
            anyhow!("{error}; start a server there, for instance with `paceline serve`")
        }
        ClientError::Status {
            status: 401 | 403, ..
        } => {
            anyhow!("{error}; give the key with --api-key or PACELINE_API_KEY")
        }
        ClientError::Status { status: 400, .. } => {
            anyhow!("{error} (if the conversation is too long, /undo or /clear makes it shorter)")
        }
        _ => anyhow!(error.clone()),
    }
}
