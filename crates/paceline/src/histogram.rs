//! Counts of values by size.

/// How many values were at most so large.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// Upper bounds, each included, in growing order.
    bounds: &'static [u64],
    /// One per bound, and one for what is larger.
    counts: Vec<u64>,
    sum: u64,
}

impl Histogram {
    /// Nothing counted yet.
    pub fn new(bounds: &'static [u64]) -> Self {
        Self {
            bounds,
            counts: vec![0; bounds.len() + 1],
            sum: 0,
        }
    }

    /// Counts a value.
    pub fn record(&mut self, value: u64) {
        let place = self.bounds.partition_point(|bound| *bound < value);
        self.counts[place] += 1;
        self.sum = self.sum.saturating_add(value);
    }

    /// Values by upper bound, each counted once; the last has no bound.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        let bounds = self.bounds.iter().map(|bound| Some(*bound));
        bounds.chain([None]).zip(self.counts.iter().copied())
    }

    /// Number of values recorded.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of the values recorded.
    pub fn sum(&self) -> u64 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_part_of_its_bucket() {
        let mut histogram = Histogram::new(&[1, 8]);
        for value in [0, 1, 2, 8, 9, 100] {
            histogram.record(value);
        }
        let buckets: Vec<_> = histogram.buckets().collect();
        assert_eq!(buckets, [(Some(1), 2), (Some(8), 2), (None, 2)]);
        assert_eq!((histogram.count(), histogram.sum()), (6, 120));
    }
}
