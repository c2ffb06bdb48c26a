//! Time, real or simulated.

use std::{
    fmt::Debug,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// A monotonic clock that can also wait.
pub trait Clock: Send + Sync + Debug {
    /// Time since some fixed moment.
    fn now(&self) -> Duration;

    /// The same time from a clock that is cheaper to read and moves a few milliseconds at a time, so it may be that
    /// much behind; `None` without one.
    fn coarse_now(&self) -> Option<Duration> {
        None
    }

    /// Time since the beginning of 1970, as far as the system knows; simulated clocks say what [`Clock::now`] says.
    fn unix_now(&self) -> Duration {
        self.now()
    }

    /// Waits.
    fn sleep(&self, time: Duration);
}

/// The system's monotonic clock.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
    /// The same moment, on the system's clock that the coarse one follows.
    #[cfg(target_os = "linux")]
    start_of_coarse: Option<Duration>,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            #[cfg(target_os = "linux")]
            start_of_coarse: read(rustix::time::ClockId::Monotonic),
        }
    }
}

#[cfg(target_os = "linux")]
#[inline]
fn read(clock: rustix::time::ClockId) -> Option<Duration> {
    let now = rustix::time::clock_gettime(clock);
    Some(Duration::new(u64::try_from(now.tv_sec).ok()?, u32::try_from(now.tv_nsec).ok()?))
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    #[cfg(target_os = "linux")]
    fn coarse_now(&self) -> Option<Duration> {
        Some(read(rustix::time::ClockId::MonotonicCoarse)?.saturating_sub(self.start_of_coarse?))
    }

    fn unix_now(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// A clock that stands still until it is advanced, by hand or by a sleep. Clones show the same time. Its time of day is
/// the same, or one that is set by hand and stands still.
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    now: Arc<Mutex<Duration>>,
    /// [`Clock::unix_now`], if it was set.
    unix_now: Arc<Mutex<Option<Duration>>>,
}

impl ManualClock {
    /// Advances the clock.
    pub fn advance(&self, time: Duration) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        *now = now.saturating_add(time);
    }

    /// Sets the time of day, forward or back. It no longer advances then.
    pub fn set_unix(&self, time: Duration) {
        *self.unix_now.lock().unwrap_or_else(PoisonError::into_inner) = Some(time);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unix_now(&self) -> Duration {
        self.unix_now.lock().unwrap_or_else(PoisonError::into_inner).unwrap_or_else(|| self.now())
    }

    /// Advances the clock and returns at once.
    fn sleep(&self, time: Duration) {
        self.advance(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_advanced_and_for_all_clones() {
        let clock = ManualClock::default();
        let shared = clock.clone();
        assert_eq!(clock.now(), Duration::ZERO);
        clock.advance(Duration::from_secs(2));
        shared.sleep(Duration::from_millis(500));
        assert_eq!([clock.now(), shared.now()], [Duration::from_millis(2500); 2]);
        assert_eq!(clock.unix_now(), clock.now());
        shared.set_unix(Duration::from_secs(9));
        shared.advance(Duration::from_secs(1));
        assert_eq!([clock.unix_now(), clock.now()], [Duration::from_secs(9), Duration::from_millis(3500)]);
    }

    #[test]
    fn the_system_clock_never_goes_back() {
        let clock = SystemClock::default();
        let before = clock.now();
        clock.sleep(Duration::from_millis(1));
        assert!(clock.now() > before);
        let coarse = clock.coarse_now();
        clock.sleep(Duration::from_millis(30));
        assert!(clock.coarse_now() >= coarse);
        assert_eq!(coarse.is_some(), cfg!(target_os = "linux"));
        if let Some(coarse) = clock.coarse_now() {
            assert!(coarse <= clock.now(), "it is the same time, or earlier");
            assert!(coarse > Duration::ZERO && coarse + Duration::from_secs(1) > before);
        }
    }
}
