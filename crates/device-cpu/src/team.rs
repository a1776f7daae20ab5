//! How many threads are worth having.
//!
//! A thread that the system takes off its core in the middle of a piece holds up the others until it is back. Beside busy
//! neighbours that happens every few milliseconds, and two threads may get less done than one. So the work that gets done
//! is measured, and a team that does less than half of what it could is halved, for as long as the half does no worse.

use std::time::Duration;

/// Time of use that is judged at once: several slices of a scheduler.
const WINDOW: Duration = Duration::from_millis(50);

/// Windows between two trials of another size, at first and at most: a trial that loses half costs 3 % at most.
const FIRST_GAP: u32 = 2;
const LONGEST_GAP: u32 = 16;

/// Weight of the newest window in the rate of a size.
const NEWEST: f64 = 0.3;

/// What the threads of a pool did in some time of use.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// Time that passed.
    pub(crate) wall: Duration,
    /// Time that the calling thread was on a core and did not wait for others.
    pub(crate) core: Duration,
    /// Pieces of jobs that were shared out. What is not is too small to count.
    pub(crate) pieces: u32,
    /// Pieces of them that the calling thread ran.
    pub(crate) own: u32,
}

impl Work {
    fn add(&mut self, more: Self) {
        self.wall += more.wall;
        self.core += more.core;
        self.pieces += more.pieces;
        self.own += more.own;
    }

    /// Threads' worth of work that got done: with pieces of one size, what all of them would have taken the caller alone,
    /// over the time that they took. At most 1 for one thread.
    fn rate(&self) -> f64 {
        let share = f64::from(self.own.max(1)) / f64::from(self.pieces.max(1));
        self.core.as_secs_f64() / share.min(1.0) / self.wall.as_secs_f64()
    }
}

/// The size of a team: chosen by the work that got done, tried anew every now and then.
#[derive(Clone, Debug)]
pub(crate) struct Team {
    /// Sizes to choose from, each half of the next.
    sizes: Vec<usize>,
    /// The rate of each, as far as it is known.
    rates: Vec<Option<f64>>,
    /// The best known of them.
    chosen: usize,
    /// The one at work.
    current: usize,
    window: Work,
    /// Windows since the last trial, and how many there are to be.
    since: u32,
    gap: u32,
}

impl Team {
    /// All of so many threads.
    pub(crate) fn new(threads: usize) -> Self {
        let mut sizes: Vec<usize> =
            std::iter::successors(Some(threads.max(1)), |&size| (size > 1).then_some(size / 2)).collect();
        sizes.reverse();
        let last = sizes.len() - 1;
        Self {
            rates: vec![None; sizes.len()],
            sizes,
            chosen: last,
            current: last,
            window: Work::default(),
            since: 0,
            gap: FIRST_GAP,
        }
    }

    /// Threads that are to work.
    pub(crate) fn size(&self) -> usize {
        self.sizes[self.current]
    }

    /// Takes note of what was done with [`size`](Self::size) threads.
    pub(crate) fn note(&mut self, work: Work) {
        self.window.add(work);
        if self.window.wall >= WINDOW {
            let rate = std::mem::take(&mut self.window).rate();
            self.judge(rate);
        }
    }

    fn judge(&mut self, rate: f64) {
        let known = &mut self.rates[self.current];
        *known = Some(known.map_or(rate, |known| known + NEWEST * (rate - known)));
        if self.current != self.chosen {
            self.end_trial();
        } else if let Some(other) = self.next_trial(rate) {
            self.current = other;
        }
    }

    /// The better of two sizes goes on, or the smaller of two that get the same done. The longer it has been the better one,
    /// the later is the next trial.
    fn end_trial(&mut self) {
        self.since = 0;
        let (now, before) = (self.rates[self.current], self.rates[self.chosen]);
        if now > before || (now == before && self.current < self.chosen) {
            self.chosen = self.current;
            self.gap = FIRST_GAP;
        } else {
            self.current = self.chosen;
            self.gap = (self.gap * 2).min(LONGEST_GAP);
        }
    }

