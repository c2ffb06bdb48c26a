//! The seam between the engine and a placement: where a value lives, and how its garbage is collected. What is alike for all of them is not
//! here but in [`store`](crate::store).
//!
//! Flush, compaction, partition split and UniKV's collection are one act: a sorted stream is rewritten, and each entry
//! is **kept** (its value perhaps moved) or **dropped**. GcPick works *by file* or *by asking for a rewrite*. The
//! index learns new addresses in three ways: the rewrite returns them, the engine writes them back, or a read finds a
//! fresher one. A placement only ever returns edits; the engine alone applies them.
//!
//! | | `inline` | `wisckey` | `hashkv` | `novkv` | `diffkv` | `unikv` |
//! |---|---|---|---|---|---|---|
//! | [`Placement::route`] | – | value first | value first | value first | large values first | – |
//! | [`Rewriter::keep`] | unchanged | unchanged | unchanged | unchanged | moves values with keys | parts values at L0→L1 |
//! | [`Rewriter::discard`] | – | dead bytes of files | – | drop-keys | garbage counters | garbage counters |
//! | [`Placement::read`] | – | by address | by address | by epoch, else by key, and a fresher pointer | by address | by address |
//! | [`Placement::pick`] | – | a look, log tail | segment group, cold file | files under the valid rate | large logs; tags | a partition's range |
//! | [`Placement::pick_concurrent`] | – | – | – | – | logs, and vTables beside logs | – |
//! | [`Placement::collect`] | – | asks the index | the group itself; asks the index (cold log) | drop-keys | asks the index (large logs) | – (a rewrite) |

mod pressure;

use std::{any::Any, sync::Arc};

pub use bifold_contract::rewrite::{Kept, RewriteJob, Rewriter};
use bifold_contract::{FileId, IoSource, Pointer, Result, SeqNo, Value, ValueEdit};

pub use self::pressure::SpacePressure;
use crate::parts::value_files::ValueFiles;

/// A placement's answers to the questions that the engine asks before doing anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The name used in options, statistics and the manifest.
    pub name: &'static str,
    /// Values of this length and above are written apart before the log record that points at them. `None`: commits need
    /// not go through [`Placement::route`].
    pub separates_from: Option<usize>,
    /// Some values are moved or parted while streams are rewritten, so a trivial move is allowed only if
    /// [`Placement::may_move`] agrees.
    pub separates_at_rewrite: bool,
    /// Which values are dead it learns from rewrites alone, of those of this length and above: [`Placement::note_overwritten`] tells it what
    /// they will find.
    pub learns_from_rewrites: Option<usize>,
}

impl Profile {
    /// Whether any value is ever written apart, by commits or by rewrites.
    #[must_use]
    pub fn separates(&self) -> bool {
        self.separates_from.is_some() || self.separates_at_rewrite
    }
}

/// Where values live. One object per keyspace; all methods may be called from several threads.
///
/// **How a value moves** (HashKV §3.2 to 3.4, without its journals):
///
/// ```text
/// collect   copies what is live to new files            nothing is changed yet
/// advance   under the commit lock: what was written meanwhile is passed over, and the other moves are committed
///           like writes, with numbers of their own; the old files are emptied
///           ── values, then logs are synced ──
/// reclaim    when the moves are durable and no snapshot is older than them, the old files go
/// ```
pub trait Placement: Send + Sync {
    /// Its answers as data.
    fn profile(&self) -> Profile;

