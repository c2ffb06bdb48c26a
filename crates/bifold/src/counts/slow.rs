//! What slow commits waited for.
//!
//! ```text
//! commit ─▶ laps: a coarse clock is read after a step that has waited, sealed or looked, and after each that writes
//!           └─ took SLOW or longer and is among the slowest ─▶ kept with its laps, for the statistics
//! ```
//!
//! A read takes 5 ns and is exact to a tick of 1 to 10 ms. A precise clock costs four times as much, and a commit is a
//! microsecond of work: it reads the coarse one once, or twice where values are separated. What no step accounts for
//! is the insertion into memtables. Where the system has no coarse clock, as in simulations, laps are empty.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bifold_io::clock::Clock;

use crate::waiting::sync::LockExt;

/// Shorter commits are not kept.
const SLOW: Duration = Duration::from_millis(5);

/// What no step accounts for may be due to ticks of the coarse clock, up to this.
const TICK_MAX: Duration = Duration::from_millis(10);

/// How many are kept.
const KEPT: usize = 16;

/// A step of a commit that can be slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Looking at the free space of the disk, and the wait that the pace imposes.
    Pace,
    /// The wait for the commit lock.
    Lock,
    /// The check of a conditional commit, and sealing full memtables, with a new log.
    Seal,
    /// Appending values to their files.
    Values,
    /// Appending to the log.
    Log,
    /// Insertion into memtables.
    Memtable,
    /// Looking at the space that values take.
    Space,
    /// A sync of logs and values.
    Sync,
}

impl Step {
    const ALL: [Self; 8] =
        [Self::Pace, Self::Lock, Self::Seal, Self::Values, Self::Log, Self::Memtable, Self::Space, Self::Sync];

    /// Its name in statistics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pace => "pace",
            Self::Lock => "commit lock",
            Self::Seal => "seal",
            Self::Values => "values",
            Self::Log => "log",
            Self::Memtable => "memtable",
            Self::Space => "space",
            Self::Sync => "sync",
        }
    }
}

/// The time that each step of one commit has taken so far.
pub(crate) struct Laps<'c> {
    clock: &'c dyn Clock,
    last: Duration,
    micros: [u32; Step::ALL.len()],
}

impl<'c> Laps<'c> {
    /// A commit begins, at this time of the clock.
    pub fn begin(clock: &'c dyn Clock, now: Duration) -> Self {
        Self { clock, last: now, micros: [0; Step::ALL.len()] }
    }

    /// The step has ended that began at the end of the one before. It can only have been slow if it `did` something.
    #[inline]
    pub fn end_if(&mut self, step: Step, did: bool) {
        if did {
            self.end(step);
        }
    }

    /// The step has ended that began at the end of the one before.
    #[inline]
    pub fn end(&mut self, step: Step) {
        if let Some(now) = self.clock.coarse_now()
            && now > self.last
        {
            self.add(step, now - self.last);
            self.last = now;
        }
    }

    fn add(&mut self, step: Step, time: Duration) {
        let micros = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        self.micros[step as usize] = self.micros[step as usize].saturating_add(micros);
    }
}

/// A slow commit.
#[derive(Clone, Debug)]
pub(crate) struct SlowCommit {
    /// When it began, on the engine's clock.
    pub begin: Duration,
    pub time: Duration,
    /// What each step took of it, without those that took less than a tick of the coarse clock.
    pub steps: Vec<(Step, Duration)>,
}

/// The slowest commits since the database was opened.
#[derive(Debug, Default)]
pub(crate) struct SlowCommits {
    /// Commits that took no longer are of no interest any more, in nanoseconds.
    least_ns: AtomicU64,
    kept: Mutex<Vec<SlowCommit>>,
}

impl SlowCommits {
    /// A commit that began at `begin` has taken `time`.
    #[inline]
    pub fn note(&self, begin: Duration, time: Duration, mut laps: Laps<'_>) {
        if time >= SLOW && time.as_nanos() > u128::from(self.least_ns.load(Relaxed)) {
            let rest = (begin + time).saturating_sub(laps.last);
            if laps.clock.coarse_now().is_some() {
                laps.add(Step::Memtable, if rest < TICK_MAX { Duration::ZERO } else { rest });
            }
            self.keep(begin, time, &laps);
        }
    }

    #[cold]
    fn keep(&self, begin: Duration, time: Duration, laps: &Laps<'_>) {
        let taken = |step: Step| Duration::from_micros(u64::from(laps.micros[step as usize]));
        let all: Duration = Step::ALL.into_iter().map(taken).sum();
        debug_assert!(all <= time, "steps of {all:?} in a commit of {time:?}: do the clocks begin at the same moment?");
        let steps = Step::ALL.into_iter().map(|step| (step, taken(step))).filter(|(_, time)| !time.is_zero()).collect();
        let mut kept = self.kept.hold();
        let at = kept.partition_point(|other| other.time >= time);
        kept.insert(at, SlowCommit { begin, time, steps });
        kept.truncate(KEPT);
        if let (KEPT, Some(least)) = (kept.len(), kept.last()) {
            self.least_ns.store(u64::try_from(least.time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        }
    }

    /// The slowest first.
    pub fn slowest(&self) -> Vec<SlowCommit> {
        self.kept.hold().clone()
    }
}

#[cfg(test)]
mod tests {
    use bifold_io::clock::ManualClock;

    use super::*;

    /// A manual clock that is its own coarse one.
    #[derive(Debug, Default)]
    struct Coarse(ManualClock);

    impl Clock for Coarse {
        fn now(&self) -> Duration {
            self.0.now()
        }

        fn coarse_now(&self) -> Option<Duration> {
            Some(self.0.now())
        }

        fn sleep(&self, time: Duration) {
            self.0.sleep(time);
        }
    }

    #[test]
    fn the_slowest_are_kept_with_what_they_waited_for() {
        let (clock, slow) = (Coarse::default(), SlowCommits::default());
        for ms in (1..=40).chain([7, 3]) {
            let (begin, mut laps) = (clock.now(), Laps::begin(&clock, clock.now()));
            laps.end(Step::Lock);
            clock.sleep(Duration::from_millis(ms));
            laps.end(Step::Log);
            clock.sleep(Duration::from_millis(1));
            laps.end(Step::Memtable);
            slow.note(begin, clock.now() - begin, laps);
        }
        let kept = slow.slowest();
        assert_eq!(
            kept.iter().map(|slow| slow.time.as_millis()).collect::<Vec<_>>(),
            (26..=41).rev().collect::<Vec<_>>()
        );
        assert_eq!(kept[0].steps, [(Step::Log, Duration::from_millis(40)), (Step::Memtable, Duration::from_millis(1))]);
    }

    #[test]
    fn without_a_coarse_clock_only_the_whole_is_known() {
        let (clock, slow) = (ManualClock::default(), SlowCommits::default());
        let mut laps = Laps::begin(&clock, clock.now());
        clock.sleep(Duration::from_secs(1));
        laps.end(Step::Log);
        slow.note(Duration::ZERO, clock.now(), laps);
        assert_eq!((slow.slowest()[0].time, slow.slowest()[0].steps.len()), (Duration::from_secs(1), 0));
    }
}
