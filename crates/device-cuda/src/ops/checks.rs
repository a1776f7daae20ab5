//! Checks of operands when an operation is enqueued. A mismatch is a mistake in a model's code, so it panics
//! there and then, with the operation and the shapes in the message.

use crate::storage::{CudaBuffer, CudaTensor};
use paceline_device::Element;
use std::fmt;

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
