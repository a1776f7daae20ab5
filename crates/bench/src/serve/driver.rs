//! Sends requests when they are due and takes down what comes.

use super::RequestConfig;
use super::arrivals::Arrivals;
use super::prompts::{Prompts, Template};
use super::record::{Outcome, Piece, Record};
use super::synthetic::{Scale, Stream, Synthetic};
use crate::error::BenchError;
use crate::progress::{Bar, Progress, Unit};
use paceline_client::{Client, ClientError, Endpoint, Reply};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};
use tokio_util::sync::CancellationToken;

/// How often the bar is moved.
const TICK: Duration = Duration::from_millis(200);
/// Words of the two prompts that show how many tokens words have.
const SCALE_WORDS: [usize; 2] = [16, 80];
/// Words of a prompt before the measurement.
const WARM_UP_WORDS: usize = 32;

/// When requests are sent.
pub(super) struct Load {
    /// Of an open loop.
    pub(super) arrivals: Option<Arrivals>,
    /// Most requests under way.
    pub(super) most: usize,
    /// Number of the first request.
    pub(super) first: usize,
    /// Requests in all.
    pub(super) limit: Option<usize>,
    /// Nothing is sent after this time.
    pub(super) duration: Option<Duration>,
    /// Of a request.
    pub(super) timeout: Duration,
}

/// What came of a run.
pub(super) struct Run {
    /// In the order they were sent.
    pub(super) records: Vec<Record>,
    /// The user ended it.
    pub(super) interrupted: bool,
}

/// A run under way.
pub(super) struct Driver<'a> {
    client: &'a Client,
    template: &'a Template,
    prompts: &'a Prompts<'a>,
    load: Load,
    under_way: JoinSet<Record>,
    stop: CancellationToken,
    records: Vec<Record>,
    sent: usize,
    failed: usize,
}

impl<'a> Driver<'a> {
    pub(super) fn new(
        client: &'a Client,
        (template, prompts): (&'a Template, &'a Prompts<'a>),
        load: Load,
        stop: CancellationToken,
    ) -> Self {
        Self {
            client,
            template,
            prompts,
            load,
            under_way: JoinSet::new(),
            stop,
            records: Vec::new(),
            sent: 0,
            failed: 0,
        }
    }

    /// Runs until all is sent and answered, or the user has had enough.
    pub(super) async fn run(mut self, progress: &dyn Progress) -> Result<Run, BenchError> {
        let start = Instant::now();
        let shown = Shown::new(&self.load, start, progress);
        let stop = self.stop.clone();
        let mut due = start;
        let mut tick = tokio::time::interval(TICK);
        loop {
            let more = self.has_more(start);
            if !more && self.under_way.is_empty() {
                break;
            }
            let room = more && self.under_way.len() < self.load.most;
            tokio::select! {
                biased;
                // Everything under way sees it too; this only looks again at what is left.
                () = stop.cancelled(), if more => {}
                // Requests that are late are all sent before anything is read.
                () = sleep_until(due.into()), if room => {
                    // Time may have run out while nothing was due.
                    if !self.has_more(start) {
                        continue;
                    }
                    let late = if self.load.arrivals.is_some() { due } else { Instant::now() };
                    self.send(start, late);
                    if let Some(arrivals) = &mut self.load.arrivals {
                        due += arrivals.gap();
                    }
                }
                Some(ended) = self.under_way.join_next() => {
                    let record = ended?;
                    self.failed += usize::from(matches!(record.outcome, Outcome::Failed { .. }));
                    self.records.push(record);
                }
                _ = tick.tick() => shown.show(self.records.len(), self.failed),
            }
        }
        let mut records = self.records;
        records.sort_by_key(|record| record.index);
        Ok(Run {
            records,
            interrupted: self.stop.is_cancelled(),
        })
    }

    fn has_more(&self, start: Instant) -> bool {
        let within = |limit: Option<Duration>| limit.is_none_or(|limit| start.elapsed() < limit);
        let left = self.load.limit.is_none_or(|limit| self.sent < limit);
        left && within(self.load.duration) && !self.stop.is_cancelled()
    }

    fn send(&mut self, start: Instant, due: Instant) {
        let request = Request {
            client: self.client.clone(),
            endpoint: self.template.endpoint,
            body: self.prompts.body(self.load.first + self.sent, self.template),
            timeout: self.load.timeout,
            origin: start,
            keeps_text: self.template.repeatable,
        };
        let record = Record::new(self.load.first + self.sent, (due - start).as_secs_f64());
        self.under_way.spawn(request.run(record, self.stop.clone()));
        self.sent += 1;
    }
}

/// A request that is due.
struct Request {
    client: Client,
    endpoint: Endpoint,
    body: Value,
    timeout: Duration,
    /// What times are counted from.
    origin: Instant,
    /// Whether the answer is going to be compared.
    keeps_text: bool,
}

impl Request {
    async fn run(self, mut record: Record, stop: CancellationToken) -> Record {
        let limit = self.timeout;
        let asked = timeout(limit, self.ask(&mut record));
        let outcome = tokio::select! {
            biased;
            () = stop.cancelled() => None,
            asked = asked => Some(asked),
        };
        record.outcome = match outcome {
            None => Outcome::Cancelled,
            Some(Ok(Ok(()))) => Outcome::Completed,
            Some(Ok(Err(error))) => Outcome::Failed {
                kind: error.kind(),
                message: error.to_string(),
            },
            Some(Err(_)) => Outcome::Failed {
                kind: "timeout".to_owned(),
                message: format!("no end after {} s", limit.as_secs_f64()),
            },
        };
        record.end = self.origin.elapsed().as_secs_f64();
        record
    }

