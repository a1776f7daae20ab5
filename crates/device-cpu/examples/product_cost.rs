//! What products cost by type and number of rows.
//!
//! ```text
//! cargo build --release -p paceline-device-cpu --example product_cost
//! target/release/examples/product_cost TYPE,... ROWS,... OUTPUTS INPUTS WEIGHTS THREADS [INSTRUCTIONS]
//! ```
//!
//! Each round multiplies ROWS rows with WEIGHTS weights of OUTPUTS by INPUTS, one after the other, so often that it takes some
//! milliseconds; many weights do not fit into a cache. Prints the least time of some rounds: of one product, and as multiply-adds
//! per nanosecond and thread; and the time against that of the first number of rows. INSTRUCTIONS is the name of a family; the
//! machine's best one counts without it.

use paceline_device::{Backend, Epilogue, Pending, RowOrder, Rows, WeightData, WeightPart};
use paceline_device_cpu::{Cpu, CpuOptions, CpuWeight, Instructions};
use paceline_types::DType;
use std::time::Instant;

const ROUNDS: usize = 41;

/// Multiply-adds of a round at least: waiting for a device takes a fraction of a millisecond.
const LEAST: usize = 200_000_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |text: &str| -> usize { text.parse().expect("a number") };
    let [outputs, inputs, weights, threads] = [2, 3, 4, 5].map(|place: usize| number(&arguments[place]));
    let cpu = Cpu::new(CpuOptions {
        threads,
        instructions: arguments
            .get(6)
            .map_or_else(Instructions::detect, |name| family(name)),
    });
    for name in arguments[0].split(',') {
        let dtype = DType::ALL.into_iter().find(|dtype| dtype.name() == name);
        let dtype = dtype.expect("a type");
        let weights: Vec<CpuWeight> = (0..weights)
            .map(|_| weight(&cpu, dtype, outputs, inputs))
            .collect();
        let mut first = None;
        for rows in arguments[1].split(',').map(number) {
            let ns = least(&cpu, &weights, rows, (outputs, inputs));
            let products = (rows * outputs * inputs / threads) as f64;
            let bytes = dtype.bytes_for(outputs * inputs).expect("whole blocks") as f64;
            println!(
                "{name} {rows:>3} rows: {:8.1} µs, {:5.1} multiply-adds/ns and thread, {:5.1} GB/s, {:.2} ×",
                ns / 1e3,
                products / ns,
                bytes / ns,
                ns / *first.get_or_insert(ns)
            );
        }
    }
}

fn family(name: &str) -> Instructions {
    let found = Instructions::all()
        .into_iter()
        .find(|family| family.name() == name);
    found.expect("a family of instructions that this machine has")
}

/// A weight of no meaning: scales are finite whatever bytes they are made of, as no exponent is all ones.
fn weight(cpu: &Cpu, dtype: DType, outputs: usize, inputs: usize) -> CpuWeight {
    let bytes = dtype.bytes_for(outputs * inputs).expect("whole blocks");
    let mut random = 1_u64;
    let data: Vec<u8> = std::iter::repeat_with(|| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 56) as u8 & 0xbb
    })
    .take(bytes)
    .collect();
    let part = WeightPart {
        name: "weight",
        dtype,
        stored_rows: outputs,
        columns: inputs,
        data: WeightData::Stored(&data),
        order: RowOrder::Stored,
    };
    cpu.weight(&[part], None).expect("memory for the bench")
}

/// Nanoseconds of a product in the quickest round.
fn least(cpu: &Cpu, weights: &[CpuWeight], rows: usize, (outputs, inputs): (usize, usize)) -> f64 {
    let space = Rows::new(cpu, rows).expect("memory for the bench");
    cpu.write(&space.live, &[rows as i32]);
    let tensor = |columns: usize| cpu.tensor(&space, columns).expect("memory for the bench");
    let (x, mut out) = (tensor(inputs), tensor(outputs));
    let wait = || cpu.read(&space.live, 1).wait().expect("the device works");
    let passes = (LEAST / (rows * outputs * inputs * weights.len())).max(1);
    let mut round = || {
        let begin = Instant::now();
        for weight in weights.iter().cycle().take(passes * weights.len()) {
            cpu.linear(&x, weight, Epilogue::NONE, &mut out);
        }
        wait();
        begin.elapsed().as_nanos() as f64 / (passes * weights.len()) as f64
    };
    (0..ROUNDS).map(|_| round()).fold(f64::INFINITY, f64::min)
}
