//! Latency histograms without locks.
//!
//! Buckets are log-linear: each power of two is divided into 16, so a quantile is at most 6 % above the true value.
//! Recording takes two atomic operations, so every thread may record every operation.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use serde::Serialize;

/// Sub-buckets of a power of two.
const STEPS: u64 = 16;

/// Powers of two covered above the first `STEPS` nanoseconds: up to 2^40 ns, about 18 minutes.
const POWERS: u64 = 37;

/// A histogram of durations.
#[derive(Debug)]
pub(crate) struct Histogram {
    buckets: Box<[AtomicU64]>,
    max_ns: AtomicU64,
}

/// A histogram in figures, all in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Quantiles {
    /// How many durations were recorded.
    pub count: u64,
    /// Half of them were no longer than this.
    pub p50: f64,
    /// 99 of 100 were no longer than this.
    pub p99: f64,
    /// 999 of 1000 were no longer than this.
    pub p999: f64,
    /// The longest duration.
    pub max: f64,
}

impl Default for Histogram {
    fn default() -> Self {
        let buckets = (0..STEPS * (POWERS + 1)).map(|_| AtomicU64::new(0)).collect();
        Self { buckets, max_ns: AtomicU64::new(0) }
    }
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let last = self.buckets.len() - 1;
        self.buckets[bucket(ns).min(last)].fetch_add(1, Relaxed);
        self.max_ns.fetch_max(ns, Relaxed);
    }

    /// The figures now.
    pub fn quantiles(&self) -> Quantiles {
        let counts: Vec<u64> = self.buckets.iter().map(|b| b.load(Relaxed)).collect();
        let count: u64 = counts.iter().sum();
        let max_ns = self.max_ns.load(Relaxed);
        let micros = |ns: u64| ns as f64 / 1000.0;
        let quantile = |q: f64| {
            let rank = ((count as f64 * q).ceil() as u64).max(1);
            let mut seen = 0;
            let at = counts.iter().position(|&c| {
                seen += c;
                seen >= rank
            });
            micros(at.map_or(0, upper_end).min(max_ns))
        };
        Quantiles { count, p50: quantile(0.5), p99: quantile(0.99), p999: quantile(0.999), max: micros(max_ns) }
    }
}

fn bucket(ns: u64) -> usize {
    let index = if ns < STEPS {
        ns
    } else {
        let power = u64::from(ns.ilog2() - STEPS.ilog2());
        STEPS * (power + 1) + (ns >> power) - STEPS
    };
    index as usize
}

/// The largest number of nanoseconds that falls into a bucket.
fn upper_end(index: usize) -> u64 {
    let index = index as u64;
    if index < STEPS {
        return index;
    }
    let (power, step) = (index / STEPS - 1, index % STEPS);
    ((STEPS + step + 1) << power) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_falls_into_a_bucket_that_ends_at_most_a_sixteenth_above_it() {
        for ns in (0..100_000u64).chain((17..40).map(|p| (1 << p) + 12_345)) {
            let end = upper_end(bucket(ns));
            assert!(end >= ns && end - ns <= ns / 16, "{ns} ns in a bucket that ends at {end}");
            assert!(ns == 0 || bucket(ns) >= bucket(ns - 1));
        }
    }

    #[test]
    fn quantiles_of_a_thousand_durations() {
        let histogram = Histogram::default();
        assert_eq!(histogram.quantiles(), Quantiles::default());
        (1..=1000).for_each(|us| histogram.record(Duration::from_micros(us)));
        let q = histogram.quantiles();
        assert_eq!((q.count, q.max), (1000, 1000.0));
        for (quantile, exact) in [(q.p50, 500.0), (q.p99, 990.0), (q.p999, 999.0)] {
            assert!(quantile >= exact && quantile <= exact * 1.0625, "{quantile} for {exact}");
        }
    }
}
