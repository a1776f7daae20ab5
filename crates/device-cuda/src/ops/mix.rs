//! Recurrent layers between their two products, in kernels of their own where there are some for the shape.

use crate::arguments::{Ptr, arguments};
use crate::cuda::Cuda;
use crate::launch::{Grid, Kernel};
use crate::ops::checks::{Checks, check_causal_conv, check_delta_rule};
use crate::ops::dense::check_linear;
use crate::ops::inputs::RoundedInputs;
use crate::ops::norms::check_gated_norm;
use crate::ops::product::Target;
use crate::pack::Architecture;
use crate::storage::CudaTensor;
use crate::views::{Matrix, PieceRows, RoundedRows, StateView, Tables, optional};
use crate::weight::{Kind, TILE};
use paceline_device::{CausalConv, DeltaRule, GateOrder, GatedNorm, HeadMap, Product};

arguments! { "mix.h";
    /// Of `mix_keys` and `mix_states`, and of `mix_few`. `queries`, `keys` and `values` are the first channels of the convolution that belong to them.
    struct MixArgs {
        x: Matrix,
        gate: Matrix,
        a: Matrix,
        b: Matrix,
        /// What the convolution makes: values are left there.
        mixed: Matrix,
        out: Matrix,
        rounded: RoundedRows,
        /// Of the product ahead, if nobody has added them up: then `x`, `gate`, `a` and `b` are its outputs from these on, and not there yet.
        pieces: PieceRows,
        x_from: u32,
        gate_from: u32,
        a_from: u32,
        b_from: u32,
        taps: Ptr<f32>,
        bias: Ptr<f32>,
        decay: Ptr<f32>,
        dt_bias: Ptr<f32>,
        norm: Ptr<f32>,
        unit_keys: Ptr<f32>,
        unit_queries: Ptr<f32>,
        dots: Ptr<f32>,
        factors: Ptr<f32>,
        states: StateView,
        tables: Tables,
        queries: u32,
        keys: u32,
        values: u32,
        tiled: u32,
        eps: f32,
        fault: Ptr<i32>,
    }
}

const MIX_KEYS: Kernel<MixArgs> = Kernel::new("mix_keys", "mix_keys");
const MIX_KEYS_PIECED: Kernel<MixArgs> = Kernel::new("mix_keys", "mix_keys_pieced");
const MIX_STATES: Kernel<MixArgs> = Kernel::new("mix", "mix_states");
const MIX_FEW: Kernel<MixArgs> = Kernel::new("mix_few", "mix_few");

/// Rows and columns of a state, and taps of the convolution, that the kernels are made for.
const SIDE: usize = 128;
const TAPS: usize = 4;
/// Thread blocks of `mix_states` per multiprocessor.
const TOGETHER: u32 = 2;
/// Those of `mix_keys`, by its registers, and their threads: a warp per vector, two of a group and the values of its heads, which are
/// often two; and the same where their gates are in pieces, too.
const KEYS: (u32, u32) = (6, 128);
const KEYS_PIECED: (u32, u32) = (3, 192);
/// Threads of a thread block of each kernel.
const STATE_THREADS: u32 = 320;
const FEW_THREADS: u32 = 512;

/// Tokens up to which the kernels add up the pieces of the product ahead themselves.
const MOST_PIECED: usize = 64;

/// Shared memory of a thread block of `mix_states` and of `mix_few`: the size of `Memory` in their files.
const STATE_SHARED: u32 = 115_392;
const FEW_SHARED: u32 = 52_448;

impl Cuda {
    /// Enqueues convolution, delta rule and gated norm: as two kernels for decodes and verify windows, whose rows
    /// are short, as one for those of few requests, and one after the other for prompts and other shapes. Either way
    /// the bits are the same.
    pub(crate) fn enqueue_mix_delta(
        &self,
        conv: &CausalConv<'_, Self>,
        rule: &DeltaRule<'_, Self>,
        norm: &GatedNorm<'_, Self>,
    ) {
        let Some(args) = self.mix_args(conv, rule, norm) else {
            self.enqueue_causal_conv(conv);
            self.enqueue_delta_rule(rule);
            return self.enqueue_gated_norm(norm);
        };
        self.enqueue_mix(&args, conv, rule, norm);
    }

