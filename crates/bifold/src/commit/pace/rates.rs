//! The rates that debt, memtables and space allow. Pure.

/// Debt (see `CompactionPolicy::debt`) from which writers are slowed: with a trigger of 8 level-0 runs, 16 runs.
pub const DEBT_SLOW: f64 = 3.0;

/// Below this debt writers are no longer slowed.
pub const DEBT_FREE: f64 = 2.5;

/// The lowest rate, in bytes a second, that debt alone can impose.
pub const RATE_MIN: f64 = 4.0 * 1024.0 * 1024.0;

/// From this fullness of the space target on only a trickle is allowed.
pub const SPACE_FULL: f64 = 0.98;

/// The trickle, in bytes a second: the excess over the target then takes two seconds or more to grow by a hundredth.
pub const TRICKLE_RATE: f64 = 256.0 * 1024.0;

/// Sleeps end later than asked, short ones by half their time. Up to so many nanoseconds of that count for the next
/// delays: otherwise writers would be slowed more than the pace asks for.
const CREDIT_NS_MAX: u64 = 1_000_000;

/// When all delays are over, in nanoseconds, once `cost_ns` more is owed and the others are over at `free_at_ns`.
pub fn free_after(free_at_ns: u64, now_ns: u64, cost_ns: u64) -> u64 {
    free_at_ns.max(now_ns.saturating_sub(CREDIT_NS_MAX)) + cost_ns
}

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

/// The bytes a second that space allows at this fullness while GC frees `free_rate`; `None` means any.
pub fn space_rate(fullness: f64, free_rate: f64) -> Option<f64> {
    match fullness {
        f if f < 0.90 => None,
        f if f < 0.95 => Some((4.0 - 60.0 * (f - 0.90)) * free_rate),
        f if f < SPACE_FULL => Some((1.0 - 15.0 * (f - 0.95)) * free_rate),
        _ => Some(TRICKLE_RATE),
    }
}
