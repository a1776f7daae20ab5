//! Writes numbers that are kept elsewhere.

use paceline::Histogram;
use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt::Error;

/// A metric's name and what it means.
pub(super) type Described<'a> = (&'a str, &'a str);

/// Writes metrics one after another. Names of counters are given without `_total`.
pub(super) struct Writer<'a>(pub(super) DescriptorEncoder<'a>);

impl Writer<'_> {
    pub(super) fn counter(&mut self, (name, help): Described<'_>, value: u64) -> Result<(), Error> {
        let encoder = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(value).encode(encoder)
    }

    /// A counter of seconds.
    pub(super) fn seconds(&mut self, (name, help): Described<'_>, ns: u64) -> Result<(), Error> {
        let encoder = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(in_seconds(ns)).encode(encoder)
    }

    pub(super) fn gauge(&mut self, (name, help): Described<'_>, value: f64) -> Result<(), Error> {
        let encoder = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value).encode(encoder)
    }

    /// A gauge that is 1 and says something in its labels.
    pub(super) fn info(
        &mut self,
        (name, help): Described<'_>,
        labels: &[(&str, String)],
    ) -> Result<(), Error> {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        let encoder = encoder.encode_family(&labels)?;
        ConstGauge::new(1u64).encode(encoder)
    }

    /// Counters that differ in one label.
    pub(super) fn counters(
        &mut self,
        described: Described<'_>,
        label: &str,
        values: &[(&str, u64)],
    ) -> Result<(), Error> {
        self.family(described, label, values.iter().copied())
    }

    /// The same of seconds.
    pub(super) fn all_seconds(
        &mut self,
        described: Described<'_>,
        label: &str,
        values: &[(&str, u64)],
    ) -> Result<(), Error> {
        let seconds = values.iter().map(|(value, ns)| (*value, in_seconds(*ns)));
        self.family(described, label, seconds)
    }

    fn family<'v, N: EncodeCounterValue>(
        &mut self,
        (name, help): Described<'_>,
        label: &str,
        values: impl Iterator<Item = (&'v str, N)>,
    ) -> Result<(), Error> {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (value, count) in values {
            let labels = [(label, value)];
            ConstCounter::new(count).encode(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// Counters by place in a verify window, from 0 on.
    pub(super) fn by_position(&mut self, (name, help): Described<'_>, counts: &[u64]) -> Result<(), Error> {
        let positions: Vec<String> = (0..counts.len()).map(|position| position.to_string()).collect();
        let values = positions.iter().map(String::as_str).zip(counts.iter().copied());
        self.counters((name, help), "position", &values.collect::<Vec<_>>())
    }

    /// A histogram whose values are `unit` each.
    pub(super) fn histogram(
        &mut self,
        (name, help): Described<'_>,
        histogram: &Histogram,
        unit: f64,
    ) -> Result<(), Error> {
        let bound = |bound: Option<u64>| bound.map_or(f64::INFINITY, |bound| bound as f64 * unit);
        let buckets = histogram.buckets();
        let buckets: Vec<_> = buckets.map(|(upper, count)| (bound(upper), count)).collect();
        let mut encoder = self
            .0
            .encode_descriptor(name, help, None, MetricType::Histogram)?;
        let sum = histogram.sum() as f64 * unit;
        encoder.encode_histogram::<NoLabelSet>(sum, histogram.count(), &buckets, None)
    }
}

fn in_seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
