//! Mixture-of-experts feed-forward layers.
//!
//! The (row, expert) pairs of a step are sorted by expert, so that each expert's matrices are read once for all
//! the rows that chose it. A pair's result does not depend on what else its expert is given, and a row adds up
//! its results in the order of its own choice.

use super::activate::activate;
use super::linear::{self, Activations, Plan, Product};
use super::split;
use crate::pool::Pool;
use crate::storage::{In, Out};
use crate::weight::CpuWeight;
use paceline_device::{Activation, DeviceError};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

/// The matrices of a layer's experts. Clones share them.
#[derive(Clone)]
pub struct CpuExperts {
    inner: Arc<Inner>,
}

struct Inner {
    gate_up: Vec<CpuWeight>,
    down: Vec<CpuWeight>,
}

impl CpuExperts {
    /// Groups matrices: `gate_up[e]` is `[2·width, hidden]` or `[width, hidden]`, `down[e]` is `[hidden, width]`.
    pub(crate) fn new(gate_up: Vec<CpuWeight>, down: Vec<CpuWeight>) -> Result<Self, DeviceError> {
        let bad = |why: String| DeviceError::BadWeight {
            what: "experts".to_owned(),
            why,
        };
        if gate_up.is_empty() || gate_up.len() != down.len() {
            let (ups, downs) = (gate_up.len(), down.len());
            return Err(bad(format!("{ups} first and {downs} second matrices")));
        }
        let shape = |w: &CpuWeight| (w.outputs(), w.inputs());
        let ((up_outputs, hidden), (outputs, width)) = (shape(&gate_up[0]), shape(&down[0]));
        if outputs != hidden || (up_outputs != width && up_outputs != 2 * width) {
            return Err(bad(format!(
                "matrices [{up_outputs}, {hidden}] and [{outputs}, {width}] do not follow each other"
            )));
        }
        for (expert, (up, down)) in gate_up.iter().zip(&down).enumerate() {
            if shape(up) != (up_outputs, hidden) || shape(down) != (outputs, width) {
                return Err(bad(format!("expert {expert} differs in shape from expert 0")));
            }
        }
        Ok(Self {
            inner: Arc::new(Inner { gate_up, down }),
        })
    }

    /// Number of experts.
    pub fn len(&self) -> usize {
        self.inner.gate_up.len()
    }

    /// Whether there are none; there always are.
    pub fn is_empty(&self) -> bool {
        self.inner.gate_up.is_empty()
    }

    /// Memory held.
    pub fn bytes(&self) -> usize {
        let all = self.inner.gate_up.iter().chain(&self.inner.down);
        all.map(CpuWeight::bytes).sum()
    }
}

/// Arguments of [`run_experts`].
pub(crate) struct ExpertsArgs<'a> {
    /// `[T, hidden]`.
    pub(crate) x: In<'a>,
    /// `[T, chosen]`, row-major.
    pub(crate) ids: &'a [i32],
    /// `[T, chosen]`.
    pub(crate) weights: In<'a>,
    pub(crate) chosen: usize,
    pub(crate) experts: &'a CpuExperts,
    pub(crate) activation: Activation,
    /// `[T, hidden]`.
    pub(crate) out: Out<'a>,
}

/// Working memory, kept between calls.
#[derive(Default)]
struct Scratch {
    /// Row of each pair, sorted by expert.
    row_of: Vec<u32>,
    /// Where each pair of a row, in order of choice, went.
    place: Vec<u32>,
    /// Experts that were chosen, with their pairs.
    groups: Vec<(usize, Range<usize>)>,
    up: Vec<f32>,
    active: Vec<f32>,
    down: Vec<f32>,
    activations: linear::Scratch,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// `out[t] = Σ weight · down(activation(gate_up(x[t])))` over the chosen experts of each row, best first.
pub(crate) fn run_experts(pool: &Pool, args: &ExpertsArgs<'_>) {
    SCRATCH.with_borrow_mut(|scratch| scratch.run(pool, args));
}

impl Scratch {
    fn run(&mut self, pool: &Pool, args: &ExpertsArgs<'_>) {
        let (inner, rows) = (&args.experts.inner, args.out.rows);
        assert_eq!(args.x.rows, rows, "rows in and out");
        self.sort(&args.ids[..rows * args.chosen], args.chosen, args.experts.len());
        let (up, down) = (&inner.gate_up[0], &inner.down[0]);
        let fan_in = args.activation.fan_in();
        assert_eq!(up.outputs(), fan_in * down.inputs(), "width of the experts");
        let pairs = self.row_of.len();
        grow(&mut self.up, pairs * up.outputs());
        grow(&mut self.active, pairs * down.inputs());
        grow(&mut self.down, pairs * down.outputs());
        let up_out = Out::over(&mut self.up[..pairs * up.outputs()], up.outputs());
        let picked = (args.x, Some(&self.row_of[..]));
        let activations = integers(&inner.gate_up, &mut self.activations, pool, picked, pairs);
        products(pool, &self.groups, |expert| Product {
            x: args.x,
            activations,
            pick: Some(&self.row_of),
            w: &inner.gate_up[expert],
            bias: None,
            scale: None,
            out: up_out,
        });
        let up_in = In::over(&self.up[..pairs * up.outputs()], up.outputs());
        let active = &mut self.active[..pairs * down.inputs()];
        activate(pool, up_in, args.activation, Out::over(active, down.inputs()));
        let active = In::over(&self.active[..pairs * down.inputs()], down.inputs());
        let down_out = Out::over(&mut self.down[..pairs * down.outputs()], down.outputs());
        let activations = integers(&inner.down, &mut self.activations, pool, (active, None), pairs);
        products(pool, &self.groups, |expert| Product {
            x: active,
            activations,
            pick: None,
            w: &inner.down[expert],
            bias: None,
            scale: None,
            out: down_out,
        });
        let results = In::over(&self.down[..pairs * down.outputs()], down.outputs());
        add_up(pool, args, &self.place, results);
    }

