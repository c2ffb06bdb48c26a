//! Puts of entries that expire: in the far future, or in the past, which deletes the key.
//!
//! The time itself does not move between a history's operations: what a crash, a merge or GC does to an instant shows
//! in the entries that are there afterwards. Tests of `bifold` (`tests/all/expiry.rs`) let the time pass.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{History, Op, Write};
use crate::random::Random;

/// When an entry expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// It has expired.
    Past,
    /// Long after every run.
    Far,
}

/// Of so many histories, one has entries that expire.
const HISTORIES: u64 = 3;

impl Until {
    /// The beginning of 1971, or of the year 9000.
    #[must_use]
    pub fn moment(self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(if self == Self::Past { 31_536_000 } else { 221_845_392_000 })
    }
}

impl History {
    /// This history, or one in three in which a third of all puts have an instant. Operations keep their positions.
    pub(super) fn perhaps_with_instants(self) -> Self {
        let mut random = Random::new(self.seed, "instants");
        if random.below(HISTORIES) > 0 {
            return self;
        }
        let mut until = |write: Write| match write {
            Write::Put(name, key, value) if random.below(3) == 0 => {
                Write::PutUntil(name, key, value, random.pick(&[Until::Past, Until::Far, Until::Far, Until::Far]))
            }
            other => other,
        };
        let mut with_instants = |op| match op {
            Op::Write(write) => Op::Write(until(write)),
            Op::Batch(durability, writes) => Op::Batch(durability, writes.into_iter().map(&mut until).collect()),
            other => other,
        };
        Self { ops: self.ops.into_iter().map(|(at, op)| (at, with_instants(op))).collect(), ..self }
    }
}
