//! The seam between the engine and a placement: where a value lives, and how its garbage is collected. What all
//! placements do alike is in [`store`](crate::store).
//!
//! Flush, compaction, partition split and UniKV's GC are one operation: a sorted stream is rewritten, and each entry
//! is **kept** (its value perhaps moved) or **dropped**. A [`GcPick`] names files or asks for a rewrite. The index
//! learns new addresses in three ways: the rewrite returns them, the engine writes them back, or a read finds a
//! fresher one. A placement only returns edits; only the engine applies them.
//!
//! | | `inline` | `wisckey` | `hashkv` | `novkv` | `diffkv` | `unikv` |
//! |---|---|---|---|---|---|---|
//! | [`Placement::route`] | – | value first | value first | value first | large values first | – |
//! | [`Rewriter::keep`] | – | – | – | – | moves values with keys | separates values at L0→L1 |
//! | [`Rewriter::discard`] | – | dead bytes of files | – | drop-keys | garbage counters | garbage counters |
//! | [`Placement::read`] | – | by address | by address | by epoch, else by key | by address | by address |
//! | [`Placement::pick`] | – | a look, log tail | group, cold file | by valid rate | large logs; tags | key range |
//! | [`Placement::pick_concurrent`] | – | – | – | – | logs, with at most one rewrite | – |
//! | [`Placement::collect`] | – | index | the group; index (cold log) | drop-keys | index (logs) | a rewrite |

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
    /// Values of this length and above are written to a value file before the log record that points at them. `None`:
    /// commits need not call [`Placement::route`].
    pub separates_from: Option<usize>,
    /// Some values are moved or separated while streams are rewritten, so a trivial move needs the consent of
    /// [`Placement::may_move`].
    pub separates_at_rewrite: bool,
    /// It learns only from rewrites which values of this length and above are dead. [`Placement::note_overwritten`]
    /// reports an estimate in advance.
    pub learns_from_rewrites: Option<usize>,
}

impl Profile {
    /// Whether any value is ever separated, by commits or by rewrites.
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
/// advance   under the commit lock: skips what was written meanwhile and commits the other moves
///           like writes, with numbers of their own; the old files are drained
///           ── values, then logs are synced ──
/// reclaim   deletes the old files when the moves are durable and no snapshot is older than them
/// ```
pub trait Placement: Send + Sync {
    /// What the engine must know about it in advance.
    fn profile(&self) -> Profile;

