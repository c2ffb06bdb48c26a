//! How many flushes run at once.
//!
//! Flushes that run at once share the disk and the processors, so each takes longer. Writers may go as fast as all of
//! them together write: as fast as one, times the number that ran meanwhile, on average.

use std::time::Duration;

/// The flushes that are running.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flushes {
    running: u32,
    most: u32,
    /// The sum of the time of all flushes up to `since`, in seconds.
    seconds: f64,
    since: Duration,
}

/// When a flush began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlushBegun {
    /// On the engine's clock.
    pub at: Duration,
    seconds: f64,
}

impl Flushes {
    fn go_on(&mut self, now: Duration) {
        self.seconds += f64::from(self.running) * now.saturating_sub(self.since).as_secs_f64();
        self.since = now.max(self.since);
    }

    /// One more.
    pub fn begin(&mut self, now: Duration) -> FlushBegun {
        self.go_on(now);
        self.running += 1;
        self.most = self.most.max(self.running);
        FlushBegun { at: now, seconds: self.seconds }
    }

    /// One less. Returns how many ran during that one, itself included, on average.
    pub fn end(&mut self, begun: FlushBegun, now: Duration) -> f64 {
        self.go_on(now);
        self.running -= 1;
        let time = now.saturating_sub(begun.at).as_secs_f64();
        if time > 0.0 { ((self.seconds - begun.seconds) / time).max(1.0) } else { 1.0 }
    }

    /// The most that have run at once.
    pub fn most(&self) -> u32 {
        self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_that_run_at_once_count_together() {
        let at = Duration::from_secs;
        let mut flushes = Flushes::default();
        let alone = flushes.begin(at(10));
        assert_eq!(flushes.end(alone, at(12)), 1.0);
        let (first, second) = (flushes.begin(at(20)), flushes.begin(at(20)));
        assert_eq!(flushes.end(first, at(22)), 2.0);
        assert_eq!(flushes.end(second, at(24)), 1.5, "half of the time it was alone");
        assert_eq!(flushes.most(), 2);
        let no_time = flushes.begin(at(30));
        assert_eq!(flushes.end(no_time, at(30)), 1.0);
    }
}
