//! The rates that debt, memtables and space allow. Pure.

use crate::limits::space::Fullness;

/// Debt (see `CompactionPolicy::debt`) from which writers are slowed: with a trigger of 8 level-0 runs, 16 runs.
pub const DEBT_SLOW: f64 = 3.0;

/// Below this debt writers are no longer slowed.
pub const DEBT_FREE: f64 = 2.5;

/// The lowest rate, in bytes a second, that debt alone can impose.
pub const RATE_MIN: f64 = 4.0 * 1024.0 * 1024.0;

/// From this fullness of the space target's slack on writers are slowed: a little before GC starts.
pub const SPACE_SLOW: f64 = 0.70;

/// At this fullness writers go as fast as GC frees space.
const SPACE_EVEN: f64 = 0.85;

/// From this fullness on the rate falls by the same factor for each further thousandth.
pub const SPACE_FULL: f64 = 0.94;

/// From this fullness on, just below the target, only a trickle is allowed.
pub const SPACE_OVER: f64 = 0.98;

/// The trickle is at least so many bytes a second.
pub const TRICKLE_MIN: f64 = 256.0 * 1024.0;

/// What is written above the target takes so many seconds or more to grow by the whole slack, unless that is small.
const TRICKLE_SECONDS: f64 = 100.0;

/// And GC, as fast as it was recently, frees so many times as much.
const TRICKLE_SHARE: f64 = 16.0;

/// The next rate that debt allows; 0 means any.
pub fn next_rate(rate: f64, ingest_rate: f64, debt: f64, last_debt: f64) -> f64 {
    let limited = rate > 0.0;
    if debt < DEBT_FREE || (!limited && debt < DEBT_SLOW) {
        0.0
    } else if !limited {
        (ingest_rate * 0.9).max(RATE_MIN)
    } else if debt >= last_debt {
        (rate * 0.9).max(RATE_MIN)
    } else {
        rate * 1.1
    }
}

/// The rate that memtables allow when `x` of them are filled, as a multiple of the rate of writing them; `None` means
/// any.
pub fn memtable_rate(x: f64) -> Option<f64> {
    match x {
        x if x < 1.5 => None,
        x if x < 2.5 => Some(4.0 - 3.0 * (x - 1.5)),
        x => Some((1.0 - 0.4 * (x - 2.5)).max(0.8)),
    }
}

/// The bytes a second that are allowed while space is full.
fn trickle(slack_bytes: u64, free_rate: f64) -> f64 {
    (slack_bytes as f64 / TRICKLE_SECONDS).min(free_rate / TRICKLE_SHARE).max(TRICKLE_MIN)
}

/// The bytes a second that space allows at this fullness while GC frees `free_rate`; `None` means any.
pub fn space_rate(fullness: Fullness, free_rate: f64) -> Option<f64> {
    let lowest = trickle(fullness.slack_bytes, free_rate);
    match fullness.share {
        f if f < SPACE_SLOW => None,
        f if f < SPACE_EVEN => Some((1.0 + 20.0 * (SPACE_EVEN - f)) * free_rate),
        f if f < SPACE_FULL => Some((1.0 - 5.0 * (f - SPACE_EVEN)) * free_rate),
        f if f < SPACE_OVER => {
            let highest = (1.0 - 5.0 * (SPACE_FULL - SPACE_EVEN)) * free_rate;
            let share = (f - SPACE_FULL) / (SPACE_OVER - SPACE_FULL);
            Some(highest * (lowest / highest).min(1.0).powf(share))
        }
        _ => Some(lowest),
    }
}
