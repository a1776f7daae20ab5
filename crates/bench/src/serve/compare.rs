//! Two servers, asked the same in turns: ratios that do not depend on what else the machine does, as that falls on both.

use super::driver::{self, Driver, Load};
use super::facts::ServerFacts;
use super::prompts::Template;
use super::ratios::{PairedFigure, Turn};
use super::record::{Outcome, Record};
use super::{RequestConfig, report};
use crate::Results;
use crate::error::BenchError;
use crate::format::{Facts, Table};
use crate::progress::{Progress, Silent, Unit};
use paceline_client::Client;
use serde::Serialize;
use std::io::{self, Write};
use tokio_util::sync::CancellationToken;

/// What to ask of both.
#[derive(Clone, Debug)]
pub struct CompareConfig {
    /// As typed, for the report; keys have no place in it.
    pub command: String,
    /// The models to ask for, ours and the peer's; the first that a server lists where none is given.
    pub models: [Option<String>; 2],
    /// What is asked.
    pub requests: RequestConfig,
    /// Requests that are sent together.
    pub crowds: Vec<usize>,
    /// Turns of each server with each crowd.
    pub turns: usize,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub struct Comparison {
    command: String,
    requests: String,
    seed: u64,
    ours: ServerFacts,
    peer: ServerFacts,
    interrupted: bool,
    crowds: Vec<Crowd>,
}

/// What came of crowds of one size.
#[derive(Debug, Serialize)]
struct Crowd {
    size: usize,
    figures: Vec<PairedFigure>,
    /// Turns that both servers completed: ours and the peer's.
    turns: Vec<(Turn, Turn)>,
    /// Turns in which a request failed, which count for nothing else.
    failed: [usize; 2],
    /// What the first failure says.
    failure: Option<String>,
}

/// A server that is asked.
struct Side<'a> {
    client: &'a Client,
    facts: ServerFacts,
    template: Template,
}

impl<'a> Side<'a> {
    async fn ask(
        client: &'a Client,
        model: Option<&str>,
        requests: &RequestConfig,
    ) -> Result<Self, BenchError> {
        let facts = ServerFacts::ask(client, model).await;
        let facts = facts.map_err(|error| BenchError::input(&client.root(), &error))?;
        let template = Template::new(requests, &facts.model, false);
        Ok(Self {
            client,
            facts,
            template,
        })
    }
}

/// Compares our server and a peer. What `stop` ends early has what came until then.
pub async fn run(
    config: &CompareConfig,
    [ours, peer]: [&Client; 2],
    stop: CancellationToken,
    progress: &dyn Progress,
) -> Result<Comparison, BenchError> {
    let requests = &config.requests;
    let [our_model, peer_model] = config.models.each_ref().map(Option::as_deref);
    let sides = [
        Side::ask(ours, our_model, requests).await?,
        Side::ask(peer, peer_model, requests).await?,
    ];
    let prompts = super::prompts(requests, (ours, &sides[0].template), progress).await?;
    for side in &sides {
        driver::warm_up(side.client, &side.template, requests).await?;
    }
    let bar = progress.bar((config.crowds.len() * config.turns) as u64, Unit::Tasks);
    let (mut crowds, mut first) = (Vec::new(), 0);
    for size in &config.crowds {
        let mut crowd = Tally::default();
        for turn in 0..config.turns {
            if stop.is_cancelled() {
                break;
            }
            bar.name(format!("{size} at a time"));
            let load = |records| Load {
                arrivals: None,
                most: *size,
                first: records,
                limit: Some(*size),
                duration: None,
                timeout: requests.timeout,
            };
            let mut records = [Vec::new(), Vec::new()];
            // Neither is always the second, who finds caches of the machine as the other left them.
            for side in [turn % 2, 1 - turn % 2] {
                let asked = (&sides[side].template, &prompts);
                let driver = Driver::new(sides[side].client, asked, load(first), stop.clone());
                records[side] = driver.run(&Silent).await?.records;
            }
            first += size;
            if !stop.is_cancelled() {
                crowd.add(&records);
            }
            bar.advance(1);
        }
        crowds.push(crowd.finish(*size, requests.seed));
    }
    let [ours, peer] = sides.map(|side| side.facts);
    Ok(Comparison {
        command: config.command.clone(),
        requests: report::describe_requests(requests),
        seed: requests.seed,
        ours,
        peer,
        interrupted: stop.is_cancelled(),
        crowds,
    })
}