    /// Takes note of one operation of a commit before it is logged, and writes its value apart if it is to be: the answer
    /// is what to log instead. Called under the commit lock, in the order of commits. When it returns, the value is with
    /// the operating system. After an error nothing more is written.
    ///
    /// # Errors
    /// Whatever writing the value met.
    fn route(&self, op: Routed<'_>, seqno: SeqNo) -> Result<Option<Pointer>>;

    /// The hooks for one rewrite of a sorted stream.
    ///
    /// # Errors
    /// Whatever opening its output files met.
    fn rewriter(&self, job: &RewriteJob) -> Result<Box<dyn Rewriter>>;

    /// What to collect next under this pressure, or `None`. Pure: changes nothing.
    fn pick(&self, pressure: &SpacePressure) -> Option<GcPick>;

    /// Copies what is live of one pick to new files, which the next sync covers; or only looks. `view` answers questions about
    /// liveness; a placement that needs none asks none.
    ///
    /// # Errors
    /// I/O errors and corruption; nothing is changed then.
    fn collect(&self, pick: &GcPick, view: &dyn IndexView) -> Result<Box<dyn GcRun>>;

    /// What value files hold now.
    fn space(&self) -> ValueSpace;

    /// Each file or group: what is in it, and whether and why it would be collected.
    fn explain(&self, pressure: &SpacePressure) -> Vec<Explained>;

    /// What to collect beside the collections that run: nothing of what they have taken, and as if all that they will free were
    /// free. `None` also where no two may run at once. Pure; the engine asks under a lock, so no two answers are of the same state.
    fn pick_concurrent(&self, _pressure: &SpacePressure, _running: &[GcPick]) -> Option<GcPick> {
        None
    }

    /// The value of version `seqno` of `key`, which is at `pointer`, and a fresher pointer where the placement had to search for it
    /// (NovKV §III-D). `None` when the file is gone because the value has moved: the index knows where to.
    ///
    /// # Errors
    /// I/O errors, or corruption when the record there is not of `key`.
    fn read(
        &self,
        files: &ValueFiles,
        (key, _seqno): (&[u8], SeqNo),
        pointer: Pointer,
        source: IoSource,
    ) -> Result<Option<Found>> {
        Ok(files.read(key, pointer, source)?.map(|value| Found { value, fresher: None }))
    }

    /// Announces reads to come, in the order in which they will be asked for. Answers whether they must come from the device.
    fn prefetch(&self, files: &ValueFiles, pointers: &[Pointer]) -> bool {
        files.prefetch(pointers)
    }

    /// Bytes that [`Placement::collect`] copies of these units, at most, as far as known or estimated. Each can be collected without the
    /// others; where the disk is short of room some of a pick are.
    fn copied_by(&self, units: &[u64], pressure: &SpacePressure) -> u64 {
        let is_one = |of: &Explained| matches!(of.files[..], [file] if units.contains(&file));
        self.explain(pressure).iter().filter(|of| is_one(of)).map(|of| of.live_bytes).sum()
    }

    /// Bytes that the collection of one unit, or a rewrite that empties one file, copies at most.
    fn largest_unit(&self, files: &ValueFiles) -> u64 {
        files.largest()
    }

    /// The files that a collection would read.
    fn files_of(&self, pick: &GcPick) -> Vec<FileId> {
        match pick {
            GcPick::Units(files) | GcPick::Rewrite { moving: files, .. } => files.clone(),
            GcPick::Look => Vec::new(),
        }
    }

    /// Whether a table from `from` to `to` may be moved without being read.
    fn may_move(&self, _from: u8, _to: u8) -> bool {
        true
    }

    /// Files, with their bytes, in which nothing is needed any more when the garbage of `edit` is counted, and which no log leads to:
    /// they go with it.
    fn drained_by(&self, _edit: &ValueEdit) -> Vec<(FileId, u64)> {
        Vec::new()
    }

    /// The manifest is about to learn how much of each file is dead: what is known beyond what the files themselves know is told them.
    fn count_dead(&self) {}

    /// `edit` is durable. Readers must find what it moved before the files go that it removes.
    fn comes_into_force(&self, _edit: &ValueEdit) {}

    /// Files that were removed from the manifest are gone.
    fn files_were_deleted(&self, _files: &ValueFiles) {}

    /// Tells that a rewrite is given up whose edit this is, before any manifest could have it: the files go that it has written.
    fn give_up(&self, _files: &ValueFiles, _edit: &ValueEdit) {}

    /// Tells that something in a file cannot be read. From now on no collection takes it and no rewrite moves what it holds, and
    /// space is reckoned without it: it stays until nothing leads there any more. [`ValueFiles::left_out_files`] has it already.
    fn is_left_out(&self, _file: FileId) {}

    /// Tells that commits have hidden about so many more bytes of records from all but snapshots. That is an estimate, by a
    /// sample of the commits and what is in memory of the index; told only to who [`Profile::learns_from_rewrites`].
    fn note_overwritten(&self, _bytes: u64) {}

    /// Of the bytes that [`Placement::space`] counts as live, those that are probably dead: nobody knows which.
    fn stale_bytes(&self, _pressure: &SpacePressure) -> u64 {
        0
    }

    /// Bytes of memory that it holds between calls, beyond what files take: filters, for example.
    fn memory_bytes(&self) -> u64 {
        0
    }

    /// Reads that have met an address which was out of date.
    fn stale_reads(&self) -> StaleReads {
        StaleReads::default()
    }

    /// How well the values are sorted, where rewrites sort them (DiffKV §3.2).
    fn order(&self) -> Order {
        Order::default()
    }

    /// From now on nothing is appended to the present files, so that they can be linked elsewhere.
    fn seal(&self, files: &ValueFiles) {
        files.seal();
    }

    /// During recovery: what a pointer met in the log leads to.
    ///
    /// # Errors
    /// Corruption, where the file does not even say whose it is.
    fn locate(&self, files: &ValueFiles, pointer: Pointer) -> Result<Located> {
        files.locate(pointer)
    }

    /// During recovery: the commit of this number, which stays, leads there.
    fn refer(&self, files: &ValueFiles, pointer: Pointer, commit: SeqNo) {
        files.refer(pointer, commit);
    }

    /// During recovery, when files are as long as commits have made them: these numbers have records that were behind the lengths that
    /// the manifest lists.
    ///
    /// # Errors
    /// I/O errors and corruption.
    fn recovered(&self, _files: &ValueFiles, _in_tails: Vec<SeqNo>) -> Result<()> {
        Ok(())
    }

    /// During recovery for writing: tells of an operation of the log, in the order of commits.
    ///
    /// # Errors
    /// I/O errors.
    fn replay(&self, _op: Replayed<'_>, _seqno: SeqNo) -> Result<()> {
        Ok(())
    }
}

/// Value files that are not deleted while this lives.
pub type FilesHeld = Arc<dyn Any + Send + Sync>;

/// One operation of a commit, as a placement sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routed<'a> {
    /// A key gets a value.
    Put {
        /// The key.
        key: &'a [u8],
        /// Its value.
        value: &'a [u8],
    },
    /// A key is deleted. A file that is collected alone must know.
    Delete {
        /// The key.
        key: &'a [u8],
    },
    /// All keys from `start` up to `end`, exclusive (`None`: to the last), are deleted.
    DeleteRange {
        /// First key.
        start: &'a [u8],
        /// First key not deleted.
        end: Option<&'a [u8]>,
    },
}

