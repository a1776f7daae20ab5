//! The operations of a GPU against the CPU: `cargo run --example gpu -- [GROUP]`.

use paceline_device_cuda::{Cuda, CudaOptions};
use paceline_selftest::{Effort, OperationsConfig, Outcome, Table, operations};

fn main() {
    let only = std::env::args().nth(1).filter(|name| name != "all");
    let dependent = std::env::args().nth(2).is_none();
    let config = OperationsConfig {
        seed: 7,
        effort: Effort::Short,
        only,
    };
    let options = CudaOptions {
        dependent_launch: dependent,
        ..CudaOptions::default()
    };
    let outcomes = operations(&|| Cuda::open(options), &config);
    match outcomes {
        Ok(outcomes) => {
            println!("{}", Table(&outcomes));
            std::process::exit(i32::from(!outcomes.iter().all(Outcome::is_ok)));
        }
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(2);
        }
    }
}
