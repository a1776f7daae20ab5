//! What products take; see [`crate::ops::counts`].

use super::*;
use crate::ops::counts::{Counter, Figure};
use crate::weight::tests::{numbers, stored};
use paceline_types::DType;

const INPUTS: usize = 256;

/// Per weight and token row, with as many panels as a kernel takes at a time.
pub(in crate::ops) fn product(counter: &Counter, dtype: DType) -> Figure {
    let outputs = PANEL * if dtype.is_quantised() { 1 } else { PANEL_STEP };
    let weight = stored(dtype, outputs, INPUTS, 1).pack(None);
    counter.rows.map(|rows| {
        let (x, mut out) = (numbers(rows * INPUTS, 2), vec![0.0; rows * outputs]);
        let x = In::over(&x, INPUTS);
        let count = Scratch::with(|scratch| {
            let product = Product {
                x,
                activations: dtype
                    .is_quantised()
                    .then(|| scratch.quantise(&counter.pool, x, None, 0, rows)),
                pick: None,
                w: &weight,
                bias: None,
                scale: None,
                out: Out::over(&mut out, outputs),
            };
            counter.count(|| product.run(&counter.pool, 0..weight.panels(), 0..rows))
        });
        count / (outputs * INPUTS * rows) as f64
    })
}

/// Per input that becomes an integer.
pub(in crate::ops) fn integers(counter: &Counter) -> Figure {
    counter.rows.map(|rows| {
        let x = numbers(rows * INPUTS, 2);
        let x = In::over(&x, INPUTS);
        let count = Scratch::with(|scratch| {
            counter.count(|| {
                scratch.quantise(&counter.pool, x, None, 0, rows);
            })
        });
        count / (INPUTS * rows) as f64
    })
}