/// One operation of the log, as a placement sees it when it is replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replayed<'a> {
    /// Its value is beside the key, or it has none.
    Whole(Routed<'a>),
    /// Its value is apart, where [`Placement::refer`] was told that it is.
    Pointer {
        /// The key.
        key: &'a [u8],
    },
}

/// What a pointer of the log leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Located {
    /// A whole record, or a file that is gone because everything in it moved before it was deleted.
    Whole,
    /// Nothing, or the remains of a crash: the power went before the value was on the disk.
    Missing,
    /// A record that no crash has left as it is.
    Damaged,
}

/// A collection whose copies are made. Dropping it gives the copies up.
pub trait GcRun: Send {
    /// The next moves to commit; `None` when all are done. Called under the commit lock; what the answer says is committed
    /// under the same hold of the lock, unless it is to be checked.
    ///
    /// # Errors
    /// I/O errors and corruption.
    fn advance(&mut self) -> Result<Option<Moves>>;

    /// Tells that a move was not committed, because the value had been overwritten.
    fn refused(&mut self, moved: &Moved);

    /// Tells that the moves of the last [`GcRun::advance`] were committed with numbers up to `last`.
    fn committed(&mut self, last: SeqNo);

    /// What is to be put in force when there are no more moves, where values move without any: then the edit leads readers
    /// to the copies. Called under the lock of the manifest, once.
    fn edit(&mut self) -> ValueEdit {
        ValueEdit::default()
    }

    /// Bytes of values in that edit's files: copies that no commit has counted.
    fn copied(&self) -> u64 {
        0
    }

    /// Bytes that all moves set free: those of the files that are emptied, without the copies.
    fn freed(&self) -> u64;
}