    /// The size to try now, if any: fewer threads where even they could do more, else more.
    fn next_trial(&mut self, rate: f64) -> Option<usize> {
        self.since += 1;
        if self.since < self.gap {
            return None;
        }
        let fewer = self.chosen.checked_sub(1);
        fewer
            .filter(|&fewer| rate < self.sizes[fewer] as f64)
            .or_else(|| Some(self.chosen + 1).filter(|&more| more < self.sizes.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window in which this many threads' worth of work got done by a team of `size`.
    fn window(size: usize, rate: f64) -> Work {
        let own = 1_000;
        Work {
            wall: WINDOW,
            core: WINDOW.mul_f64(rate / size as f64),
            pieces: own * size as u32,
            own,
        }
    }

    /// Sizes at work during so many windows on a machine where each gets this done.
    fn play(team: &mut Team, windows: usize, rate: impl Fn(usize, usize) -> f64) -> Vec<usize> {
        (0..windows)
            .map(|index| {
                let size = team.size();
                team.note(window(size, rate(size, index)));
                size
            })
            .collect()
    }

    fn share(sizes: &[usize], size: usize) -> f64 {
        sizes.iter().filter(|&&one| one == size).count() as f64 / sizes.len() as f64
    }

    #[test]
    fn a_rate_is_the_work_that_got_done() {
        // Half of the pieces were the worker's, and the caller was on a core for 30 of 50 milliseconds.
        let work = Work {
            wall: Duration::from_millis(50),
            core: Duration::from_millis(30),
            pieces: 200,
            own: 100,
        };
        assert!((work.rate() - 1.2).abs() < 1e-9);
        assert!((window(2, 1.5).rate() - 1.5).abs() < 1e-9);
    }

    #[test]
    fn on_a_quiet_machine_all_threads_work_all_the_time() {
        for threads in [1, 2, 3, 8] {
            let mut team = Team::new(threads);
            let sizes = play(&mut team, 500, |size, _| 0.9 * size as f64);
            assert!(
                sizes.iter().all(|size| *size == threads),
                "{threads} threads: {sizes:?}"
            );
        }
    }

    #[test]
    fn beside_neighbours_that_hold_two_threads_up_one_goes_on() {
        let mut team = Team::new(2);
        // Luck changes from window to window.
        let luck = |index: usize| [0.8, 1.2, 1.0, 0.9, 1.1][index % 5];
        let sizes = play(&mut team, 500, |size, index| [0.66, 0.5][size - 1] * luck(index));
        assert!(share(&sizes, 1) > 0.9, "{}", share(&sizes, 1));
        // Where two still do more than one would, they stay.
        let mut team = Team::new(2);
        let sizes = play(&mut team, 500, |size, index| [0.5, 0.8][size - 1] * luck(index));
        assert!(share(&sizes, 2) > 0.9, "{}", share(&sizes, 2));
    }

    #[test]
    fn all_threads_work_again_once_the_neighbours_are_gone() {
        let mut team = Team::new(2);
        play(&mut team, 200, |size, _| [0.66, 0.5][size - 1]);
        assert_eq!(team.sizes[team.chosen], 1);
        let sizes = play(&mut team, 60, |size, _| 0.95 * size as f64);
        assert!(sizes[40..].iter().all(|&size| size == 2), "{sizes:?}");
    }

    #[test]
    fn a_large_team_shrinks_to_the_cores_that_are_free() {
        let mut team = Team::new(16);
        // Four cores are free; on the others a neighbour holds everything up.
        let rate = |size: usize, _| if size <= 4 { 0.95 * size as f64 } else { 2.0 };
        let sizes = play(&mut team, 500, rate);
        assert!(share(&sizes[100..], 4) > 0.9, "{}", share(&sizes[100..], 4));
    }

    #[test]
    fn little_work_is_not_judged() {
        let mut team = Team::new(2);
        for _ in 0..1_000 {
            let Work { wall, core, .. } = window(2, 0.1);
            team.note(Work {
                wall: wall / 1_024,
                core: core / 1_024,
                pieces: 2,
                own: 1,
            });
        }
        assert_eq!(team.size(), 2);
        play(&mut team, 3, |_, _| 0.1);
        assert_eq!(team.size(), 1);
    }
}
