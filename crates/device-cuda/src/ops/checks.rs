//! Checks of operands when an operation is enqueued. A mismatch is a mistake in a model's code, so it panics
//! there and then, with the operation and the shapes in the message.

use crate::cuda::Cuda;
use crate::storage::{CudaBuffer, CudaTensor};
use paceline_device::{CausalConv, DeltaRule, Element, StateSpace};
use std::fmt;

/// Most taps of a convolution.
const MAX_WIDTH: usize = 16;

/// The operation whose operands are being checked.
#[derive(Clone, Copy)]
pub(crate) struct Checks(pub(crate) &'static str);

struct Shape<'a>(&'a CudaTensor);

impl fmt::Display for Shape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {}]", self.0.bucket, self.0.columns)
    }
}

impl Checks {
    /// A tensor has this many columns.
    pub(crate) fn columns(self, what: &str, tensor: &CudaTensor, columns: usize) {
        assert!(
            tensor.columns == columns,
            "{}: {what} is {}, not [_, {columns}]",
            self.0,
            Shape(tensor)
        );
    }

    /// Two tensors have the same rows.
    pub(crate) fn same_rows(self, a: &CudaTensor, b: &CudaTensor) {
        assert!(
            a.bucket == b.bucket,
            "{}: {} and {} differ in rows",
            self.0,
            Shape(a),
            Shape(b)
        );
    }

    /// Two tensors have the same shape.
    pub(crate) fn same_shape(self, a: &CudaTensor, b: &CudaTensor) {
        self.same_rows(a, b);
        assert!(
            a.columns == b.columns,
            "{}: {} and {} differ in columns",
            self.0,
            Shape(a),
            Shape(b)
        );
    }

    /// A buffer has exactly this many elements.
    pub(crate) fn length<T: Element>(self, what: &str, buffer: &CudaBuffer<T>, len: usize) {
        assert!(
            buffer.len() == len,
            "{}: {what} has {} elements, not {len}",
            self.0,
            buffer.len()
        );
    }

    /// A buffer has room for this many elements.
    pub(crate) fn room<T: Element>(self, what: &str, buffer: &CudaBuffer<T>, len: usize) {
        assert!(
            buffer.len() >= len,
            "{}: {what} has {} elements, fewer than {len}",
            self.0,
            buffer.len()
        );
    }

    /// One number divides another.
    pub(crate) fn divides(self, what: &str, divisor: usize, number: usize) {
        assert!(
            divisor > 0 && number.is_multiple_of(divisor),
            "{}: {what}: {divisor} does not divide {number}",
            self.0
        );
    }

    /// What is written shares no element with what is read.
    pub(crate) fn apart(self, written: &CudaTensor, read: &[&CudaTensor]) {
        for other in read {
            assert!(
                !overlap(written, other),
                "{}: the output {} overlaps an operand {}",
                self.0,
                Shape(written),
                Shape(other)
            );
        }
    }
}

/// Whether two views share elements. Views of one storage with different row lengths are taken to.
fn overlap(a: &CudaTensor, b: &CudaTensor) -> bool {
    a.storage.address() == b.storage.address()
        && a.bucket.min(b.bucket) > 0
        && (a.stride != b.stride || (a.first < b.first + b.columns && b.first < a.first + a.columns))
}

/// Whether the operands of a convolution belong together.
pub(crate) fn check_causal_conv(args: &CausalConv<'_, Cuda>) {
    let check = Checks("causal_conv");
    let shape = args.cache.shape();
    check.room("token rows", &args.step.token_rows, args.x.bucket);
    check.same_shape(args.x, args.out);
    check.columns("x", args.x, shape.conv_channels);
    check.length("weight", args.weight, shape.conv_channels * shape.conv_width);
    check.apart(args.out, &[args.x]);
    assert!(
        shape.conv_width <= MAX_WIDTH,
        "causal_conv: {} taps",
        shape.conv_width
    );
    if let Some(bias) = args.bias {
        check.length("bias", bias, shape.conv_channels);
    }
}

/// Whether the operands of a delta rule belong together.
pub(crate) fn check_delta_rule(args: &DeltaRule<'_, Cuda>) {
    let check = Checks("delta_rule");
    let shape = args.cache.shape();
    check.room("token rows", &args.step.token_rows, args.q.bucket);
    check.same_shape(args.q, args.k);
    check.columns("k", args.k, shape.groups * shape.rows);
    check.divides("key heads", shape.groups, shape.heads);
    check.columns("v", args.v, shape.heads * shape.columns);
    check.columns("a", args.a, shape.heads);
    check.columns("b", args.b, shape.heads);
    check.length("decay", args.decay, shape.heads);
    check.length("dt_bias", args.dt_bias, shape.heads);
    check.same_shape(args.v, args.out);
    for tensor in [args.v, args.a, args.b] {
        check.same_rows(args.q, tensor);
    }
    check.apart(args.out, &[args.q, args.k, args.v, args.a, args.b]);
}

/// Whether the operands of a state space recurrence belong together.
pub(crate) fn check_state_space(args: &StateSpace<'_, Cuda>) {
    let check = Checks("state_space");
    let shape = args.cache.shape();
    check.room("token rows", &args.step.token_rows, args.x.bucket);
    check.columns("x", args.x, shape.heads * shape.columns);
    check.columns("dt", args.dt, shape.heads);
    check.same_shape(args.b, args.c);
    check.columns("b", args.b, shape.groups * shape.rows);
    check.divides("groups", shape.groups, shape.heads);
    for buffer in [args.decay, args.skip, args.dt_bias] {
        check.length("a parameter per head", buffer, shape.heads);
    }
    check.same_shape(args.x, args.out);
    check.same_rows(args.x, args.b);
    check.same_rows(args.x, args.dt);
    check.apart(args.out, &[args.x, args.b, args.c, args.dt]);
}
