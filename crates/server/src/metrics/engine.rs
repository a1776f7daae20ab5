//! The engine's own numbers, read at the time of the scrape.

use super::write::Writer;
use paceline::{Handle, Stats};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt::{self, Error};
use std::time::Instant;

/// Reads the numbers of an engine.
pub(super) struct EngineCollector {
    engine: Handle,
    started: Instant,
}

impl fmt::Debug for EngineCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineCollector")
    }
}

impl Collector for EngineCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let stats = self.engine.stats();
        let mut writer = Writer(encoder);
        self.write_server(&mut writer)?;
        self.write_cache(&mut writer, &stats)?;
        write_snapshots(&mut writer, &stats)?;
        write_requests(&mut writer, &stats)?;
        write_pipeline(&mut writer, &stats)?;
        self.write_vllm_speculation(&mut writer, &stats)?;
        write_speculation(&mut writer, &stats)
    }
}

impl EngineCollector {
    pub(super) fn new(engine: Handle) -> Self {
        Self {
            engine,
            started: Instant::now(),
        }
    }

    fn write_server(&self, writer: &mut Writer<'_>) -> Result<(), Error> {
        let version = ("version", env!("CARGO_PKG_VERSION").to_owned());
        writer.info(("paceline:build_info", "The version"), &[version])?;
        let uptime = self.started.elapsed().as_secs_f64();
        writer.gauge(("paceline:uptime_seconds", "Time since the start"), uptime)?;
        let up = if self.engine.fault().is_none() { 1.0 } else { 0.0 };
        writer.gauge(("paceline:engine_up", "1, or 0 once the engine has failed"), up)
    }

    fn write_cache(&self, writer: &mut Writer<'_>, stats: &Stats) -> Result<(), Error> {
        let (memory, limits) = (self.engine.memory(), self.engine.limits());
        let caching = if limits.prefix_caching { "True" } else { "False" };
        writer.info(
            (
                "vllm:cache_config_info",
                "How the cache is set up; num_gpu_blocks are blocks on the device",
            ),
            &[
                ("block_size", memory.block_size.to_string()),
                ("num_gpu_blocks", memory.blocks.to_string()),
                ("enable_prefix_caching", caching.to_owned()),
            ],
        )?;
        let usage = stats.blocks_used as f64 / stats.blocks.max(1) as f64;
        writer.gauge(
            (
                "vllm:kv_cache_usage_perc",
                "Share of the blocks in use by requests, 0 to 1",
            ),
            usage,
        )?;
        let free = stats.blocks - stats.blocks_used;
        writer.gauge(("paceline:blocks", "Blocks"), stats.blocks as f64)?;
        writer.gauge(
            ("paceline:blocks_free", "Blocks that no request uses"),
            free as f64,
        )?;
        writer.gauge(
            ("paceline:slots", "Requests that can run at a time"),
            memory.slots as f64,
        )?;
        let c = &stats.counters;
        writer.counter(
            (
                "vllm:prefix_cache_queries",
                "Tokens looked up in the prefix cache",
            ),
            c.prefix_queries,
        )?;
        writer.counter(
            ("vllm:prefix_cache_hits", "Of these, tokens that were found"),
            c.prefix_hits,
        )
    }

    /// What vLLM counts of drafts, by its names.
    fn write_vllm_speculation(&self, writer: &mut Writer<'_>, stats: &Stats) -> Result<(), Error> {
        let c = &stats.counters;
        writer.counter(
            ("vllm:spec_decode_num_drafts", "Rows that verified drafts"),
            c.draft_rows,
        )?;
        writer.counter(
            ("vllm:spec_decode_num_draft_tokens", "Drafts verified"),
            c.drafts_verified,
        )?;
        writer.counter(
            ("vllm:spec_decode_num_accepted_tokens", "Drafts accepted"),
            c.drafts_accepted,
        )?;
        let places = self.engine.speculation().draft_tokens;
        let places = places.min(c.accepted_by_position.len());
        writer.by_position(
            (
                "vllm:spec_decode_num_accepted_tokens_per_pos",
                "Drafts accepted, by their place in the verify window",
            ),
            &c.accepted_by_position[..places],
        )?;
        writer.by_position(
            (
                "paceline:draft_tokens_per_pos",
                "Drafts verified, by their place in the verify window",
            ),
            &c.drafted_by_position[..places],
        )
    }
}

/// Saved states of recurrent layers.
fn write_snapshots(writer: &mut Writer<'_>, stats: &Stats) -> Result<(), Error> {
    let c = &stats.counters;
    let places = stats.snapshots as f64;
    writer.gauge(
        ("paceline:snapshots", "Places for saved recurrent states"),
        places,
    )?;
    let used = stats.snapshots_used as f64;
    writer.gauge(
        (
            "paceline:snapshots_in_use",
            "Places that requests or the prefix cache hold",
        ),
        used,
    )?;
    writer.counter(
        ("paceline:snapshots_written", "Recurrent states that were saved"),
        c.snapshots_written,
    )?;
    writer.counter(
        (
            "paceline:snapshots_published",
            "Saved states that became part of the prefix cache",
        ),
        c.snapshots_published,
    )?;
    writer.counter(
        (
            "paceline:snapshots_used",
            "Requests that started from a saved state",
        ),
        c.snapshots_used,
    )
}