    /// Notes one operation of a commit before it is logged. If its value is to be separated, writes the value and
    /// returns the pointer to log instead. Called under the commit lock, in commit order. When it returns, the value
    /// has been handed to the operating system. After an error nothing more is written.
    ///
    /// # Errors
    /// Errors of writing the value.
    fn route(&self, op: Routed<'_>, seqno: SeqNo) -> Result<Option<Pointer>>;

    /// The hooks for one rewrite of a sorted stream.
    ///
    /// # Errors
    /// Errors of opening its output files.
    fn rewriter(&self, job: &RewriteJob) -> Result<Box<dyn Rewriter>>;

    /// What to garbage-collect next under this pressure, or `None`. Pure: changes nothing.
    fn pick(&self, pressure: &SpacePressure) -> Option<GcPick>;

    /// Copies the live values of one pick to new files, which the next sync covers; or, for [`GcPick::Look`], only
    /// asks the index about some values. `view` answers questions about liveness.
    ///
    /// # Errors
    /// I/O errors and corruption; nothing is changed then.
    fn collect(&self, pick: &GcPick, view: &dyn IndexView) -> Result<Box<dyn GcRun>>;

    /// What the value files hold now.
    fn space(&self) -> ValueSpace;

    /// Each file or group: what is in it, whether GC would pick it, and why.
    fn explain(&self, pressure: &SpacePressure) -> Vec<Explained>;

    /// What GC may pick while `running` is under way: nothing that the running jobs have taken, and as if all that
    /// they will free were free. `None` also where two may not run at once. Pure. The engine asks under a lock, so no
    /// two answers see the same state.
    fn pick_concurrent(&self, _pressure: &SpacePressure, _running: &[GcPick]) -> Option<GcPick> {
        None
    }

    /// The value of version `seqno` of `key`, which is at `pointer`, and a fresher pointer where the placement had to
    /// search for it (NovKV §III-D). `None` when the file was deleted because the value has moved: the index knows
    /// where to.
    ///
    /// # Errors
    /// I/O errors, or corruption when the record there belongs to another key.
    fn read(
        &self,
        files: &ValueFiles,
        (key, _seqno): (&[u8], SeqNo),
        pointer: Pointer,
        source: IoSource,
    ) -> Result<Option<Found>> {
        Ok(files.read(key, pointer, source)?.map(|value| Found { value, fresher: None }))
    }

    /// Announces reads to come, in the order of the requests. Returns whether they must come from the device.
    fn prefetch(&self, files: &ValueFiles, pointers: &[Pointer]) -> bool {
        files.prefetch(pointers)
    }

    /// At most how many bytes [`Placement::collect`] copies for these units, as far as known or estimated. Each unit
    /// can be collected without the others; where disk space is short only some units of a pick are.
    fn copied_by(&self, units: &[u64], pressure: &SpacePressure) -> u64 {
        let is_one = |of: &Explained| matches!(of.files[..], [file] if units.contains(&file));
        self.explain(pressure).iter().filter(|of| is_one(of)).map(|of| of.live_bytes).sum()
    }

    /// At most how many bytes GC of one unit, or a rewrite that drains one file, copies.
    fn largest_unit(&self, files: &ValueFiles) -> u64 {
        files.largest()
    }

    /// The files that GC of this pick would read.
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

    /// Files, with their bytes, that hold nothing needed once the garbage of `edit` is counted, and that no log
    /// points into. They are removed with `edit`.
    fn drained_by(&self, _edit: &ValueEdit) -> Vec<(FileId, u64)> {
        Vec::new()
    }

    /// Called before the manifest records how much of each file is dead. Passes what only the placement knows on to
    /// the files.
    fn count_dead(&self) {}

    /// `edit` is durable. Readers must find what it moved before the files that it removes are deleted.
    fn comes_into_force(&self, _edit: &ValueEdit) {}

    /// Files that were removed from the manifest have been deleted.
    fn files_were_deleted(&self, _files: &ValueFiles) {}

    /// The rewrite with this edit is abandoned before any manifest could have recorded it. Deletes the files that it
    /// has written.
    fn give_up(&self, _files: &ValueFiles, _edit: &ValueEdit) {}

    /// Something in a file cannot be read. From now on GC does not take the file, no rewrite moves its values, and it
    /// does not count in the space calculation. It stays until nothing points there any more.
    /// [`ValueFiles::left_out_files`] already includes it.
    fn is_left_out(&self, _file: FileId) {}

    /// Commits have overwritten about so many more bytes of records; only snapshots still see those. This is an
    /// estimate, from a sample of the commits and the part of the index in memory. Called only for placements with
    /// [`Profile::learns_from_rewrites`].
    fn note_overwritten(&self, _bytes: u64) {}

    /// The stale estimate: bytes that [`Placement::space`] counts as live and that are probably dead. Nobody knows
    /// which.
    fn stale_bytes(&self, _pressure: &SpacePressure) -> u64 {
        0
    }

    /// Bytes of memory that it holds between calls, filters for example, without what the files take.
    fn memory_bytes(&self) -> u64 {
        0
    }

    /// Reads that found a pointer out of date.
    fn stale_reads(&self) -> StaleReads {
        StaleReads::default()
    }

    /// How well the values are sorted, where rewrites sort them (DiffKV §3.2).
    fn order(&self) -> Order {
        Order::default()
    }

    /// From now on nothing is appended to the present files, so they can be linked elsewhere.
    fn seal(&self, files: &ValueFiles) {
        files.seal();
    }

    /// During recovery: what a pointer in the log leads to.
    ///
    /// # Errors
    /// Corruption, if the file does not say which keyspace it belongs to.
    fn locate(&self, files: &ValueFiles, pointer: Pointer) -> Result<Located> {
        files.locate(pointer)
    }

    /// During recovery: the commit of this number, which is kept, points there.
    fn refer(&self, files: &ValueFiles, pointer: Pointer, commit: SeqNo) {
        files.refer(pointer, commit);
    }

    /// During recovery, after the files were truncated to what commits wrote: the sequence numbers of the records
    /// beyond the lengths in the manifest.
    ///
    /// # Errors
    /// I/O errors and corruption.
    fn recovered(&self, _files: &ValueFiles, _in_tails: Vec<SeqNo>) -> Result<()> {
        Ok(())
    }

    /// During recovery for writing: one operation of the log, in commit order.
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
    /// A key is deleted. A file that is collected without asking the index must know.
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
    /// The value is inline, or there is none.
    Whole(Routed<'a>),
    /// The value is separated. [`Placement::refer`] has been called with its pointer.
    Pointer {
        /// The key.
        key: &'a [u8],
    },
}

/// What a pointer of the log leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Located {
    /// A whole record, or a file that was deleted after everything in it had moved.
    Whole,
    /// Nothing, or a torn record: the power failed before the value was on disk.
    Missing,
    /// A record damaged in a way that no crash explains.
    Damaged,
}

/// A GC run whose copies are made. Dropping it discards the copies.
pub trait GcRun: Send {
    /// The next moves to commit; `None` when all are done. Called under the commit lock. Moves that need no check are
    /// committed under the same hold of the lock.
    ///
    /// # Errors
    /// I/O errors and corruption.
    fn advance(&mut self) -> Result<Option<Moves>>;

