//! `paceline bench ops`.

mod cases;
mod sequence;

use super::Results;
use crate::flags::BenchOpsFlags;
use crate::ui::{self, Ui};
use anyhow::Result;
use cases::Case;
use paceline_device_cpu::bench::{OpTiming, measure_bandwidth};
use paceline_device_cpu::{Cpu, CpuOptions};
use serde::Serialize;
use std::io::{self, Write};

/// More than the caches of common processors hold.
const BANDWIDTH_BYTES: usize = 512 << 20;
const QUICK_BANDWIDTH_BYTES: usize = 128 << 20;

/// Everything measured; `--json` prints it as it is.
#[derive(Serialize)]
struct Measurements {
    threads: usize,
    kernels: &'static str,
    read_bandwidth_gb_s: f64,
    operations: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    operation: String,
    size: String,
    microseconds: f64,
    gflop_s: f64,
    gb_s: f64,
    /// Of the time memory would need at least; above 1 where operands come from a cache.
    share_of_bandwidth: f64,
}

/// Runs the command.
pub(super) fn run(flags: &BenchOpsFlags, ui: Ui) -> Result<()> {
    let mut options = CpuOptions::default();
    if let Some(threads) = flags.threads {
        options.threads = threads;
    }
    let cases = cases::all(flags.quick);
    let bar = ui.bar(cases.len() as u64 + 1, ui::TASKS);
    bar.name("memory bandwidth".to_owned());
    let bytes = if flags.quick {
        QUICK_BANDWIDTH_BYTES
    } else {
        BANDWIDTH_BYTES
    };
    let bandwidth = measure_bandwidth(options.threads, bytes);
    bar.advance(1);
    let cpu = Cpu::new(options);
    let mut operations = Vec::with_capacity(cases.len());
    for case in &cases {
        bar.name(case.to_string());
        operations.push(Row::new(&measure(case, &cpu)?, bandwidth));
        bar.advance(1);
    }
    drop(bar);
    let measurements = Measurements {
        threads: options.threads,
        kernels: options.instructions.name(),
        read_bandwidth_gb_s: bandwidth,
        operations,
    };
    super::print(&measurements, flags.json)
}

fn measure(case: &Case, cpu: &Cpu) -> Result<OpTiming> {
    match *case {
        Case::Linear(linear) => Ok(linear.measure(cpu.threads())),
        Case::Sequence(operation) => operation.measure(cpu),
    }
}

impl Row {
    fn new(timing: &OpTiming, bandwidth: f64) -> Self {
        let gb_s = timing.bytes / timing.seconds / 1e9;
        Self {
            operation: timing.name.clone(),
            size: timing.size.clone(),
            microseconds: timing.seconds * 1e6,
            gflop_s: timing.flops / timing.seconds / 1e9,
            gb_s,
            share_of_bandwidth: gb_s / bandwidth,
        }
    }
}

impl Results for Measurements {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self {
            threads,
            kernels,
            read_bandwidth_gb_s,
            operations,
        } = self;
        let plural = if *threads == 1 { "" } else { "s" };
        writeln!(
            out,
            "{threads} thread{plural}, {kernels}, memory is read at {read_bandwidth_gb_s:.1} GB/s\n"
        )?;
        let width = |text: fn(&Row) -> &str| operations.iter().map(|row| text(row).chars().count()).max();
        let names = width(|row| &row.operation).unwrap_or(0);
        let sizes = width(|row| &row.size).unwrap_or(0);
        writeln!(
            out,
            "{:names$}  {:sizes$}  {:>10}  {:>8}  {:>7}  {:>6}",
            "operation", "rows x size", "µs", "GFLOP/s", "GB/s", "memory"
        )?;
        for row in operations {
            writeln!(
                out,
                "{:names$}  {:sizes$}  {:>10.1}  {:>8.1}  {:>7.1}  {:>5.0}%",
                row.operation,
                row.size,
                row.microseconds,
                row.gflop_s,
                row.gb_s,
                row.share_of_bandwidth * 100.0
            )?;
        }
        Ok(())
    }
}
