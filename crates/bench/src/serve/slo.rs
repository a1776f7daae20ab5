//! Limits that good requests keep.

use super::record::Times;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Milliseconds that a request may take; what is absent has no limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Slo {
    ttft: Option<f64>,
    tpot: Option<f64>,
    e2e: Option<f64>,
    stall: Option<f64>,
}

impl Slo {
    /// Whether an answer kept all limits. What an answer does not have, such as the time between the tokens of one
    /// that has one token, cannot be late.
    pub(super) fn is_met(&self, times: &Times) -> bool {
        let within = |limit: Option<f64>, value: Option<f64>| match (limit, value) {
            (Some(limit), Some(value)) => value <= limit,
            _ => true,
        };
        within(self.ttft, times.ttft)
            && within(self.tpot, times.tpot)
            && within(self.e2e, Some(times.e2e))
            && within(self.stall, times.stall)
    }

    fn limits(&self) -> [(&'static str, Option<f64>); 4] {
        [
            ("ttft", self.ttft),
            ("tpot", self.tpot),
            ("e2e", self.e2e),
            ("stall", self.stall),
        ]
    }
}

impl FromStr for Slo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut slo = Self::default();
        for part in text.split(',') {
            let (name, value) = part
                .split_once(':')
                .ok_or_else(|| format!("`{part}` is no limit; limits look like ttft:200"))?;
            let place = match name.trim() {
                "ttft" => &mut slo.ttft,
                "tpot" => &mut slo.tpot,
                "e2e" => &mut slo.e2e,
                "stall" => &mut slo.stall,
                other => {
                    return Err(format!(
                        "`{other}` is unknown; known are ttft, tpot, e2e and stall"
                    ));
                }
            };
            let value = value.trim().parse::<f64>().ok();
            let value = value.filter(|value| value.is_finite() && *value > 0.0);
            let value = value.ok_or_else(|| format!("`{part}`: the limit must be milliseconds above 0"))?;
            if place.replace(value).is_some() {
                return Err(format!("`{}` is given twice", name.trim()));
            }
        }
        Ok(slo)
    }
}

impl fmt::Display for Slo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let given = self
            .limits()
            .into_iter()
            .filter_map(|(name, limit)| Some((name, limit?)));
        for (index, (name, limit)) in given.enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{name}:{limit}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_and_written_alike() {
        for text in ["ttft:200,tpot:50,e2e:5000", "stall:12.5"] {
            assert_eq!(text.parse::<Slo>().unwrap().to_string(), text);
        }
        for (text, part) in [
            ("", "no limit"),
            ("ttft", "no limit"),
            ("ttft:x", "milliseconds"),
            ("ttft:0", "milliseconds"),
            ("itl:3", "known are"),
            ("ttft:1,ttft:2", "twice"),
        ] {
            let error = text.parse::<Slo>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn every_limit_counts_and_what_is_absent_is_not_late() {
        let times = Times {
            ttft: Some(100.0),
            tpot: None,
            e2e: 300.0,
            stall: Some(20.0),
        };
        let met = |text: &str| text.parse::<Slo>().unwrap().is_met(&times);
        assert!(met("ttft:100,tpot:1,e2e:300,stall:20"));
        assert!(!met("ttft:99.9,e2e:300"));
        assert!(!met("ttft:100,e2e:299"));
        assert!(!met("stall:19"));
    }
}
