//! A shared expert as one of a mixture's own.

use crate::harness::{bits, devices, live_rows, matrix, tensor, weight};
use paceline_device::{
    Activation, Backend, Epilogue, Experts, MoeRouting, Pending, RouteScores, Router, Rows,
};
use paceline_device_cpu::{Cpu, CpuTensor, CpuWeight};

const ROWS: usize = 37;
const HIDDEN: usize = 48;
const WIDTH: usize = 40;
const EXPERTS: usize = 6;
const CHOSEN: usize = 3;
const GATED: Activation = Activation::SiluGated { gate_scale: 1.0 };

struct Layer {
    up: Vec<CpuWeight>,
    down: Vec<CpuWeight>,
}

impl Layer {
    /// The last one is shared.
    fn new(cpu: &Cpu) -> Self {
        let many = |name: u64, rows, columns| {
            let one = |expert| weight(cpu, &matrix(name + expert, rows, columns, 0.5), columns);
            (0..=EXPERTS as u64).map(one).collect()
        };
        Self {
            up: many(100, 2 * WIDTH, HIDDEN),
            down: many(200, HIDDEN, WIDTH),
        }
    }

    /// The sum over the chosen experts of each row, and the shared one if it is one of them.
    fn run(
        &self,
        cpu: &Cpu,
        rows: &Rows<Cpu>,
        x: &CpuTensor,
        (logits, shared): (&CpuTensor, bool),
    ) -> CpuTensor {
        let (experts, chosen) = (EXPERTS + usize::from(shared), CHOSEN + usize::from(shared));
        let mut routing = MoeRouting {
            ids: cpu.buffer(ROWS * chosen).unwrap(),
            weights: cpu.tensor(rows, chosen).unwrap(),
            chosen,
        };
        cpu.route(Router {
            logits,
            scores: RouteScores::Softmax { renormalise: true },
            shared,
            out: &mut routing,
        });
        let matrices = (self.up[..experts].to_vec(), self.down[..experts].to_vec());
        let mut out = cpu.tensor(rows, HIDDEN).unwrap();
        cpu.run_experts(Experts {
            x,
            routing: &routing,
            experts: &cpu.experts(matrices.0, matrices.1).unwrap(),
            activation: GATED,
            out: &mut out,
        });
        out
    }
}

#[test]
fn a_shared_expert_among_the_others_gives_the_bits_of_one_beside_them() {
    for (name, cpu) in devices() {
        let rows = live_rows(&cpu, ROWS);
        let layer = Layer::new(&cpu);
        let x = tensor(&cpu, &rows, &matrix(1, ROWS, HIDDEN, 1.0), HIDDEN);
        let logits = tensor(&cpu, &rows, &matrix(2, ROWS, EXPERTS + 1, 3.0), EXPERTS + 1);
        let joined = layer.run(&cpu, &rows, &x, (&logits, true));
        let mut beside = layer.run(&cpu, &rows, &x, (&cpu.columns(&logits, 0..EXPERTS), false));
        let mut up = cpu.tensor(&rows, 2 * WIDTH).unwrap();
        let mut active = cpu.tensor(&rows, WIDTH).unwrap();
        let mut shared = cpu.tensor(&rows, HIDDEN).unwrap();
        cpu.linear(&x, &layer.up[EXPERTS], Epilogue::NONE, &mut up);
        cpu.activate(&up, GATED, &mut active);
        cpu.linear(&active, &layer.down[EXPERTS], Epilogue::NONE, &mut shared);
        let gate = cpu.columns(&logits, EXPERTS..EXPERTS + 1);
        cpu.add(&mut beside, &shared, 1.0, Some(&gate));
        let read = |x: &CpuTensor| bits(&cpu.read_tensor(x).wait().unwrap());
        assert_eq!(read(&joined), read(&beside), "{name}");
    }
}
