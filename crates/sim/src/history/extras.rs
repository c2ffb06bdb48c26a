//! What a third of all histories has each: puts that expire, or operands of a merge operator.
//!
//! Entries expire in the far future, or have expired in the past, which deletes the key. The time itself does not move
//! between a history's operations: what a crash, a merge or GC does to an instant shows in the entries that are there
//! afterwards. Tests of `bifold` (`tests/all/expiry.rs`) let the time pass.
//!
//! Nothing expires in a keyspace with a merge operator, so a history has one of both, and its option sets are told.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{History, Op, Write};
use crate::{random::Random, value};

/// When an entry expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// It has expired.
    Past,
    /// Long after every run.
    Far,
}

/// What else a history has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extras {
    /// Nothing.
    None,
    /// A third of all puts have an instant.
    Instants,
    /// A third of all puts are operands, and every keyspace has a merge operator.
    Operands,
}

impl Until {
    /// The beginning of 1971, or of the year 9000.
    #[must_use]
    pub fn moment(self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(if self == Self::Past { 31_536_000 } else { 221_845_392_000 })
    }
}

impl Extras {
    /// Those of the history of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        Random::new(seed, "extras").pick(&[Self::None, Self::Instants, Self::Operands])
    }

    fn change(self, random: &mut Random, write: Write) -> Write {
        match (self, write) {
            (Self::Instants, Write::Put(name, key, value)) if random.below(3) == 0 => {
                Write::PutUntil(name, key, value, random.pick(&[Until::Past, Until::Far, Until::Far, Until::Far]))
            }
            (Self::Operands, Write::Put(name, key, value)) if random.below(3) == 0 => {
                Write::Merge(name, key, value.at_least(value::OPERAND_BYTES_MIN))
            }
            (_, other) => other,
        }
    }
}

impl History {
    /// This history with those. Operations keep their positions.
    #[must_use]
    pub(super) fn with(self, extras: Extras) -> Self {
        let mut random = Random::new(self.seed, "which puts have extras");
        let mut changed = |write| extras.change(&mut random, write);
        let mut with_extras = |op| match op {
            Op::Write(write) => Op::Write(changed(write)),
            Op::Batch(durability, writes) => Op::Batch(durability, writes.into_iter().map(&mut changed).collect()),
            other => other,
        };
        Self { extras, ops: self.ops.into_iter().map(|(at, op)| (at, with_extras(op))).collect(), ..self }
    }
}
