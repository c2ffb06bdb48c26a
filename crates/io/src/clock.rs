//! Time, real or simulated.

use std::{
    fmt::Debug,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// A monotonic clock that can also wait.
pub trait Clock: Send + Sync + Debug {
    /// Time since some fixed moment.
    fn now(&self) -> Duration;

    /// Waits.
    fn sleep(&self, time: Duration);
}

/// The system's monotonic clock.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// A clock that stands still until it is advanced, by hand or by a sleep. Clones show the same time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    now: Arc<Mutex<Duration>>,
}

impl ManualClock {
    /// Advances the clock.
    pub fn advance(&self, time: Duration) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        *now = now.saturating_add(time);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner)
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
    }

    #[test]
    fn the_system_clock_never_goes_back() {
        let clock = SystemClock::default();
        let before = clock.now();
        clock.sleep(Duration::from_millis(1));
        assert!(clock.now() > before);
    }
}
