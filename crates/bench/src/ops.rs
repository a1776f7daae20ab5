//! The operations models are made of, against the bandwidth of memory.

mod cases;
mod linear;
mod sequence;
mod timing;

use crate::Results;
use crate::progress::{Progress, Unit};
use cases::Case;
use paceline::{Device, OnDevice};
use paceline_device::{Backend, DeviceError};
use serde::Serialize;
use std::io::{self, Write};
use timing::OpTiming;

/// More than the caches of common processors hold.
const BANDWIDTH_BYTES: usize = 512 << 20;
const QUICK_BANDWIDTH_BYTES: usize = 128 << 20;

/// What came of it.
#[derive(Serialize)]
pub struct Measurements {
    device: String,
    description: String,
    kernels: String,
    memory_bandwidth_gb_s: f64,
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

/// Measures the bandwidth of a device's memory, then every operation; `quick`: fewer types and sizes.
pub fn run(device: Device, quick: bool, progress: &dyn Progress) -> Result<Measurements, DeviceError> {
    device.run(Ops { quick, progress })
}

struct Ops<'a> {
    quick: bool,
    progress: &'a dyn Progress,
}

impl OnDevice for Ops<'_> {
    type Output = Result<Measurements, DeviceError>;

    fn run<B: Backend>(self, backend: B) -> Self::Output {
        let cases = cases::all(self.quick);
        let bar = self.progress.bar(cases.len() as u64 + 1, Unit::Tasks);
        bar.name("memory bandwidth".to_owned());
        let bytes = if self.quick {
            QUICK_BANDWIDTH_BYTES
        } else {
            BANDWIDTH_BYTES
        };
        let bandwidth = linear::bandwidth(&backend, bytes)? / 1e9;
        bar.advance(1);
        let mut operations = Vec::with_capacity(cases.len());
        for case in &cases {
            bar.name(case.to_string());
            let timing = match *case {
                Case::Linear(product) => product.measure(&backend),
                Case::Sequence(operation) => operation.measure(&backend),
            };
            operations.push(Row::new(&timing?, bandwidth));
            bar.advance(1);
        }
        let info = backend.info();
        Ok(Measurements {
            device: info.name,
            description: info.description,
            kernels: info.kernels,
            memory_bandwidth_gb_s: bandwidth,
            operations,
        })
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
        let operations = &self.operations;
        writeln!(
            out,
            "{}: {}, memory moves {:.1} GB/s\n",
            self.device, self.description, self.memory_bandwidth_gb_s
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

#[cfg(test)]
mod tests {
    use super::linear::LinearCase;
    use super::sequence::SequenceOp;
    use paceline_device::Recorder;
    use paceline_types::DType;

    #[test]
    fn operations_are_timed_on_any_device_by_the_work_of_one_call() {
        let device = Recorder::silent();
        let product = LinearCase {
            dtype: DType::Q8_0,
            outputs: 32,
            inputs: 64,
            rows: 64,
        };
        let timing = product.measure(&device).expect("nothing is allocated");
        assert_eq!(timing.name, "linear Q8_0");
        assert_eq!(timing.size, "64 x [32, 64]");
        assert!(timing.seconds > 0.0);
        assert!((timing.flops - 2.0 * 64.0 * 64.0 * 32.0).abs() < 0.5);
        assert!((timing.bytes - (32.0 * 68.0 + 4.0 * 64.0 * 96.0)).abs() < 0.5);
        for operation in SequenceOp::all(true) {
            let timing = operation.measure(&device).expect("nothing is allocated");
            assert_eq!(timing.name, operation.name());
            assert!(timing.seconds > 0.0 && timing.bytes > 0.0, "{timing:?}");
        }
    }
}
