//! A byte budget per second, shared by background jobs.
//!
//! A token bucket. It fills at the chosen rate and holds at most a tenth of a second's worth, so a job that begins
//! after a pause does not burst. A job that takes more than there is sleeps until the debt is paid, without spinning.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crate::Clock;

/// The longest sleep before a job checks whether to continue: closing a database waits for it.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// Bytes per second, shared by background jobs.
#[derive(Debug)]
pub struct RateBudget {
    clock: Arc<dyn Clock>,
    bucket: Mutex<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    bytes_per_second: Option<u64>,
    /// When everything granted so far is paid for.
    paid_at: Duration,
    waited: Duration,
}

impl RateBudget {
    /// A budget of `bytes_per_second`; `None`: unlimited.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, bytes_per_second: Option<u64>) -> Self {
        Self { clock, bucket: Mutex::new(Bucket { bytes_per_second, paid_at: Duration::ZERO, waited: Duration::ZERO }) }
    }

    /// Takes `bytes`, waiting until the budget allows it or `go_on` returns an error.
    ///
    /// # Errors
    /// Those of `go_on`, which is called before each step of the wait.
    pub fn acquire<E>(&self, bytes: u64, go_on: impl Fn() -> Result<(), E>) -> Result<(), E> {
        let mut left = self.take(bytes);
        while !left.is_zero() {
            go_on()?;
            let step = left.min(SLEEP_MAX);
            self.clock.sleep(step);
            left -= step;
        }
        Ok(())
    }

    /// Takes `bytes` and returns how long to wait for them.
    fn take(&self, bytes: u64) -> Duration {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(rate) = bucket.bytes_per_second else { return Duration::ZERO };
        let now = self.clock.now();
        let earliest = now.saturating_sub(Duration::from_millis(100));
        let cost = Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
        bucket.paid_at = bucket.paid_at.max(earliest) + cost;
        let wait = bucket.paid_at.saturating_sub(now);
        bucket.waited += wait;
        wait
    }

    /// Changes the rate; `None`: unlimited.
    pub fn set_rate(&self, bytes_per_second: Option<u64>) {
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner).bytes_per_second = bytes_per_second;
    }

    /// The total time that callers have waited.
    pub fn waited(&self) -> Duration {
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner).waited
    }
}
