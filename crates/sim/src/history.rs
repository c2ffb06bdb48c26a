//! Random histories: lists of operations that follow from a seed and can be printed, repeated and shortened.
//!
//! Keys come from a small set, so overwrites, deletes and range deletes collide all the time. Every value carries the
//! position of its operation, which does not change when other operations are left out. So a history is identified by
//! its seed and the positions kept.

mod display;
mod extras;
mod ingests;
mod large;
mod write;

use std::ops::Bound;

use bifold::Durability;

pub use self::{
    extras::{Extras, Puts, Until},
    ingests::End,
    write::Write,
};
use crate::{
    model::{Bounds, NAMES, Name, Variant},
    random::Random,
    value::Spec,
};

/// A key, by number; [`key_bytes`] returns its bytes.
pub type KeyNo = u16;

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// One write by a keyspace's own method, at the database's durability.
    Write(Write),
    /// A put, at the database's durability, of a value that is read piece by piece.
    PutReader(Name, KeyNo, Spec),
    /// An atomic batch.
    Batch(Durability, Vec<Write>),
    /// A compare-and-swap.
    Swap(Name, KeyNo, Expect, Option<Spec>),
    /// A point read.
    Get(Name, KeyNo),
    /// Several point reads from one moment.
    MultiGet(Name, Vec<KeyNo>),
    /// A scan.
    Scan(Name, Span, Way),
    /// All keys with the first bytes of this key, as many as given.
    Prefix(Name, KeyNo, usize),
    /// Opens a snapshot in a slot and replaces the one there.
    Snapshot(usize),
    /// Reads a whole keyspace and some keys through the snapshot of a slot.
    ReadSnapshot(usize, Name),
    /// Drops a slot's snapshot.
    DropSnapshot(usize),
    /// Opens an iterator in a slot and takes the first entry.
    OpenIterator(usize, Name),
    /// Reads a slot's iterator to its end.
    FinishIterator(usize, Way),
    /// Writes all memtables to tables.
    Flush,
    /// Compacts everything.
    Compact,
    /// Compacts a range of one keyspace.
    CompactRange(Name, Span),
    /// Makes everything committed so far durable.
    Sync,
    /// Copies the database, opens the copy and reads it.
    Checkpoint,
    /// Closes and opens the database.
    Reopen,
    /// Drops all handles without closing, and opens the database.
    Abandon,
    /// Creates a keyspace, or opens it.
    Create(Name),
    /// Drops a keyspace.
    Drop(Name),
    /// Changes the options of a keyspace to variant number so many of its option set.
    Configure(Name, Variant),
    /// Begins an ingest in place of the one that is open, and puts these: in a keyspace, by ascending keys.
    Ingest(Name, Vec<Write>),
    /// Ends the open ingest.
    EndIngest(End),
}

impl Op {
    /// Whether this reads and changes nothing.
    #[must_use]
    pub fn only_reads(&self) -> bool {
        use Op::{FinishIterator, Get, MultiGet, OpenIterator, Prefix, ReadSnapshot, Scan};
        let is_point = matches!(self, Get(..) | MultiGet(..));
        is_point || matches!(self, Scan(..) | Prefix(..) | ReadSnapshot(..) | OpenIterator(..) | FinishIterator(..))
    }
}

/// What a compare-and-swap expects to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The current value, whatever it is.
    Current,
    /// No value.
    Nothing,
    /// A value that was never written.
    Other,
}

/// The direction of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the first key on.
    Forward,
    /// From the last key back.
    Backward,
    /// One entry from each end alternately.
    BothEnds,
}

/// A key range by key numbers. If the ends are in the wrong order, the range is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Bound<KeyNo>, pub Bound<KeyNo>);

impl Span {
    /// The range in bytes.
    #[must_use]
    pub fn bounds(self) -> Bounds {
        (self.0.map(key_bytes), self.1.map(key_bytes))
    }
}

/// The bytes of a key. There are different lengths, shared prefixes, zero bytes and 0xff bytes.
#[must_use]
pub fn key_bytes(key: KeyNo) -> Box<[u8]> {
    match key % 5 {
        0 => format!("k{key:03}").into_bytes(),
        1 => format!("user/{:02}/name/of/some/length/{key:04}", key % 7).into_bytes(),
        2 => [&[0xff, 0xff][..], &key.to_be_bytes()].concat(),
        3 => [&key.to_le_bytes()[..], &[0]].concat(),
        _ => [&key_bytes(key - 4)[..], &[0, key as u8]].concat(),
    }
    .into()
}

/// Operations that extras have added have positions from here on, so that the others keep theirs.
const ADDED_FROM: usize = 100_000;

/// The parameters of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// How many operations.
    pub ops: usize,
    /// How many different keys.
    pub keys: KeyNo,
    /// Which operations, in proportion.
    pub flavor: Flavor,
}

/// Which operations a history has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    /// Many reads of all kinds between the writes.
    Reads,
    /// Writes and whatever rearranges files; reads are left to the end.
    Files,
}

