//! The stale estimate: how many bytes of values are dead although it is not known which. Newer versions have
//! overwritten them, and no rewrite has read both yet.
//!
//! ```text
//! commits overwrite some (estimated by sample) ─▶ + ┐
//! rewrites drop what they find stale ──────────▶ - ├─ never more than is above the largest sorted run
//! ```
//!
//! Both are approximate: a filter may say that a new key exists, and a snapshot keeps what is stale. The bound is
//! exact, and it is near nothing after a rewrite of everything, so an error does not outlast the next one.

use crate::placement::SpacePressure;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The share of the garbage allowed by the space target that is always stale: half of what there is at the next
/// rewrite. With this share GC takes files when they are about 0.6 valid. With a smaller share, less is copied
/// and the index is rewritten more often.
const STALE_SHARE: u64 = 5;

/// A rewrite must find this multiple of what it writes: index bytes cost more than copied values, and both copies
/// exist meanwhile.
const STALE_FOR_INDEX: u64 = 2;

/// No larger share is left stale.
const STALE_SHARE_MAX: u64 = 2;

/// When nothing known is worth collecting, this share is enough, and a fourth of the multiple.
const STALE_SHARE_IDLE: u64 = 8;

/// The account.
#[derive(Debug)]
pub struct StaleEstimate {
    bytes: AtomicU64,
}

impl StaleEstimate {
    /// The estimate for files with unknown history: as much as there may be.
    #[must_use]
    pub fn unknown() -> Self {
        Self { bytes: AtomicU64::new(u64::MAX) }
    }

    /// The estimate for a placement that waits for what merges find.
    #[must_use]
    pub fn none() -> Self {
        Self { bytes: AtomicU64::new(0) }
    }

    /// Commits have overwritten about so many bytes.
    pub fn add(&self, bytes: u64) {
        self.change(|stale| stale.saturating_add(bytes));
    }

    /// A rewrite has dropped so many bytes that were stale.
    pub fn subtract(&self, bytes: u64) {
        self.change(|stale| stale.saturating_sub(bytes));
    }

    /// The stale bytes, `bound` at most.
    #[must_use]
    pub fn below(&self, bound: u64) -> u64 {
        self.bytes.load(Relaxed).min(bound)
    }

    /// As [`StaleEstimate::below`], and stops counting what cannot be there.
    pub fn keep_below(&self, bound: u64) -> u64 {
        self.bytes.fetch_min(bound, Relaxed).min(bound)
    }

    fn change(&self, next: impl Fn(u64) -> u64) {
        let _always_changed = self.bytes.fetch_update(Relaxed, Relaxed, |bytes| Some(next(bytes)));
    }
}

/// Decides whether the tables are rewritten to find out what is stale.
#[derive(Clone, Copy, Debug)]
pub struct RewriteCase {
    /// Stale bytes among the `known` bytes that count as live.
    pub stale: u64,
    /// See there.
    pub known: u64,
    /// The smallest valid share of a file, as far as known.
    pub valid: f64,
    /// Nothing known to be dead is worth collecting.
    pub is_idle: bool,
    /// Bytes of a full file: a rewrite does not look for less.
    pub file_bytes: u64,
}

impl RewriteCase {
    /// Whether enough is stale, and files would be worth collecting once it is known: their valid share would be
    /// below `threshold` if all files were equally stale.
    #[must_use]
    pub fn is_due(&self, pressure: &SpacePressure, threshold: f64) -> bool {
        let slack = ((self.known - self.stale) as f64 * (pressure.target - 1.0)) as u64;
        let for_index = STALE_FOR_INDEX * pressure.index_bytes;
        let enough = match self.is_idle {
            true => (slack / STALE_SHARE_IDLE).max(for_index / 4),
            false => (slack / STALE_SHARE).max(for_index),
        };
        let found = 1.0 - self.stale as f64 / self.known.max(1) as f64;
        self.stale > enough.min(slack / STALE_SHARE_MAX).max(self.file_bytes) && self.valid * found < threshold
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays so many random steps.
    fn play(stale: &StaleEstimate, mut draw: u64, steps: u64) {
        for _ in 0..steps {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let bytes = (draw >> 33) % 1000;
            match draw >> 62 {
                0 => stale.subtract(bytes),
                1 => assert_eq!(stale.keep_below(3 * bytes), stale.below(u64::MAX)),
                _ => stale.add(bytes),
            }
        }
    }

    /// Two accounts that differ are one from then on.
    #[test]
    fn a_bound_of_nothing_mends_all_errors_before_it() {
        for seed in 0..200 {
            let (one, other) = (StaleEstimate::unknown(), StaleEstimate::unknown());
            play(&one, seed, seed % 20);
            play(&other, seed + 1000, seed % 7);
            for stale in [&one, &other] {
                assert_eq!(stale.keep_below(0), 0);
                play(stale, seed + 2000, 20);
            }
            assert_eq!(one.below(u64::MAX), other.below(u64::MAX), "seed {seed}");
        }
    }

    #[test]
    fn nothing_is_known_at_first() {
        let stale = StaleEstimate::unknown();
        stale.add(5);
        assert_eq!(stale.below(70), 70);
        stale.subtract(u64::MAX / 2);
        assert_eq!(stale.below(70), 70, "of an unknown sum nothing is known after a part of it either");
        assert_eq!(stale.keep_below(70), 70);
        stale.subtract(30);
        stale.add(2);
        assert_eq!(stale.below(1000), 42);
        stale.subtract(43);
        assert_eq!(stale.below(1000), 0);
    }
}