/// Moves to be committed together.
#[derive(Clone, Debug, Default)]
pub struct Moves {
    /// The values.
    pub moved: Vec<Moved>,
    /// Whether each must be compared with the index first, because it may have been overwritten meanwhile.
    pub check: bool,
}

/// Reads that have met an address which was out of date (NovKV §III-D).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StaleReads {
    /// An earlier read had found where the value is.
    pub repaired: u64,
    /// The value had to be searched for.
    pub searched: u64,
}

/// How well values are sorted, and what that took since the database was opened, in bytes of their records.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Order {
    /// The levels that have files.
    pub levels: Vec<LevelOrder>,
    /// Parted from their keys by flushes.
    pub separated_bytes: u64,
    /// Moved because their keys went to a deeper level.
    pub merged_bytes: u64,
    /// Moved because files overlapped too many others.
    pub untangled_bytes: u64,
    /// Moved out of files with too much garbage.
    pub gc_bytes: u64,
}

/// How well the values of one level are sorted (DiffKV §3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LevelOrder {
    /// The level of the index whose keys they follow.
    pub level: u8,
    /// Sorted groups: sets of files whose key ranges do not overlap, each written by one flush or merge.
    pub groups: u64,
    /// Files.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Of these, bytes that the index still needs.
    pub live_bytes: u64,
    /// Of how many files, itself included, the key ranges overlap that of a file: the mean.
    pub overlap: f64,
    /// Files whose values move with the next merge that meets them.
    pub tagged: u64,
}

/// What value files hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ValueSpace {
    /// Files.
    pub files: u64,
    /// Bytes in them.
    pub total_bytes: u64,
    /// Bytes of values that the index still needs, as far as known or estimated.
    pub live_bytes: u64,
    /// Bytes of files that are emptied and wait for snapshots or a sync.
    pub drained_bytes: u64,
    /// Bytes of files that are left out since something in them cannot be read, and of what cannot be collected without them. All of
    /// them count as live.
    pub left_out_bytes: u64,
}

impl ValueSpace {
    /// The sum of two.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            files: self.files + other.files,
            total_bytes: self.total_bytes + other.total_bytes,
            live_bytes: self.live_bytes + other.live_bytes,
            drained_bytes: self.drained_bytes + other.drained_bytes,
            left_out_bytes: self.left_out_bytes + other.left_out_bytes,
        }
    }
}

/// One unit of collection, explained.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained {
    /// What it is: a file or a group.
    pub unit: String,
    /// Its files.
    pub files: Vec<FileId>,
    /// Bytes in it.
    pub total_bytes: u64,
    /// Bytes of it that are live, as far as known or estimated.
    pub live_bytes: u64,
    /// Bytes written to the keyspace since it was collected or, if never, begun.
    pub age_bytes: u64,
    /// How much the policy wants it; the largest first.
    pub score: f64,
    /// Why it is not collected now; `None` when it is next.
    pub held: Option<&'static str>,
}

/// A value read by address.
#[derive(Clone, Debug)]
pub struct Found {
    /// The value.
    pub value: Value,
    /// A better address, where the one given led to a search.
    pub fresher: Option<Pointer>,
}

/// What may be asked of the index during a collection.
pub trait IndexView {
    /// The address under which `key` is now known, if its newest version is parted. Every call is counted
    /// (`gc.index_lookups`).
    ///
    /// # Errors
    /// Those of a read.
    fn current(&self, key: &[u8]) -> Result<Option<Pointer>>;
}

/// What a placement wants collected: units by its own numbering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GcPick {
    /// These files or groups, by [`Placement::collect`].
    Units(Vec<u64>),
    /// Nothing is moved: the index is asked about some values, so that the next pick knows better how much is dead.
    Look,
    /// The tables of this key range rewritten, so that [`Rewriter::keep`] moves their values (`None`: unbounded).
    Rewrite {
        /// First key.
        start: Option<Box<[u8]>>,
        /// The last key; it may be exceeded.
        end: Option<Box<[u8]>>,
        /// Files whose values are to move.
        moving: Vec<FileId>,
    },
}

/// One moved value. It replaces the old address only where that is still the current one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The key.
    pub key: Box<[u8]>,
    /// Where it was.
    pub from: Pointer,
    /// Where it is.
    pub to: Pointer,
}