    /// The same behind the product whose outputs all of it reads. What is left in pieces is added up by whoever reads it.
    pub(crate) fn enqueue_linear_mix_delta(
        &self,
        product: &Product<'_, Self>,
        conv: &CausalConv<'_, Self>,
        rule: &DeltaRule<'_, Self>,
        norm: &GatedNorm<'_, Self>,
    ) {
        // Inputs of a convolution are read several times: pieces of many tokens are worth adding up once. `mix_few` has no
        // registers for them.
        let args = self
            .mix_args(conv, rule, norm)
            .filter(|_| self.has_many_states(conv))
            .filter(|_| product.x.bucket <= MOST_PIECED)
            .and_then(|args| args.behind(product, [conv.x, norm.gate, rule.a, rule.b]));
        let Some(mut args) = args else {
            self.enqueue_linear(product.x, product.w, &product.epilogue, product.out);
            return self.enqueue_mix_delta(conv, rule, norm);
        };
        check_linear(product.x, product.w, &product.epilogue, product.out);
        Checks("linear_mix_delta").apart(norm.out, &[product.x]);
        let target = Target::new(product.out);
        if let Some(pieces) = self.enqueue_product(product.x, product.w, &product.epilogue, target) {
            args.pieces = pieces.rows();
        }
        self.enqueue_mix(&args, conv, rule, norm);
    }

    fn enqueue_mix(
        &self,
        args: &MixArgs,
        conv: &CausalConv<'_, Self>,
        rule: &DeltaRule<'_, Self>,
        norm: &GatedNorm<'_, Self>,
    ) {
        let mut args = *args;
        check_causal_conv(conv);
        check_delta_rule(rule);
        check_gated_norm(norm);
        Checks("mix_delta").apart(norm.out, &[conv.x, rule.a, rule.b]);
        let next = self.next_inputs(norm.out);
        args.rounded = RoundedInputs::rows(next);
        let shape = conv.cache.shape();
        let (heads, requests) = (shape.heads as u32, args.tables.request_bucket);
        if self.has_many_states(conv) {
            let Some(scratch) = self.recurrence_scratch(shape, norm.out.bucket, true) else {
                return;
            };
            args.unit_keys = scratch.unit_keys;
            args.unit_queries = scratch.unit_queries;
            args.dots = scratch.dots;
            args.factors = scratch.factors;
            let (kernel, (together, threads)) = if args.pieces.data.is_null() {
                (&MIX_KEYS, KEYS)
            } else {
                (&MIX_KEYS_PIECED, KEYS_PIECED)
            };
            let blocks = (shape.groups as u32 * requests).min(together * self.multiprocessors());
            self.enqueue(kernel, Grid::new(blocks, threads), &args);
            let blocks = (heads * requests).min(TOGETHER * self.multiprocessors());
            let grid = Grid::new(blocks, STATE_THREADS).shared(STATE_SHARED);
            self.enqueue(&MIX_STATES, grid, &args);
        } else {
            let grid = Grid::of([heads, requests, 1], FEW_THREADS).shared(FEW_SHARED);
            self.enqueue(&MIX_FEW, grid, &args);
        }
        self.keep_inputs(next);
    }

    /// Whether there may be a state for every multiprocessor.
    fn has_many_states(&self, conv: &CausalConv<'_, Self>) -> bool {
        conv.cache.shape().heads * conv.step.requests.bucket >= self.multiprocessors() as usize
    }

