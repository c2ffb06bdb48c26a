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

/// What the puts of a history have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Puts {
    /// Nothing else.
    #[default]
    Plain,
    /// A third of them have an instant.
    Instants,
    /// A third of them are operands, and every keyspace has a merge operator.
    Operands,
}

/// What else a history has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// In its puts.
    pub puts: Puts,
    /// Ingests.
    pub ingests: bool,
    /// Large values.
    pub large: bool,
    /// A change feed.
    pub feed: bool,
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
        let puts = Random::new(seed, "extras").pick(&[Puts::Plain, Puts::Instants, Puts::Operands]);
        let ways = Random::new(seed, "ways").below(5);
        let feed = ways == 4;
        // Sampled separately, so that old seeds that found a bug still find it.
        let in_feed = |what| feed && Random::new(seed, what).below(2) == 0;
        let ingests = [1, 2].contains(&ways) || in_feed("ingests in the feed");
        let large = [2, 3].contains(&ways) || in_feed("large values in the feed");
        Self { puts, ingests, large, feed }
    }

    /// These without large values, for tests whose effort grows with the bytes of a database.
    #[must_use]
    pub fn without_large(self) -> Self {
        Self { large: false, ..self }
    }

    /// This put as one that has them, perhaps.
    pub(super) fn change(self, random: &mut Random, write: Write) -> Write {
        match (self.puts, write) {
            (Puts::Instants, Write::Put(name, key, value)) if random.below(3) == 0 => {
                Write::PutUntil(name, key, value, random.pick(&[Until::Past, Until::Far, Until::Far, Until::Far]))
            }
            (Puts::Operands, Write::Put(name, key, value)) if random.below(3) == 0 => {
                Write::Merge(name, key, value.at_least(value::OPERAND_BYTES_MIN))
            }
            (_, other) => other,
        }
    }
}

impl History {
    /// This history with what its puts have. Operations keep their positions.
    #[must_use]
    pub(super) fn with_extra_puts(self) -> Self {
        let (extras, mut random) = (self.extras, Random::new(self.seed, "which puts have extras"));
        let mut changed = |write| extras.change(&mut random, write);
        let mut with_extras = |op| match op {
            Op::Write(write) => Op::Write(changed(write)),
            Op::Batch(durability, writes) => Op::Batch(durability, writes.into_iter().map(&mut changed).collect()),
            other => other,
        };
        Self { ops: self.ops.into_iter().map(|(at, op)| (at, with_extras(op))).collect(), ..self }
    }
}