/// What came of crowds so far.
#[derive(Default)]
struct Tally {
    turns: Vec<(Turn, Turn)>,
    failed: [usize; 2],
    failure: Option<String>,
}

impl Tally {
    fn add(&mut self, records: &[Vec<Record>; 2]) {
        let turns = records.each_ref().map(|records| Turn::of(records));
        for (side, turn) in turns.iter().enumerate() {
            self.failed[side] += usize::from(turn.is_none());
        }
        if let [Some(ours), Some(peer)] = turns {
            self.turns.push((ours, peer));
            return;
        }
        let failure = records.iter().flatten().find_map(|record| match &record.outcome {
            Outcome::Failed { kind, message } => Some(format!("{kind}: {message}")),
            Outcome::Completed | Outcome::Cancelled => None,
        });
        let empty = || Some("an answer without any text".to_owned());
        self.failure = self.failure.take().or(failure).or_else(empty);
    }

    fn finish(self, size: usize, seed: u64) -> Crowd {
        Crowd {
            size,
            figures: PairedFigure::all(&self.turns, seed),
            turns: self.turns,
            failed: self.failed,
            failure: self.failure,
        }
    }
}

impl Comparison {
    /// Whether it was ended early.
    pub fn interrupted(&self) -> bool {
        self.interrupted
    }

    /// A comparison without a single turn that both completed is a failure, whatever was reported.
    pub fn check(&self) -> Result<(), BenchError> {
        let none = self.crowds.iter().find(|crowd| crowd.turns.is_empty());
        match none {
            Some(crowd) if !self.interrupted => Err(BenchError::NoAnswer {
                kind: format!("{} at a time", crowd.size),
                message: crowd.failure.clone().unwrap_or_default(),
            }),
            _ => Ok(()),
        }
    }
}

impl Results for Comparison {
    fn write(&self, mut out: &mut dyn Write) -> io::Result<()> {
        let mut facts = Facts::default();
        facts.add("ours", self.ours.line());
        facts.add("peer", self.peer.line());
        facts.add("requests", self.requests.as_str());
        facts.write(&mut out)?;
        for crowd in &self.crowds {
            let turns = crowd.turns.len();
            writeln!(out, "\n{} at a time, {turns} turns each", crowd.size)?;
            crowd.table().write(&mut out)?;
            if let (Some(failure), [ours, peer]) = (&crowd.failure, crowd.failed) {
                writeln!(
                    out,
                    "left out: {ours} turns of ours, {peer} of the peer's; {failure}"
                )?;
            }
        }
        if self.interrupted {
            writeln!(out, "\nended early")?;
        }
        out.flush()
    }
}

impl Crowd {
    fn table(&self) -> Table {
        let number = |value: f64| format!("{value:.1}");
        let rows = self.figures.iter().map(|figure| {
            let (ratio, spread) = figure.ratio.map_or_else(
                || ("-".to_owned(), "-".to_owned()),
                |[ratio, low, high]| (format!("{ratio:.2} ×"), format!("{low:.2}–{high:.2}")),
            );
            [
                figure.figure.to_owned(),
                number(figure.ours),
                number(figure.peer),
                ratio,
                spread,
                number(figure.ours_worst),
                number(figure.peer_worst),
            ]
        });
        Table::new(
            [
                "",
                "ours",
                "peer",
                "ours / peer",
                "95 %",
                "ours, worst",
                "peer, worst",
            ],
            rows,
        )
    }
}