    /// A move was not committed, because the value had been overwritten.
    fn refused(&mut self, moved: &Moved);

    /// The moves of the last [`GcRun::advance`] were committed with numbers up to `last`.
    fn committed(&mut self, last: SeqNo);

    /// The edit to install when no moves are left, for placements that commit no moves: it leads readers to the
    /// copies. Called once, under the manifest lock.
    fn edit(&mut self) -> ValueEdit {
        ValueEdit::default()
    }

    /// Bytes of values in that edit's files. No commit has counted these copies.
    fn copied(&self) -> u64 {
        0
    }

    /// Bytes that all moves free: the bytes of the drained files minus those of the copies.
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

/// Reads that found a pointer out of date (NovKV §III-D).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StaleReads {
    /// An earlier read had found where the value is.
    pub repaired: u64,
    /// The value had to be searched for.
    pub searched: u64,
}

/// How well values are sorted, and what that cost since the database was opened, in bytes of their records.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Order {
    /// The levels that have files.
    pub levels: Vec<LevelOrder>,
    /// Separated from their keys by flushes.
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
    /// The mean number of files, itself included, that the key range of a file overlaps.
    pub overlap: f64,
    /// Files whose values move with the next merge that reads them.
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
    /// Bytes of drained files that wait for snapshots or a sync.
    pub drained_bytes: u64,
    /// Bytes of files that are left out because something in them cannot be read, and of what cannot be collected
    /// without them. All of them count as live.
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

/// One unit of GC, explained.
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
    /// Bytes written to the keyspace since its last GC or, if there was none, since it was begun.
    pub age_bytes: u64,
    /// Its score with the policy; the largest first.
    pub score: f64,
    /// Why GC does not pick it now; `None` when it is next.
    pub held: Option<&'static str>,
}

/// A value read by address.
#[derive(Clone, Debug)]
pub struct Found {
    /// The value.
    pub value: Value,
    /// A better pointer, where the one given led to a search.
    pub fresher: Option<Pointer>,
}

/// What GC may ask of the index.
pub trait IndexView {
    /// The current pointer of `key`, if its newest version is separated. Every call is counted (`gc.index_lookups`).
    ///
    /// # Errors
    /// Those of a read.
    fn current(&self, key: &[u8]) -> Result<Option<Pointer>>;
}

/// What a placement wants GC to do. Units are numbered by the placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GcPick {
    /// These files or groups, by [`Placement::collect`].
    Units(Vec<u64>),
    /// Nothing is moved: the index is asked about some values, so that the next pick knows better how much is dead.
    Look,
    /// Rewrite the tables of this key range, so that [`Rewriter::keep`] moves their values (`None`: unbounded).
    Rewrite {
        /// First key.
        start: Option<Box<[u8]>>,
        /// The last key; it may be exceeded.
        end: Option<Box<[u8]>>,
        /// Files whose values are to move.
        moving: Vec<FileId>,
    },
}

/// One moved value. It replaces the old pointer only if that is still current.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The key.
    pub key: Box<[u8]>,
    /// Where it was.
    pub from: Pointer,
    /// Where it is.
    pub to: Pointer,
}
