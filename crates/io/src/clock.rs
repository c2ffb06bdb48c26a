//! Time as the engine sees it.

use std::{
    fmt::Debug,
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