    /// The arguments but for scratch and the place of rounded results, if the kernels serve this shape.
    fn mix_args(
        &self,
        conv: &CausalConv<'_, Self>,
        rule: &DeltaRule<'_, Self>,
        norm: &GatedNorm<'_, Self>,
    ) -> Option<MixArgs> {
        let shape = conv.cache.shape();
        // Other architectures have less shared memory per thread block than `mix_states` takes.
        let large = matches!(
            self.context.architecture,
            Architecture::Sm90a | Architecture::Sm100
        );
        let fits = (large || !self.has_many_states(conv))
            && (shape.rows, shape.columns, shape.conv_width) == (SIDE, SIDE, TAPS)
            && !conv.step.prompts
            && (norm.group, norm.order) == (SIDE, GateOrder::NormThenGate)
            && is_view(norm.x, rule.out);
        let weight = norm.weight.filter(|weight| weight.len() == SIDE)?.ptr();
        let channel = |x: &CudaTensor| {
            let of_conv = x.storage.address() == conv.out.storage.address() && x.stride == conv.out.stride;
            let first = x.first.checked_sub(conv.out.first)?;
            (of_conv && first + x.columns <= conv.out.columns).then_some(first as u32)
        };
        let args = MixArgs {
            x: Matrix::of(conv.x),
            gate: Matrix::of(norm.gate),
            a: Matrix::of(rule.a),
            b: Matrix::of(rule.b),
            mixed: Matrix::of(conv.out),
            out: Matrix::of(norm.out),
            rounded: RoundedRows::NOWHERE,
            pieces: PieceRows::NONE,
            x_from: 0,
            gate_from: 0,
            a_from: 0,
            b_from: 0,
            taps: conv.weight.ptr(),
            bias: optional(conv.bias),
            decay: rule.decay.ptr(),
            dt_bias: rule.dt_bias.ptr(),
            norm: weight,
            unit_keys: Ptr::NULL,
            unit_queries: Ptr::NULL,
            dots: Ptr::NULL,
            factors: Ptr::NULL,
            states: conv.cache.view(),
            tables: Tables::of(conv.step),
            queries: channel(rule.q)?,
            keys: channel(rule.k)?,
            values: channel(rule.v)?,
            tiled: u32::from(rule.head_map == HeadMap::Tiled),
            eps: norm.eps,
            fault: Ptr::new(self.context.fault),
        };
        let aligned = [&args.gate, &args.mixed]
            .iter()
            .all(|matrix| matrix.data.is_aligned(16) && matrix.stride.is_multiple_of(4));
        (fits && aligned).then_some(args)
    }
}

impl MixArgs {
    /// With the outputs of a product at which x, gate, a and b begin, if kernels can add up its pieces: vectors are within
    /// a tile, and a result is a sum and nothing else.
    fn behind(self, product: &Product<'_, Cuda>, [x, gate, a, b]: [&CudaTensor; 4]) -> Option<Self> {
        let out = &*product.out;
        let from = |part: &CudaTensor| {
            let of_product = part.storage.address() == out.storage.address()
                && (part.stride, part.bucket) == (out.stride, out.bucket);
            let first = part.first.checked_sub(out.first)?;
            (of_product && first + part.columns <= out.columns).then_some(first as u32)
        };
        let args = Self {
            x_from: from(x)?,
            gate_from: from(gate)?,
            a_from: from(a)?,
            b_from: from(b)?,
            ..self
        };
        let vectors = [args.x_from, args.gate_from, args.queries, args.keys, args.values];
        let whole = vectors.iter().all(|first| first.is_multiple_of(TILE as u32));
        let plain = product.epilogue.bias.is_none() && product.epilogue.scale.is_none();
        (whole && plain && product.w.kind() != Kind::F32).then_some(args)
    }
}

/// Whether both are the same columns of the same rows.
fn is_view(x: &CudaTensor, of: &CudaTensor) -> bool {
    let place = |x: &CudaTensor| (x.storage.address(), x.stride, x.first, x.columns, x.bucket);
    place(x) == place(of)
}
