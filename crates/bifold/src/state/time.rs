//! What time it is to entries that expire: the clock's time of day, which never goes back.
//!
//! The clock of the system may: it is set, or a machine starts with a wrong one. An entry that was once seen expired
//! must not come back, so the largest time seen counts. It is recorded with each edit of the manifest, in databases
//! where entries expire, and an opening begins with it. So whatever a job dropped, or a reader saw expired before the
//! last edit, stays expired.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bifold_contract::{Millis, SeqNo, expiry::INSTANT_MAX, key::MAX_SEQNO, planted};
use bifold_io::Clock;

/// The time of one database.
#[derive(Debug)]
pub(crate) struct Time {
    clock: Arc<dyn Clock>,
    seen: AtomicU64,
    /// Whether any keyspace has or had entries that expire. Until then nobody reads the clock for this.
    is_used: AtomicBool,
}

impl Time {
    /// It is at least `seen`.
    pub fn new(clock: &Arc<dyn Clock>, seen: Millis) -> Self {
        Self { clock: Arc::clone(clock), seen: AtomicU64::new(seen), is_used: AtomicBool::new(false) }
    }

    /// From now on it is at least `seen`.
    pub fn is_past(&self, seen: Millis) {
        self.seen.fetch_max(seen, Ordering::AcqRel);
    }

    /// Now. Never less than any earlier answer.
    pub fn now(&self) -> Millis {
        let now = u64::try_from(self.clock.unix_now().as_millis()).unwrap_or(INSTANT_MAX).min(INSTANT_MAX);
        if planted!("time_goes_back") {
            return now;
        }
        // Most calls within a millisecond only read.
        match self.seen.load(Ordering::Acquire) {
            seen if seen >= now => seen,
            _ => self.seen.fetch_max(now, Ordering::AcqRel).max(now),
        }
    }

    /// From now on entries may expire. Called before the first of them is committed.
    pub fn is_needed(&self) {
        self.is_used.store(true, Ordering::Release);
    }

    /// Now, if entries may expire.
    pub fn if_used(&self) -> Option<Millis> {
        self.is_used.load(Ordering::Acquire).then(|| self.now())
    }
}

/// What a read sees: commits up to a number, without entries that have expired.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight {
    /// The last commit.
    pub seqno: SeqNo,
    /// When an entry counts as expired.
    pub time: ReadTime,
}

/// The time with which a read looks at entries that expire.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReadTime {
    /// That of the clock when such an entry is met.
    Now,
    /// This one.
    At(Millis),
    /// None: what has expired is still there to GC, and to whoever has decided already.
    Never,
}

impl Sight {
    /// Commits up to `seqno` as they are now.
    pub fn now(seqno: SeqNo) -> Self {
        Self { seqno, time: ReadTime::Now }
    }

    /// The newest version of each key, expired or not.
    pub const STORED: Self = Self { seqno: MAX_SEQNO, time: ReadTime::Never };
}

/// When something expires that lives for `ttl` from `now` on: a part of a millisecond counts as a whole one. `None`:
/// never, if that is later than any instant that can be stored.
pub(crate) fn instant_after(now: Millis, ttl: Duration) -> Option<Millis> {
    let ttl = u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    // No entry has instant 0, which is before all time.
    now.checked_add(ttl).filter(|&instant| instant <= INSTANT_MAX).map(|instant| instant.max(1))
}

/// The instant of a moment, rounded up.
pub(crate) fn instant_of(moment: SystemTime) -> Option<Millis> {
    instant_after(0, moment.duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// The moment of an instant.
pub(crate) fn moment_of(instant: Millis) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(instant)
}

#[cfg(test)]
mod tests {
    use bifold_io::ManualClock;

    use super::*;

    #[test]
    fn time_never_goes_back() {
        let clock = ManualClock::default();
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        let time = Time::new(&shared, 5000);
        clock.set_unix(Duration::from_secs(3));
        assert_eq!((time.now(), time.if_used()), (5000, None));
        time.is_needed();
        clock.set_unix(Duration::from_secs(7));
        assert_eq!((time.now(), time.if_used()), (7000, Some(7000)));
        clock.set_unix(Duration::from_secs(6));
        assert_eq!((time.now(), time.if_used()), (7000, Some(7000)));
    }

    #[test]
    fn instants_are_rounded_up_and_never_overflow() {
        assert_eq!(instant_after(1000, Duration::from_micros(1)), Some(1001));
        assert_eq!(instant_after(1000, Duration::from_millis(5)), Some(1005));
        assert_eq!(instant_after(1000, Duration::ZERO), Some(1000));
        assert_eq!(instant_after(0, Duration::ZERO), Some(1));
        assert_eq!(instant_after(1000, Duration::MAX), None);
        assert_eq!(instant_after(INSTANT_MAX, Duration::ZERO), Some(INSTANT_MAX));
        assert_eq!(instant_after(INSTANT_MAX, Duration::from_nanos(1)), None);
        assert_eq!(instant_of(moment_of(1_764_000_000_123)), Some(1_764_000_000_123));
        assert_eq!(instant_of(UNIX_EPOCH - Duration::from_secs(1)), Some(1));
    }
}