    async fn ask(&self, record: &mut Record) -> Result<(), ClientError> {
        let mut reply = self.client.stream(self.endpoint, &self.body).await?;
        while let Some(chunk) = reply.next().await? {
            if chunk.has_output() {
                record.pieces.push(Piece {
                    at: chunk.at.saturating_duration_since(self.origin).as_secs_f64(),
                    tokens: chunk.tokens,
                });
            }
            if self.keeps_text {
                record.text.push_str(&chunk.reasoning);
                record.text.push_str(&chunk.text);
            }
            record.usage = chunk.usage.or(record.usage);
            record.finish_reason = chunk.finish_reason.or(record.finish_reason.take());
        }
        Ok(())
    }
}

/// An answer, read to its end.
pub(super) async fn finish_of(
    client: &Client,
    endpoint: Endpoint,
    body: &Value,
    limit: Duration,
) -> Result<Record, BenchError> {
    let request = Request {
        client: client.clone(),
        endpoint,
        body: body.clone(),
        timeout: limit,
        origin: Instant::now(),
        keeps_text: true,
    };
    let record = request.run(Record::new(0, 0.0), CancellationToken::new()).await;
    match record.outcome {
        Outcome::Failed { kind, message } => Err(BenchError::NoAnswer { kind, message }),
        _ => Ok(record),
    }
}

/// How many tokens the server's words have; none if it does not count them.
pub(super) async fn scale(
    client: &Client,
    template: &Template,
    words: &Synthetic,
    limit: Duration,
) -> Result<Option<Scale>, BenchError> {
    let mut tokens = Vec::new();
    for (index, count) in SCALE_WORDS.into_iter().enumerate() {
        let body = template.text(&words.text(Stream::Scale(index), count), Some(1));
        match prompt_tokens(client, template.endpoint, &body, limit).await? {
            Some(number) => tokens.push((count, number)),
            None => return Ok(None),
        }
    }
    Ok(Scale::between(tokens[0], tokens[1]))
}

/// Sends requests that are not measured, all at once. What is wrong with a request shows here.
pub(super) async fn warm_up(
    client: &Client,
    template: &Template,
    config: &RequestConfig,
) -> Result<(), BenchError> {
    let (words, limit) = (Synthetic::new(config.seed), config.timeout);
    let mut requests = JoinSet::new();
    for index in 0..config.warmup {
        let body = template.text(&words.text(Stream::WarmUp(index), WARM_UP_WORDS), None);
        let (client, endpoint) = (client.clone(), template.endpoint);
        requests.spawn(async move { prompt_tokens(&client, endpoint, &body, limit).await.map(|_| ()) });
    }
    while let Some(ended) = requests.join_next().await {
        ended??;
    }
    Ok(())
}

/// Reads an answer to its end and returns what the server counted for its prompt.
async fn prompt_tokens(
    client: &Client,
    endpoint: Endpoint,
    body: &Value,
    limit: Duration,
) -> Result<Option<u64>, BenchError> {
    let ask = async {
        let mut reply: Reply = client.stream(endpoint, body).await?;
        let mut tokens = None;
        while let Some(chunk) = reply.next().await? {
            tokens = chunk.usage.map(|usage| usage.prompt_tokens).or(tokens);
        }
        Ok::<_, ClientError>(tokens)
    };
    let answer = match timeout(limit, ask).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no end after {} s", limit.as_secs_f64())),
    };
    answer.map_err(|problem| BenchError::FirstRequest {
        request: short(body),
        problem,
    })
}

/// A request without what it asks, for messages.
fn short(body: &Value) -> String {
    let mut body = body.clone();
    for name in ["messages", "prompt"] {
        if let Some(field) = body.get_mut(name) {
            *field = json!("...");
        }
    }
    body.to_string()
}

/// A bar of requests, or of seconds where requests have no number.
struct Shown {
    bar: Box<dyn Bar>,
    start: Instant,
    seconds: bool,
    reached: std::cell::Cell<u64>,
}

impl Shown {
    fn new(load: &Load, start: Instant, progress: &dyn Progress) -> Self {
        let (total, unit) = match (load.limit, load.duration) {
            (Some(limit), _) => (limit as u64, Unit::Tasks),
            (None, duration) => (duration.unwrap_or_default().as_secs(), Unit::Seconds),
        };
        Self {
            bar: progress.bar(total, unit),
            start,
            seconds: load.limit.is_none(),
            reached: std::cell::Cell::new(0),
        }
    }

    fn show(&self, done: usize, failed: usize) {
        let reached = if self.seconds {
            self.start.elapsed().as_secs()
        } else {
            done as u64
        };
        let failed = if failed == 0 {
            String::new()
        } else {
            format!(", {failed} failed")
        };
        self.bar.name(if self.seconds {
            format!("{done} requests{failed}")
        } else {
            format!("requests{failed}")
        });
        self.bar.advance(reached - self.reached.replace(reached));
    }
}
