//! A byte budget per second, shared by background jobs.
//!
//! A bucket of tokens that fills at the chosen rate and holds at most a tenth of a second's worth, so that a job that
//! begins after a pause does not burst. Whoever takes more than there is sleeps until the debt is paid; no spinning.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crate::Clock;

/// Nobody sleeps for longer without asking whether there is any sense in it: whoever closes a database waits for this.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// Bytes per second for those who share it.
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
    /// A budget of so many bytes a second; `None`: unlimited.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, bytes_per_second: Option<u64>) -> Self {
        Self { clock, bucket: Mutex::new(Bucket { bytes_per_second, paid_at: Duration::ZERO, waited: Duration::ZERO }) }
    }

    /// Takes `bytes`, waiting until the budget allows it or `go_on` says that it is in vain.
    ///
    /// # Errors
    /// Those of `go_on`, which is asked before each part of the wait.
    pub fn acquire<E>(&self, bytes: u64, go_on: impl Fn() -> Result<(), E>) -> Result<(), E> {
        let mut left = self.take(bytes);
        while !left.is_zero() {
            go_on()?;
            let part = left.min(SLEEP_MAX);
            self.clock.sleep(part);
            left -= part;
        }
        Ok(())
    }

    /// Takes `bytes`; answers for how long that is to be waited for.
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

    /// How long callers have waited in all.
    pub fn waited(&self) -> Duration {
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner).waited
    }
}
