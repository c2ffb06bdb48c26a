//! Interfaces of the index: what to compact next, and which level-0 tables may hold a key. Both are pure.

use std::{collections::BTreeSet, fmt};

use crate::{FileId, Levels, RunId, SeqNo};

/// Decides what to compact next, from the shape of the tree alone.
pub trait CompactionPolicy: Send + Sync + fmt::Debug {
    /// The most useful job that touches no busy table, or `None` if no compaction is due.
    fn choose(&self, levels: &Levels, busy: &Busy) -> Option<CompactionJob>;

    /// How far the tree is from its target shape: compaction is due from 1.0 on, and larger is worse. Writers are
    /// paced by this number.
    fn debt(&self, levels: &Levels) -> f64;

    /// How far it is from the shape that scans want, where that counts only once a scan has asked for it
    /// ([`Busy::scans_ask`]): from 1.0 on, a scan asks.
    fn debt_to_scans(&self, _levels: &Levels) -> f64 {
        0.0
    }

    /// The name used in options and statistics.
    fn name(&self) -> &'static str;
}

/// What a running job writes: the keys that it may write, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusyOutput {
    /// The level that receives its result.
    pub level: u8,
    /// The run that receives it; `None` where the job has not been given its run yet.
    pub run: Option<RunId>,
    /// The keys. `None`: any of the level.
    pub keys: Option<KeyRange>,
}

impl BusyOutput {
    /// Whether the job may write keys from `start` to `end` (`None`: no upper bound), both inclusive.
    #[must_use]
    pub fn overlaps(&self, start: &[u8], end: Option<&[u8]>) -> bool {
        self.keys.as_ref().is_none_or(|(first, last)| {
            end.is_none_or(|end| **first <= *end) && last.as_ref().is_none_or(|last| *start <= **last)
        })
    }
}

/// The first and the last key of something (`None`: no upper bound), both inclusive.
pub type KeyRange = (Box<[u8]>, Option<Box<[u8]>>);

/// What running jobs hold, and what readers need.
#[derive(Clone, Debug, Default)]
pub struct Busy {
    /// Tables that are inputs of running jobs.
    pub tables: BTreeSet<FileId>,
    /// What running jobs write.
    pub outputs: Vec<BusyOutput>,
    /// The oldest snapshot that must stay readable, if any.
    pub oldest_snapshot: Option<SeqNo>,
    /// A scan has met a tree that is in debt to scans.
    pub scans_ask: bool,
}

/// How a job produces its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobShape {
    /// Read the inputs, write new tables.
    Merge,
    /// A trivial move: the one input run overlaps nothing below, so only its place in the manifest changes and no
    /// bytes move.
    Move,
}

/// One planned compaction: its input tables and where the output goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactionJob {
    /// How to do it.
    pub shape: JobShape,
    /// The inputs as (level, run, table), newest first.
    pub inputs: Vec<(u8, RunId, FileId)>,
    /// The level that receives the result.
    pub output_level: u8,
    /// The run that receives the result. `None`: a new run, newer than all others in that level. Whoever takes the
    /// job gives it the number before another job is chosen: that one can then join the run.
    pub output_run: Option<RunId>,
    /// The first and the last key of the inputs (`None`: no upper bound). Other jobs may write into the same level
    /// outside of them. Where they are not given, the job takes the whole level.
    pub keys: Option<KeyRange>,
    /// Cut output tables at about this size, in bytes.
    pub table_bytes: u64,
    /// End an output table before it overlaps more than this many bytes of the level below the output.
    pub max_overlap_bytes: u64,
    /// The reason as text, for statistics and logs ("level 0 has 4 runs").
    pub reason: String,
}

impl CompactionJob {
    /// What it takes of the level that receives its result.
    #[must_use]
    pub fn output(&self) -> BusyOutput {
        BusyOutput { level: self.output_level, run: self.output_run, keys: self.keys.clone() }
    }
}

/// Which level-0 runs may hold a key: newest first with filters, or by an index of its own (UniKV §III-B).
pub trait Locator: Send + Sync + fmt::Debug {
    /// Calls `visit` for each of the `runs` level-0 runs that may hold the key with this hash, newest first, until
    /// `visit` returns `false`. It passes the position of the run; 0 is the newest.
    fn candidates(&self, key_hash: u64, runs: usize, visit: &mut dyn FnMut(usize) -> bool);
}

/// Every run may hold every key; table filters do the rest.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewestFirst;

impl Locator for NewestFirst {
    fn candidates(&self, _key_hash: u64, runs: usize, visit: &mut dyn FnMut(usize) -> bool) {
        for position in 0..runs {
            if !visit(position) {
                return;
            }
        }
    }
}
