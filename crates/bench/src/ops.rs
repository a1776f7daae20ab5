//! The operations models are made of, against the bandwidth of memory.

mod cases;
mod sequence;

use crate::Results;
use crate::progress::{Progress, Unit};
use cases::Case;
use paceline_device::DeviceError;
use paceline_device_cpu::bench::{OpTiming, measure_bandwidth};
use paceline_device_cpu::{Cpu, CpuOptions};
use serde::Serialize;
use std::io::{self, Write};

/// More than the caches of common processors hold.
const BANDWIDTH_BYTES: usize = 512 << 20;
const QUICK_BANDWIDTH_BYTES: usize = 128 << 20;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct OpsConfig {
    /// Threads to compute on; the cores this process may use if it is not given.
    pub threads: Option<usize>,
    /// Fewer types and sizes.
    pub quick: bool,
}

/// What came of it.
#[derive(Serialize)]
pub struct Measurements {
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

/// Measures the bandwidth of memory, then every operation.
pub fn run(config: OpsConfig, progress: &dyn Progress) -> Result<Measurements, DeviceError> {
    let mut options = CpuOptions::default();
    if let Some(threads) = config.threads {
        options.threads = threads;
    }
    let cases = cases::all(config.quick);
    let bar = progress.bar(cases.len() as u64 + 1, Unit::Tasks);
    bar.name("memory bandwidth".to_owned());
    let bytes = if config.quick {
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
    Ok(Measurements {
        threads: options.threads,
        kernels: options.instructions.name(),
        read_bandwidth_gb_s: bandwidth,
        operations,
    })
}

fn measure(case: &Case, cpu: &Cpu) -> Result<OpTiming, DeviceError> {
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