/// A list of operations, some of them perhaps left out.
#[derive(Clone, Debug)]
pub struct History {
    /// The seed it came from.
    pub seed: u64,
    /// The durability of single writes: the database's option.
    pub durability: Durability,
    /// What else its operations have.
    pub extras: Extras,
    /// Position in the original list, and the operation.
    pub ops: Vec<(usize, Op)>,
}

impl History {
    /// The history of a seed.
    #[must_use]
    pub fn new(seed: u64, mix: Mix) -> Self {
        Self::with_extras(seed, mix, Extras::of(seed))
    }

    /// The history of a seed, with these extras.
    #[must_use]
    pub fn with_extras(seed: u64, mix: Mix, extras: Extras) -> Self {
        let mut random = Random::new(seed, "history");
        let durability =
            random.pick(&[Durability::Buffered, Durability::Buffered, Durability::Sync, Durability::Memory]);
        let names = random.within(1, NAMES.len() as u64) as Name;
        let mut maker = Maker { random, mix, names, tag: 0 };
        let mut ops: Vec<Op> = (1..names).map(Op::Create).collect();
        while ops.len() < mix.ops {
            maker.tag = ops.len() as u32 * 64;
            let op = maker.op();
            ops.push(op);
        }
        let ops = ops.into_iter().enumerate().collect();
        Self { seed, durability, extras, ops }.with_extra_puts().with_large_values().with_ingests(mix, names)
    }

    /// This history with changes of options in it. They come after one in twenty operations; positions of the others
    /// stay as they are.
    #[must_use]
    pub fn with_changes_of_options(self) -> Self {
        let mut random = Random::new(self.seed, "changes of options");
        let mut next = self.ops.iter().filter(|(at, _)| *at < ADDED_FROM).count();
        let mut ops = Vec::new();
        for op in self.ops {
            let is_added = op.0 >= ADDED_FROM;
            ops.push(op);
            if !is_added && random.below(20) == 0 {
                let name = random.below(NAMES.len() as u64) as Name;
                ops.push((next, Op::Configure(name, random.within(1, 1000) as Variant)));
                next += 1;
            }
        }
        Self { ops, ..self }
    }

    /// This history without the operations, by original position, that `keep` rejects.
    #[must_use]
    pub fn filtered(&self, keep: impl Fn(usize) -> bool) -> Self {
        Self { ops: self.ops.iter().filter(|(at, _)| keep(*at)).cloned().collect(), ..self.clone() }
    }

    /// The shortest history found for which `fails` is still true, by leaving out ever smaller pieces. Stops after
    /// `tries_max` attempts with the shortest so far.
    #[must_use]
    pub fn shrunk(&self, tries_max: usize, fails: impl Fn(&Self) -> bool) -> Self {
        let mut shortest = self.clone();
        let mut tries = 0;
        let mut piece = (shortest.ops.len() / 2).max(1);
        loop {
            let before = shortest.ops.len();
            let mut begin = 0;
            while begin < shortest.ops.len() && tries < tries_max {
                let mut shorter = shortest.clone();
                shorter.ops.drain(begin..(begin + piece).min(shortest.ops.len()));
                tries += 1;
                if fails(&shorter) {
                    shortest = shorter;
                } else {
                    begin += piece;
                }
            }
            if tries >= tries_max || (piece == 1 && shortest.ops.len() == before) {
                return shortest;
            }
            piece = (piece / 2).max(1);
        }
    }

    /// The positions kept, in short form: `0-4,9`.
    #[must_use]
    pub fn kept(&self) -> String {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for &(at, _) in &self.ops {
            match runs.last_mut() {
                Some(run) if run.1 + 1 == at => run.1 = at,
                _ => runs.push((at, at)),
            }
        }
        let word = |&(a, b): &(usize, usize)| if a == b { a.to_string() } else { format!("{a}-{b}") };
        runs.iter().map(word).collect::<Vec<_>>().join(",")
    }
}

/// Parses the output of [`History::kept`].
///
/// # Errors
/// The piece that cannot be parsed.
pub fn parse_kept(text: &str) -> Result<Vec<RangeInclusiveOf>, String> {
    let number = |word: &str| word.parse::<usize>().map_err(|e| format!("`{word}`: {e}"));
    let run = |word: &str| match word.split_once('-') {
        Some((first, last)) => Ok(number(first)?..=number(last)?),
        None => Ok(number(word)?..=number(word)?),
    };
    text.split(',').filter(|word| !word.is_empty()).map(run).collect()
}

/// A run of positions.
pub type RangeInclusiveOf = std::ops::RangeInclusive<usize>;

/// Samples operations.
struct Maker {
    random: Random,
    mix: Mix,
    names: Name,
    tag: u32,
}

