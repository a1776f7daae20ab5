//! Who tries the neural drafter while it does not pay for newcomers.
//!
//! A drafter that does not see a request's prompt drafts badly for it, and what it drafts then says nothing about others. So where
//! newcomers do without it, nobody would ever find out that it pays now.

/// Where the neural drafter does not pay for newcomers, one in this many tries it all the same: first soon, then ever more rarely.
const SCOUTS: (u32, u32) = (4, 64);

/// Which newcomers try the neural drafter while it does not pay for the others: nobody else finds out that it does now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scouting {
    /// Newcomers until the next scout.
    wait: u32,
    interval: u32,
}

impl Scouting {
    pub(super) const START: Self = Self {
        wait: SCOUTS.0,
        interval: SCOUTS.0,
    };

    /// A newcomer arrives, who would draft or not; whether it is a scout.
    pub(super) fn arrives(&mut self, drafts: bool) -> bool {
        if drafts {
            *self = Self::START;
            return false;
        }
        self.wait -= 1;
        if self.wait > 0 {
            return false;
        }
        self.interval = (2 * self.interval).min(SCOUTS.1);
        self.wait = self.interval;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scouts_are_ever_rarer_until_newcomers_draft() {
        let mut scouting = Scouting::START;
        let mut scouts = |newcomers: usize, drafts: bool| -> Vec<usize> {
            (1..=newcomers).filter(|_| scouting.arrives(drafts)).collect()
        };
        assert_eq!(scouts(200, false), [4, 12, 28, 60, 124, 188]);
        assert!(scouts(3, true).is_empty());
        assert_eq!(scouts(12, false), [4, 12]);
    }
}
