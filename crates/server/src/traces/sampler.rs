//! Which requests have spans.

use super::context::Parent;

/// Decides by the trace, so that all servers that see one decide the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampler {
    /// A request that is part of a trace is sampled if the one that sent it was.
    parent_based: bool,
    /// The share of other traces.
    ratio: f64,
}

/// A sampler that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SamplerError {
    /// By its name.
    #[error(
        "`{0}` is no sampler; there are always_on, always_off, traceidratio and the same with `parentbased_` before them"
    )]
    Name(String),
    /// By the share of traces.
    #[error("`{0}` is no share of traces; it must be a number from 0 to 1")]
    Ratio(String),
}

impl Default for Sampler {
    fn default() -> Self {
        Self {
            parent_based: true,
            ratio: 1.0,
        }
    }
}

impl Sampler {
    /// By the names of OpenTelemetry; `ratio` is for those that take one.
    pub fn named(name: &str, ratio: Option<&str>) -> Result<Self, SamplerError> {
        let kind = name.strip_prefix("parentbased_");
        let ratio = match kind.unwrap_or(name) {
            "always_on" => 1.0,
            "always_off" => 0.0,
            "traceidratio" => {
                let text = ratio.unwrap_or("1");
                let ratio = text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
                ratio.ok_or_else(|| SamplerError::Ratio(text.to_owned()))?
            }
            _ => return Err(SamplerError::Name(name.to_owned())),
        };
        Ok(Self {
            parent_based: kind.is_some(),
            ratio,
        })
    }

    pub(super) fn samples(&self, trace_id: u128, parent: Option<&Parent>) -> bool {
        if let Some(parent) = parent.filter(|_| self.parent_based) {
            return parent.sampled;
        }
        // Of the bits that must be random, as many as a float holds.
        let random = (trace_id as u64) << 8 >> 11;
        (random as f64) < self.ratio * (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parent(sampled: bool) -> Parent {
        Parent {
            trace_id: 1,
            span_id: 1,
            sampled,
            state: String::new(),
        }
    }

    #[test]
    fn names_and_shares_are_those_of_opentelemetry() {
        let half = Sampler::named("traceidratio", Some("0.5")).unwrap();
        assert!(half.samples(1, Some(&parent(false))) && !half.samples(u128::from(u64::MAX), None));
        let all = Sampler::default();
        assert_eq!(Sampler::named("parentbased_always_on", None), Ok(all));
        assert!(all.samples(u128::MAX, None) && !all.samples(1, Some(&parent(false))));
        let none = Sampler::named("parentbased_always_off", None).unwrap();
        assert!(none.samples(1, Some(&parent(true))) && !none.samples(0, None));
        for (name, ratio) in [
            ("always", None),
            ("traceidratio", Some("2")),
            ("traceidratio", Some("nan")),
        ] {
            assert!(Sampler::named(name, ratio).is_err(), "{name} {ratio:?}");
        }
    }
}