impl Maker {
    fn op(&mut self) -> Op {
        let name = self.name();
        let (write, batch, read) = match self.mix.flavor {
            Flavor::Reads => (24, 12, 8),
            Flavor::Files => (40, 25, 1),
        };
        let weights = [write, batch, read, read, read, read, read / 2, 3, 4, 2, 2, 3, 4, 1, 1, 3, 1, 2, 1, 1, 1];
        match self.random.weighted(&weights) {
            0 => Op::Write(self.write(name)),
            1 => self.batch(),
            2 => Op::Get(name, self.key()),
            3 => Op::MultiGet(name, (0..self.random.within(1, 6)).map(|_| self.key()).collect()),
            4 => Op::Scan(name, self.span(), self.way()),
            5 => self.swap(name),
            6 => Op::Prefix(name, self.key(), self.random.within(0, 6) as usize),
            7 => Op::Snapshot(self.slot()),
            8 => Op::ReadSnapshot(self.slot(), name),
            9 => Op::DropSnapshot(self.slot()),
            10 => Op::OpenIterator(self.slot(), name),
            11 => Op::FinishIterator(self.slot(), self.way()),
            12 => Op::Flush,
            13 => Op::Compact,
            14 => Op::CompactRange(name, self.span()),
            15 => Op::Sync,
            16 => Op::Checkpoint,
            17 => Op::Reopen,
            18 => Op::Abandon,
            19 => Op::Create(name),
            _ if name > 0 => Op::Drop(name),
            _ => Op::Write(Write::DeleteRange(0, Span(Bound::Unbounded, Bound::Unbounded))),
        }
    }

    fn batch(&mut self) -> Op {
        let durability = self.random.pick(&[Durability::Sync, Durability::Buffered, Durability::Memory]);
        let writes = (0..self.random.within(1, 12)).map(|_| {
            let name = self.name();
            self.write(name)
        });
        Op::Batch(durability, writes.collect())
    }

    fn write(&mut self, name: Name) -> Write {
        match self.random.weighted(&[30, 8, 1]) {
            0 => Write::Put(name, self.key(), self.value()),
            1 => Write::Delete(name, self.key()),
            _ => Write::DeleteRange(name, self.span()),
        }
    }

    fn swap(&mut self, name: Name) -> Op {
        let expect = self.random.pick(&[Expect::Current, Expect::Current, Expect::Nothing, Expect::Other]);
        let new = if self.random.chance(80) { Some(self.value()) } else { None };
        Op::Swap(name, self.key(), expect, new)
    }

    fn value(&mut self) -> Spec {
        self.tag += 1;
        let len = match self.random.weighted(&[2, 12, 12, 6, 1]) {
            0 => 0,
            1 => self.random.within(1, 20),
            2 => self.random.within(20, 200),
            3 => self.random.within(200, 2048),
            _ => self.random.within(18_000, 22_000),
        };
        Spec { tag: self.tag, len: len as u32 }
    }

    fn span(&mut self) -> Span {
        let mut end = || match self.random.weighted(&[4, 4, 1]) {
            0 => Bound::Included(self.random.below(u64::from(self.mix.keys)) as KeyNo),
            1 => Bound::Excluded(self.random.below(u64::from(self.mix.keys)) as KeyNo),
            _ => Bound::Unbounded,
        };
        let span = Span(end(), end());
        match (span.bounds(), span) {
            // Mostly in the right order.
            ((Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)), Span(x, y))
                if a > b && self.random.chance(90) =>
            {
                Span(y, x)
            }
            _ => span,
        }
    }

    fn key(&mut self) -> KeyNo {
        // Half of all accesses go to an eighth of the keys.
        let keys = u64::from(self.mix.keys);
        let among = if self.random.chance(50) { keys.div_ceil(8) } else { keys };
        self.random.below(among) as KeyNo
    }

    fn name(&mut self) -> Name {
        self.random.below(u64::from(self.names)) as Name
    }

    fn slot(&mut self) -> usize {
        self.random.below(3) as usize
    }

    fn way(&mut self) -> Way {
        self.random.pick(&[Way::Forward, Way::Backward, Way::BothEnds])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const MIX: Mix = Mix { ops: 200, keys: 60, flavor: Flavor::Reads };

    #[test]
    fn keys_differ_and_are_never_empty() {
        let keys: BTreeSet<_> = (0..1000).map(key_bytes).collect();
        assert_eq!(keys.len(), 1000);
        assert!(keys.iter().all(|key| !key.is_empty()));
    }

    #[test]
    fn a_seed_repeats_its_history() {
        assert_eq!(History::new(5, MIX).to_string(), History::new(5, MIX).to_string());
        assert_ne!(History::new(5, MIX).to_string(), History::new(6, MIX).to_string());
    }

    #[test]
    fn shrinking_finds_the_two_operations_that_matter() {
        let history = History::new(1, MIX);
        let fails = |h: &History| [17, 140].iter().all(|wanted| h.ops.iter().any(|(at, _)| at == wanted));
        let short = history.shrunk(1000, fails);
        assert_eq!(short.kept(), "17,140");
        let runs = parse_kept("3-5,9").unwrap();
        assert_eq!(history.filtered(|at| runs.iter().any(|run| run.contains(&at))).kept(), "3-5,9");
        assert!(parse_kept("3-x").is_err());
    }
}
