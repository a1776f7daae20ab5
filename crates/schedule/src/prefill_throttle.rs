//! How much of a prompt a step takes in while other requests wait for their next token.
//!
//! A step is as long as the tokens in it, and a stream gets its next token when the step ends. How long a token takes
//! is the machine's and the model's affair, so the bound that users feel is one of time: prompts get the tokens that
//! keep a step about as long as it may be. Where no request waits for a token, steps are as full as they can be.

use crate::costs::StepCosts;
use crate::times::StepTimes;

/// Tokens that a prompt gets on however slow the machine is: fewer would hardly make the step shorter.
const LEAST: usize = 32;
/// How fast the measured time per token is followed.
const FOLLOW: f64 = 0.25;

/// How much of prompts runs beside streams.
#[derive(Clone, Debug)]
pub(crate) struct PrefillThrottle {
    /// How long a step with streams in it may be; `None` for any length.
    limit_ns: Option<u64>,
    /// Time per token of a prompt, on top of what the streams in the step take; 0 if none was measured.
    token_ns: f64,
}

impl PrefillThrottle {
    pub(crate) fn new(limit_ns: Option<u64>) -> Self {
        Self {
            limit_ns,
            token_ns: 0.0,
        }
    }

    /// Takes in what a step took. A step without a prompt says nothing.
    pub(crate) fn observe(&mut self, times: &StepTimes, costs: &StepCosts) {
        if times.prompt_tokens == 0 || times.device_ns == 0 {
            return;
        }
        let streams = match times.decode_tokens {
            0 => 0.0,
            tokens => costs.time(tokens as f64),
        };
        let prompts = (times.device_ns as f64 - streams).max(0.0);
        let token_ns = prompts / times.prompt_tokens as f64;
        if self.token_ns == 0.0 {
            self.token_ns = token_ns;
        } else {
            self.token_ns += FOLLOW * (token_ns - self.token_ns);
        }
    }

    /// Tokens of prompts for a step in which `streams` requests decode.
    pub(crate) fn prompt_tokens(&self, streams: usize, costs: &StepCosts) -> usize {
        let Some(limit) = self.limit_ns.filter(|_| streams > 0) else {
            return usize::MAX;
        };
        let left = limit as f64 - costs.time(streams as f64);
        // Before the first measurement too: the step that brings it is in flight, and this one is behind it.
        if self.token_ns == 0.0 || left < self.token_ns * LEAST as f64 {
            return LEAST;
        }
        (left / self.token_ns) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(decode_tokens: usize, prompt_tokens: usize, device_ns: u64) -> StepTimes {
        StepTimes {
            decodes: decode_tokens,
            decode_tokens,
            prompt_tokens,
            device_ns,
            ..StepTimes::default()
        }
    }

    #[test]
    fn prompts_get_what_keeps_the_step_within_its_limit() {
        let mut costs = StepCosts::default();
        for _ in 0..8 {
            costs.observe(&step(4, 0, 20_000));
        }
        let mut throttle = PrefillThrottle::new(Some(100_000));
        assert_eq!(throttle.prompt_tokens(4, &costs), LEAST, "nothing is known");
        throttle.observe(&step(0, 500, 500_000), &costs);
        assert_eq!(throttle.prompt_tokens(4, &costs), 80);
        assert_eq!(throttle.prompt_tokens(0, &costs), usize::MAX, "nobody waits");
        // A step of streams alone teaches nothing about prompts.
        throttle.observe(&step(4, 0, 20_000_000), &costs);
        assert_eq!(throttle.prompt_tokens(4, &costs), 80);
        // What the streams take is not counted as the prompt's.
        throttle.observe(&step(4, 80, 100_000), &costs);
        assert_eq!(throttle.prompt_tokens(4, &costs), 80);
    }

    #[test]
    fn a_slow_machine_still_takes_prompts_in() {
        let costs = StepCosts::default();
        let mut throttle = PrefillThrottle::new(Some(1_000));
        throttle.observe(&step(0, 10, 1_000_000_000), &costs);
        assert_eq!(throttle.prompt_tokens(1, &costs), LEAST);
    }

    #[test]
    fn the_pace_follows_the_machine() {
        let costs = StepCosts::default();
        let mut throttle = PrefillThrottle::new(Some(1_000_000));
        for (token_ns, tokens) in [(1_000, 1_000), (4_000, 250), (2_000, 500)] {
            for _ in 0..40 {
                throttle.observe(&step(0, 100, 100 * token_ns), &costs);
            }
            let given = throttle.prompt_tokens(1, &costs);
            assert!(given.abs_diff(tokens) <= 2, "{given} instead of {tokens}");
        }
    }

    #[test]
    fn without_a_limit_there_is_none() {
        let costs = StepCosts::default();
        let mut throttle = PrefillThrottle::new(None);
        throttle.observe(&step(0, 10, 1_000_000_000), &costs);
        assert_eq!(throttle.prompt_tokens(1, &costs), usize::MAX);
    }
}
