//! When requests arrive in an open loop.

use crate::load::Random;
use std::time::Duration;

/// Times between arrivals, distributed as a gamma distribution: a shape of 1 is a Poisson process.
pub(super) struct Arrivals {
    random: Random,
    rate: f64,
    shape: f64,
}

impl Arrivals {
    /// `rate` arrivals per second on average; the same seed gives the same times.
    pub(super) fn new(rate: f64, shape: f64, seed: u64) -> Self {
        Self {
            random: Random(seed ^ 0x6172_7269_7661_6c73),
            rate,
            shape,
        }
    }

    /// From one arrival to the next.
    pub(super) fn gap(&mut self) -> Duration {
        if self.rate.is_infinite() {
            return Duration::ZERO;
        }
        let seconds = self.gamma() / (self.shape * self.rate);
        // A rate may be so low that the next arrival is beyond all times.
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_hours(24 * 365))
    }

    /// A value of the gamma distribution with this shape and mean `shape`, by the method of Marsaglia and Tsang.
    fn gamma(&mut self) -> f64 {
        // Shapes below 1 are drawn one higher and brought down by a power of a uniform number.
        let raised = self.shape.max(1.0) + if self.shape < 1.0 { self.shape } else { 0.0 };
        let d = raised - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        let value = loop {
            let normal = self.normal();
            let v = (1.0 + c * normal).powi(3);
            if v <= 0.0 {
                continue;
            }
            let bound = 0.5 * normal * normal + d - d * v + d * v.ln();
            if self.random.share().ln() < bound {
                break d * v;
            }
        };
        if self.shape < 1.0 {
            value * self.random.share().powf(1.0 / self.shape)
        } else {
            value
        }
    }

    /// A value of the normal distribution.
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.random.share().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.random.share()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(rate: f64, shape: f64, seed: u64) -> Vec<f64> {
        let mut arrivals = Arrivals::new(rate, shape, seed);
        (0..40_000).map(|_| arrivals.gap().as_secs_f64()).collect()
    }

    fn moments(values: &[f64]) -> (f64, f64) {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        (mean, variance)
    }

    #[test]
    fn the_mean_is_that_of_the_rate_and_the_spread_that_of_the_shape() {
        for shape in [0.25, 0.5, 1.0, 4.0] {
            let (mean, variance) = moments(&gaps(8.0, shape, 3));
            assert!((mean * 8.0 - 1.0).abs() < 0.05, "shape {shape}: mean {mean}");
            let expected = 1.0 / (shape * 64.0);
            assert!(
                (variance / expected - 1.0).abs() < 0.15,
                "shape {shape}: variance {variance}"
            );
        }
    }

    #[test]
    fn a_shape_of_one_forgets_how_long_it_has_waited() {
        let gaps = gaps(1.0, 1.0, 5);
        let beyond = |time: f64| gaps.iter().filter(|gap| **gap > time).count() as f64 / gaps.len() as f64;
        for time in [0.5, 1.0, 2.0] {
            assert!((beyond(time) - (-time).exp()).abs() < 0.02, "{time}");
        }
    }

    #[test]
    fn equal_seeds_give_equal_times() {
        assert_eq!(gaps(2.0, 1.0, 7), gaps(2.0, 1.0, 7));
        assert_ne!(gaps(2.0, 1.0, 7), gaps(2.0, 1.0, 8));
    }

    #[test]
    fn extreme_rates_are_times_all_the_same() {
        assert_eq!(Arrivals::new(f64::INFINITY, 1.0, 0).gap(), Duration::ZERO);
        let mut rare = Arrivals::new(f64::MIN_POSITIVE, 1.0, 0);
        assert!(rare.gap() >= Duration::from_hours(1));
    }
}
