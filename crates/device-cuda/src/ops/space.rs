//! Mamba2 layers in steps of decodes and verify windows: convolution and recurrence in two kernels where there are some for the shape.

use crate::arguments::{Ptr, arguments};
use crate::cuda::Cuda;
use crate::launch::{Grid, Kernel};
use crate::ops::checks::{check_causal_conv, check_state_space};
use crate::pack::Architecture;
use crate::storage::CudaTensor;
use crate::unread::Written;
use crate::views::{Matrix, StateView, Tables, optional};
use paceline_device::{CausalConv, GatedNorm, StateSpace};
use std::mem::offset_of;

arguments! { "space.h";
    /// Of `space_keys` and `space_states`. `queries`, `keys` and `values` are the first channels of the convolution that belong to them.
    struct SpaceArgs {
        x: Matrix,
        dt: Matrix,
        /// What the convolution makes: values and queries are left there.
        mixed: Matrix,
        out: Matrix,
        taps: Ptr<f32>,
        bias: Ptr<f32>,
        decay: Ptr<f32>,
        dt_bias: Ptr<f32>,
        skip: Ptr<f32>,
        dots: Ptr<f32>,
        states: StateView,
        tables: Tables,
        queries: u32,
        keys: u32,
        values: u32,
        least: f32,
        most: f32,
        fault: Ptr<i32>,
    }
}

/// The kernels for states of so many rows, of which a team has so many columns.
struct Kernels {
    rows: usize,
    columns: usize,
    keys: Kernel<SpaceArgs>,
    states: Kernel<SpaceArgs>,
    /// Threads of a thread block that goes through states, and its shared memory: the size of `Memory` in its file.
    threads: u32,
    shared: u32,
}

macro_rules! kernels {
    ($($rows:literal $columns:literal: $threads:literal $shared:literal;)*) => {
        [$(Kernels {
            rows: $rows,
            columns: $columns,
            keys: Kernel::new("space_keys", concat!("space_keys_", $rows)),
            states: Kernel::new("space", concat!("space_states_", $rows, "_", $columns)),
            threads: $threads,
            shared: $shared,
        }),*]
    };
}

/// The first that fits is taken.
static KERNELS: [Kernels; 3] = kernels!(
    128 64: 608 208_128;
    128 32: 608 221_696;
    256 32: 352 203_008;
);
/// Taps of the convolution that they are made for.
const TAPS: usize = 4;
/// Threads of a thread block of `space_keys`, and channels of values that each of them has.
const KEY_THREADS: usize = 256;
const KEY_CHANNELS: usize = 4;

impl Cuda {
    /// Enqueues convolution, recurrence and gated norm: the first two as two kernels for decodes and verify windows, whose rows
    /// are short, and one after the other for prompts and other shapes. Either way the bits are the same.
    pub(crate) fn enqueue_mix_state_space(
        &self,
        conv: &CausalConv<'_, Self>,
        recurrence: &StateSpace<'_, Self>,
        norm: &GatedNorm<'_, Self>,
    ) {
        if let Some((kernels, args)) = self.space_args(conv, recurrence) {
            self.enqueue_space(kernels, &args, conv, recurrence);
        } else {
            self.enqueue_causal_conv(conv);
            self.enqueue_state_space(recurrence);
        }
        self.enqueue_gated_norm(norm);
    }

    fn enqueue_space(
        &self,
        kernels: &Kernels,
        args: &SpaceArgs,
        conv: &CausalConv<'_, Self>,
        recurrence: &StateSpace<'_, Self>,
    ) {
        check_causal_conv(conv);
        check_state_space(recurrence);
        let shape = conv.cache.shape();
        let Some(scratch) = self.recurrence_scratch(shape, recurrence.out.bucket, false) else {
            return;
        };
        let args = SpaceArgs {
            dots: scratch.dots,
            ..*args
        };
        let (values, requests) = (shape.heads * shape.columns, args.tables.request_bucket);
        let blocks = shape.groups + values.div_ceil(KEY_THREADS * KEY_CHANNELS);
        // It has nothing to do with results but to know how many rows there are.
        let nowhere = Matrix {
            data: Ptr::NULL,
            ..args.out
        };
        let keys = SpaceArgs { out: nowhere, ..args };
        let grid = Grid::of([blocks as u32, requests, 1], KEY_THREADS as u32);
        self.enqueue(&kernels.keys, grid, &keys);
        let blocks = (values / kernels.columns) as u32 * requests;
        let grid = Grid::new(blocks.min(self.multiprocessors()), kernels.threads).shared(kernels.shared);
        let written = Written::new(recurrence.out, offset_of!(SpaceArgs, out));
        self.enqueue_writing(&kernels.states, grid, &args, Some(written));
    }

    /// The kernels, and their arguments but for scratch, if there are some for this shape.
    fn space_args(
        &self,
        conv: &CausalConv<'_, Self>,
        recurrence: &StateSpace<'_, Self>,
    ) -> Option<(&'static Kernels, SpaceArgs)> {
        let shape = conv.cache.shape();
        let kernels = KERNELS
            .iter()
            .find(|own| own.rows == shape.rows && shape.columns.is_multiple_of(own.columns))?;
        // Other architectures have less shared memory per thread block than `space_states` takes, or compilers that have too few
        // registers for it.
        let fits = self.context.architecture == Architecture::Sm90a
            && shape.conv_width == TAPS
            && shape.conv_channels.is_multiple_of(KEY_CHANNELS)
            && !conv.step.prompts;
        let channel = |x: &CudaTensor| {
            let of_conv = x.storage.address() == conv.out.storage.address() && x.stride == conv.out.stride;
            let first = x.first.checked_sub(conv.out.first)?;
            (of_conv && first + x.columns <= conv.out.columns).then_some(first as u32)
        };
        let args = SpaceArgs {
            x: Matrix::of(conv.x),
            dt: Matrix::of(recurrence.dt),
            mixed: Matrix::of(conv.out),
            out: Matrix::of(recurrence.out),
            taps: conv.weight.ptr(),
            bias: optional(conv.bias),
            decay: recurrence.decay.ptr(),
            dt_bias: recurrence.dt_bias.ptr(),
            skip: recurrence.skip.ptr(),
            dots: Ptr::NULL,
            states: conv.cache.view(),
            tables: Tables::of(conv.step),
            queries: channel(recurrence.c)?,
            keys: channel(recurrence.b)?,
            values: channel(recurrence.x)?,
            least: recurrence.dt_limits.0,
            most: recurrence.dt_limits.1,
            fault: Ptr::new(self.context.fault),
        };
        let firsts = [args.queries, args.keys, args.values];
        let aligned = [&args.x, &args.mixed, &args.out]
            .iter()
            .all(|matrix| matrix.in_fours())
            && args.taps.is_aligned(16)
            && firsts.iter().all(|first| first.is_multiple_of(4));
        (fits && aligned).then_some((kernels, args))
    }
}