    /// Sorts the pairs by expert, rows in order within each.
    fn sort(&mut self, ids: &[i32], chosen: usize, experts: usize) {
        let mut counts = vec![0_usize; experts];
        for id in ids {
            let expert = usize::try_from(*id).unwrap_or(usize::MAX);
            assert!(expert < experts, "expert {id} of {experts}");
            counts[expert] += 1;
        }
        self.groups.clear();
        let mut first = 0;
        for (expert, count) in counts.iter_mut().enumerate() {
            if *count > 0 {
                self.groups.push((expert, first..first + *count));
            }
            let next = first + *count;
            *count = first;
            first = next;
        }
        self.row_of.clear();
        self.row_of.resize(ids.len(), 0);
        self.place.clear();
        for (pair, id) in ids.iter().enumerate() {
            let place = &mut counts[*id as usize];
            self.row_of[*place] = (pair / chosen) as u32;
            self.place.push(*place as u32);
            *place += 1;
        }
    }
}

/// The inputs of all pairs as integers, if any of the weights wants them so.
fn integers<'a>(
    weights: &[CpuWeight],
    scratch: &'a mut linear::Scratch,
    pool: &Pool,
    (x, pick): (In<'_>, Option<&[u32]>),
    pairs: usize,
) -> Option<Activations<'a>> {
    let wanted = weights.iter().any(CpuWeight::has_quantised);
    wanted.then(|| scratch.quantise(pool, x, pick, 0, pairs))
}

fn grow(buffer: &mut Vec<f32>, len: usize) {
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
}

/// Runs one product per chosen expert, all their pieces shared out together.
fn products<'a>(
    pool: &Pool,
    groups: &[(usize, Range<usize>)],
    product: impl Fn(usize) -> Product<'a> + Sync,
) {
    let estimate = |(expert, pairs): &(usize, Range<usize>)| product(*expert).nanoseconds(pool, pairs.len());
    let total_ns: usize = groups.iter().map(estimate).sum();
    let mut pieces = 0;
    let mut plans = Vec::with_capacity(groups.len());
    for (expert, pairs) in groups {
        let product = product(*expert);
        product.check();
        let plan = Plan::new(product.w, pairs.len(), pool, total_ns);
        plans.push((pieces, plan));
        pieces += plan.pieces();
    }
    super::pieces(pool, pieces, total_ns, |piece| {
        let at = plans.partition_point(|(first, _)| *first <= piece) - 1;
        let (first, plan) = &plans[at];
        let (expert, pairs) = &groups[at];
        plan.run(piece - first, pool, &product(*expert), pairs.start);
    });
}

/// The weighted sum of each row's results, in the order of its choice.
fn add_up(pool: &Pool, args: &ExpertsArgs<'_>, place: &[u32], results: In<'_>) {
    let chosen = args.chosen;
    split(pool, args.out.rows, args.out.columns * chosen / 4, |rows| {
        for row in rows {
            // SAFETY: ranges of rows do not overlap.
            let out = unsafe { args.out.row(row) };
            out.fill(0.0);
            for (place, weight) in place[row * chosen..].iter().zip(&args.weights.row(row)[..chosen]) {
                pool.instructions().run(AddScaled {
                    out,
                    x: results.row(*place as usize),
                    factor: *weight,
                });
            }
        }
    });
}

/// `out += x · factor`, one rounding.
struct AddScaled<'a> {
    out: &'a mut [f32],
    x: &'a [f32],
    factor: f32,
}

impl crate::simd::Kernel for AddScaled<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: crate::simd::Simd>(self, s: S) {
        let factor = s.splat(self.factor);
        let (outs, out_rest) = self.out.as_chunks_mut();
        let (xs, x_rest) = self.x.as_chunks();
        for (out, x) in outs.iter_mut().zip(xs) {
            let sum = s.mul_add(factor, s.load(x), s.load(out));
            s.store(sum, out);
        }
        for (out, x) in out_rest.iter_mut().zip(x_rest) {
            *out = self.factor.mul_add(*x, *out);
        }
    }
}

#[cfg(test)]
mod tests;
