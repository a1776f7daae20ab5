//! What drawing a token takes; see [`crate::ops::counts`].

use super::*;
use crate::ops::counts::{Counter, Figure, ROWS};

/// Tokens of the vocabulary that is drawn from.
const TOKENS: usize = 512;

/// Per token that might be drawn: none is ruled out by its logit alone.
pub(in crate::ops) fn draw(counter: &Counter) -> Figure {
    let logits: Vec<f32> = (0..TOKENS)
        .map(|token| (token * 37 % 101) as f32 / 10.0)
        .collect();
    let (max, instructions) = (10.0, counter.pool.instructions());
    let row = |position| Row {
        logits: &logits,
        max,
        first: first_of(&logits, max),
        temperature: 1.0,
        floor: f32::NEG_INFINITY,
        noise: Noise::new(1, position),
    };
    ROWS.map(|rows| {
        let count = counter.count(|| {
            for position in 0..rows as i32 {
                std::hint::black_box(instructions.run(DrawAll(&row(position), Boundary::NONE)));
            }
        });
        count / (rows * TOKENS) as f64
    })
}
