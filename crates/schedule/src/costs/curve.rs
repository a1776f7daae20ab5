//! Step time by tokens run, through points that were measured.

/// Slope beyond the only size known, as a share of the time per token: cheap enough to be tried.
const UNTRIED: f64 = 0.02;

/// A point of the curve of step time by tokens run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub(super) tokens: f64,
    pub(super) ns: f64,
}

/// Points in order of their tokens.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    pub(super) points: Vec<Point>,
    /// How steep it goes on behind the last point, as a share of the slope before it.
    pub(super) beyond: f64,
}

impl Curve {
    pub(super) fn new(beyond: f64) -> Self {
        Self {
            points: Vec::new(),
            beyond,
        }
    }

    /// Makes it the closest that never falls: where a point is above the next, both give way, by their weights.
    pub(super) fn straighten(&mut self, weights: &[f64]) {
        // Runs of points that share a time: their end, the time and the weight.
        let mut runs: Vec<(usize, f64, f64)> = Vec::with_capacity(self.points.len());
        for (index, (point, weight)) in self.points.iter().zip(weights).enumerate() {
            let (mut ns, mut weight) = (point.ns, *weight);
            while let Some((_, before, heavy)) = runs.pop_if(|run| run.1 > ns) {
                ns = (ns * weight + before * heavy) / (weight + heavy);
                weight += heavy;
            }
            runs.push((index + 1, ns, weight));
        }
        let mut from = 0;
        for (end, ns, _) in runs {
            for point in &mut self.points[from..end] {
                point.ns = ns;
            }
            from = end;
        }
    }

    /// The time at a size; 0 if there are no points. Between
    /// sizes that are known it is interpolated. Beyond the largest it goes on up to twice as far, and from
    /// there on a token costs what it costs on average: what is far away is neared, not jumped at.
    pub(super) fn at(&self, tokens: f64) -> f64 {
        let (Some(first), Some(last)) = (self.points.first(), self.points.last()) else {
            return 0.0;
        };
        if tokens <= first.tokens {
            return first.ns;
        }
        if tokens >= last.tokens {
            let near = tokens.min(2.0 * last.tokens);
            let at = last.ns + self.beyond * self.last_slope(*last) * (near - last.tokens);
            return at * (tokens / near);
        }
        let above = self.points.partition_point(|point| point.tokens < tokens);
        let (low, high) = (self.points[above - 1], self.points[above]);
        low.ns + (high.ns - low.ns) * (tokens - low.tokens) / (high.tokens - low.tokens)
    }

    /// Time per token at the end of the curve, over its last doubling.
    fn last_slope(&self, last: Point) -> f64 {
        let half = self
            .points
            .partition_point(|point| point.tokens <= last.tokens / 2.0);
        let from = self.points[half.saturating_sub(1)];
        if from.tokens < last.tokens {
            (last.ns - from.ns) / (last.tokens - from.tokens)
        } else {
            UNTRIED * last.ns / last.tokens
        }
    }
}
