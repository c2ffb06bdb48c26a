//! How fast GC has freed space recently. Pure.

use std::time::Duration;

use super::rates::RATE_MIN;

/// The bytes a second that GC is assumed to free before the first measurement: about what it frees with values of
/// 1000 bytes, rewrites included, on two cores.
pub(super) const FREE_RATE_ASSUMED: u64 = 96 << 20;

/// The first GC runs outweigh the assumption once they have taken this many seconds.
const ASSUMED_SECONDS: f64 = 0.25;

/// What GC has freed is forgotten over this many seconds of GC.
const FREEING_SECONDS: f64 = 2.0;

/// What GC recently freed, and how long that took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Freeing {
    bytes: f64,
    seconds: f64,
}

/// The number of GC runs now, and since when their time has not been counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GcTime {
    pub(super) running: u32,
    since: Duration,
}

impl GcTime {
    pub fn begin(self, now: Duration) -> Self {
        Self { running: self.running + 1, since: if self.running == 0 { now } else { self.since } }
    }

    /// Also returns the time to be counted: that of concurrent runs only once.
    pub fn end(self, now: Duration) -> (Self, Duration) {
        (Self { running: self.running - 1, since: now }, now.saturating_sub(self.since))
    }
}

impl Default for Freeing {
    fn default() -> Self {
        Self { bytes: FREE_RATE_ASSUMED as f64 * ASSUMED_SECONDS, seconds: ASSUMED_SECONDS }
    }
}

impl Freeing {
    /// The state after one more run. Pure.
    pub fn and(self, bytes: f64, seconds: f64) -> Self {
        let kept = (-seconds / FREEING_SECONDS).exp();
        Self { bytes: self.bytes * kept + bytes, seconds: self.seconds * kept + seconds }
    }

    pub fn rate(self) -> f64 {
        (self.bytes / self.seconds).max(RATE_MIN)
    }
}
