//! A run for people.

use super::figures::{Figures, Summary};
use super::record::TokenSource;
use super::report::{Earlier, Report};
use crate::format::{Facts, Table, grouped, preview};
use std::io::{self, Write};

/// Writes a run, and an earlier one beside it.
pub(super) fn write(mut out: &mut dyn Write, report: &Report, other: Option<&Earlier>) -> io::Result<()> {
    facts(report).write(&mut out)?;
    writeln!(out)?;
    let rows = latencies(&report.figures).map(|(name, summary)| {
        let [mean, p50, p90, p95, p99, max] = summary.columns().map(|(_, value)| format!("{value:.2}"));
        [name.to_owned(), mean, p50, p90, p95, p99, max]
    });
    Table::new(["ms", "mean", "p50", "p90", "p95", "p99", "max"], rows).write(&mut out)?;
    if let Some(other) = other {
        let (path, server) = (other.path().display(), other.report.server.line());
        writeln!(out, "\nagainst {path}: {server}")?;
        comparison(&report.figures, &other.report.figures).write(&mut out)?;
    }
    out.flush()
}

fn latencies(figures: &Figures) -> [(&'static str, Summary); 5] {
    [
        ("TTFT", figures.ttft_ms),
        ("TPOT", figures.tpot_ms),
        ("ITL", figures.itl_ms),
        ("chunk gap", figures.chunk_gap_ms),
        ("E2E", figures.e2e_ms),
    ]
}

fn facts(report: &Report) -> Facts {
    let figures = &report.figures;
    let mut facts = Facts::default();
    facts.add("server", report.server.line());
    facts.add("load", &report.load);
    let early = if report.interrupted { ", ended early" } else { "" };
    let cancelled = match figures.cancelled {
        0 => String::new(),
        count => format!(", {count} cut off"),
    };
    facts.add(
        "requests",
        format!(
            "{} completed, {} failed{cancelled} in {:.2} s{early}; {:.2} requests/s, {:.1} at a time, {} at most",
            figures.completed,
            figures.failed,
            figures.elapsed_s,
            figures.requests_s,
            figures.concurrency_mean,
            figures.concurrency_max
        ),
    );
    let cached = figures
        .cached_tokens
        .map(|tokens| format!(" ({} from the cache)", grouped(tokens)));
    facts.add(
        "tokens",
        format!(
            "{} in prompts{}, {} generated ({}), {:.2} per chunk",
            grouped(figures.prompt_tokens),
            cached.unwrap_or_default(),
            grouped(figures.output_tokens),
            counted(figures.tokens_from),
            figures.tokens_per_chunk
        ),
    );
    facts.add(
        "throughput",
        format!(
            "{:.1} generated tok/s, {:.1} tok/s with prompts, {:.1} tok/s per stream",
            figures.output_tok_s, figures.total_tok_s, figures.stream_tok_s
        ),
    );
    add_observations(&mut facts, figures);
    facts
}

/// What not every run has.
fn add_observations(facts: &mut Facts, figures: &Figures) {
    if let Some(drafts) = &figures.speculation {
        facts.add(
            "speculation",
            format!(
                "{} drafted, {} accepted, {:.2} tokens per step",
                grouped(drafts.drafted),
                grouped(drafts.accepted),
                drafts.mean_acceptance_length
            ),
        );
    }
    if let Some(stall) = &figures.worst_stall {
        let text = format!(
            "{:.2} ms in request {}, at {:.2} s",
            stall.ms, stall.request, stall.at_s
        );
        facts.add("worst stall", text);
    }
    if let Some(goodput) = &figures.goodput {
        facts.add(
            "goodput",
            format!(
                "{:.2} requests/s, {:.1} % of the requests keep {}",
                goodput.requests_s,
                goodput.share * 100.0,
                goodput.slo
            ),
        );
    }
    let errors = figures.errors.iter();
    facts.add_all(
        "errors",
        errors.map(|(kind, failures)| {
            format!(
                "{} × {kind}, the first: {}",
                failures.count,
                preview(&failures.first, 100)
            )
        }),
    );
}

/// How tokens were counted.
fn counted(source: TokenSource) -> &'static str {
    match source {
        TokenSource::Usage => "counted by the server",
        TokenSource::Ids => "counted by their ids",
        TokenSource::Chunks => "pieces of text: the server does not count",
    }
}

/// What is compared: name, this run, the other.
pub(super) fn compared(this: &Figures, other: &Figures) -> Vec<(String, f64, f64)> {
    let mut rows = vec![
        ("requests/s".to_owned(), this.requests_s, other.requests_s),
        (
            "generated tok/s".to_owned(),
            this.output_tok_s,
            other.output_tok_s,
        ),
        (
            "tok/s per stream".to_owned(),
            this.stream_tok_s,
            other.stream_tok_s,
        ),
    ];
    for ((name, one), (_, two)) in latencies(this).into_iter().zip(latencies(other)) {
        for ((column, one), (_, two)) in one.columns().into_iter().zip(two.columns()) {
            if matches!(column, "p50" | "p99") {
                rows.push((format!("{name} {column} ms"), one, two));
            }
        }
    }
    let stall = |figures: &Figures| figures.worst_stall.map_or(0.0, |stall| stall.ms);
    rows.push(("worst stall ms".to_owned(), stall(this), stall(other)));
    rows
}

fn comparison(this: &Figures, other: &Figures) -> Table {
    let row = |(name, one, two)| {
        let ratio = if two > 0.0 {
            format!("{:.2} ×", one / two)
        } else {
            "-".to_owned()
        };
        [name, format!("{one:.2}"), format!("{two:.2}"), ratio]
    };
    Table::new(
        ["", "this", "other", "ratio"],
        compared(this, other).into_iter().map(row),
    )
}
