//! A byte budget per second, shared by background jobs.
//!
//! A bucket of tokens that fills at the chosen rate and holds at most a tenth of a second's worth, so that a job that
//! begins after a pause does not burst. Whoever takes more than there is sleeps until the debt is paid; no spinning.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crate::Clock;

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

    /// Takes `bytes`, waiting until the budget allows it.
    pub fn acquire(&self, bytes: u64) {
        let wait = {
            let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(rate) = bucket.bytes_per_second else { return };
            let now = self.clock.now();
            let earliest = now.saturating_sub(Duration::from_millis(100));
            let cost = Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
            bucket.paid_at = bucket.paid_at.max(earliest) + cost;
            let wait = bucket.paid_at.saturating_sub(now);
            bucket.waited += wait;
            wait
        };
        if !wait.is_zero() {
            self.clock.sleep(wait);
        }
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