fn write_requests(writer: &mut Writer<'_>, stats: &Stats) -> Result<(), Error> {
    let (running, waiting) = (stats.running as f64, stats.waiting as f64);
    writer.gauge(("vllm:num_requests_running", "Requests in a slot"), running)?;
    writer.gauge(
        ("vllm:num_requests_waiting", "Requests that wait for a slot"),
        waiting,
    )?;
    let age = stats.queue_age().as_secs_f64();
    writer.gauge(
        (
            "paceline:queue_age_seconds",
            "How long the oldest request that waits for a slot has waited",
        ),
        age,
    )?;
    let preemptions = stats.counters.preemptions;
    writer.counter(
        (
            "vllm:num_preemptions",
            "Requests that lost their slot and were queued again",
        ),
        preemptions,
    )?;
    let sizes = &stats.sizes;
    writer.histogram(
        (
            "vllm:request_queue_time_seconds",
            "Time from a request's arrival to its first slot",
        ),
        &sizes.queued_ns,
        1e-9,
    )?;
    writer.histogram(
        (
            "vllm:request_prefill_time_seconds",
            "Time from a request's first slot to its first token",
        ),
        &sizes.prefill_ns,
        1e-9,
    )?;
    writer.histogram(
        ("vllm:iteration_tokens_total", "Tokens run by a step"),
        &sizes.step_tokens,
        1.0,
    )?;
    writer.counter(
        (
            "paceline:engine_tokens",
            "Tokens that the engine handed out, final stop tokens included",
        ),
        stats.tokens,
    )?;
    writer.counter(
        (
            "paceline:engine_requests",
            "Requests that ended in the engine, for any reason",
        ),
        stats.finished,
    )
}

/// Whether the device is kept busy, and what the host does meanwhile.
fn write_pipeline(writer: &mut Writer<'_>, stats: &Stats) -> Result<(), Error> {
    let (p, c) = (&stats.pipeline, &stats.counters);
    writer.counter(("paceline:steps", "Steps"), p.steps)?;
    writer.seconds(
        ("paceline:device_busy_seconds", "Time that the device was at work"),
        p.device_ns,
    )?;
    writer.seconds(
        (
            "paceline:bubble_seconds",
            "Time that the device was idle although there was work",
        ),
        p.bubble_ns,
    )?;
    let waits = &p.waits;
    writer.counters(
        (
            "paceline:host_waits",
            "Times the host waited for the device, by place",
        ),
        "place",
        &[("collect", waits.collect), ("elsewhere", waits.elsewhere)],
    )?;
    writer.all_seconds(
        (
            "paceline:host_wait_seconds",
            "Time the host waited for the device, by place",
        ),
        "place",
        &[("collect", waits.collect_ns)],
    )?;
    let phases = [
        ("plan", p.plan_ns),
        ("submit", p.submit_ns),
        ("wait", waits.collect_ns),
        ("collect", p.collect_ns),
    ];
    let help = "Time of the host by what it did: plan a step, submit it, wait for it, take its output in";
    writer.all_seconds(("paceline:step_phase_seconds", help), "phase", &phases)?;
    writer.counter(
        (
            "paceline:wasted_tokens",
            "Tokens run for nothing: rejected drafts and tokens of wasted plan rows",
        ),
        c.wasted_tokens,
    )?;
    writer.counter(
        ("paceline:wasted_rows", "Rows that did nothing for any request"),
        c.wasted_rows,
    )
}

/// What drafts cost and bring, which only we measure.
fn write_speculation(writer: &mut Writer<'_>, stats: &Stats) -> Result<(), Error> {
    let c = &stats.counters;
    writer.seconds(
        (
            "paceline:draft_seconds",
            "Device time that went into making drafts",
        ),
        c.draft_ns,
    )?;
    writer.seconds(
        ("paceline:verify_seconds", "Device time that went into all else"),
        stats.verify_ns(),
    )?;
    writer.counter(
        (
            "paceline:draft_passes",
            "DraftForwards of the neural drafter that had something to do",
        ),
        c.draft_passes,
    )?;
    writer.counters(
        ("paceline:draft_tokens", "Draft tokens verified, by drafter"),
        "source",
        &[
            ("ngram", c.ngram.drafted),
            ("neural", c.neural.drafted),
            ("grammar", c.grammar.drafted),
        ],
    )?;
    writer.counters(
        ("paceline:accepted_tokens", "Draft tokens accepted, by drafter"),
        "source",
        &[
            ("ngram", c.ngram.accepted),
            ("neural", c.neural.accepted),
            ("grammar", c.grammar.accepted),
        ],
    )?;
    writer.gauge(
        (
            "paceline:speculation_gain_seconds",
            "Device time gained by drafts since the start, as estimated; a gauge, because it falls where they cost",
        ),
        c.gained_ns as f64 / 1e9,
    )
}
