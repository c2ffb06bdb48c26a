//! The interface between the engine and a placement: where a value lives, and how its garbage is collected. What all
//! placements do alike is in [`store`](crate::store).
//!
//! Flush, compaction and the rewrite of a key range are one operation: each entry of a sorted stream is **kept**
//! (its value perhaps moved) or **dropped**. GC is a [`GcJob`], which may ask for such a rewrite. The index learns new
//! addresses in three ways: the rewrite returns them, a GC job commits them, or a read finds a fresher one. A placement
//! only returns edits; only the engine applies them.
//!
//! | | `inline` | `wisckey` | `hashkv` | `novkv` | `diffkv` | `unikv` | `streams` |
//! |---|---|---|---|---|---|---|---|
//! | [`Placement::write`] | – | value first | value first | value first | large values first | – | value first |
//! | [`Placement::ingester`] | – | new files | files by hash | new files | a rewrite | a rewrite | new files |
//! | [`Rewriter::keep`] | – | – | – | known handles | moves values | separates at L0→L1 | newer address |
//! | [`Rewriter::discard`] | – | dead bytes | – | drop-keys | garbage counters | garbage counters | pointers |
//! | [`Placement::read`] | – | by address | by address | by epoch, by key | by address | by address | by forwards |
//! | [`Placement::pick`] | – | oldest files | group; log | by valid rate | large logs; tags | key range | by age |
//! | concurrent jobs | – | – | – | – | logs; one rewrite | – | files |
//! | address changes by | – | `relocate` | `hold_commits` | `install` | `relocate`; `rewrite` | `rewrite` | `install` |
//!
//! The last row names calls of [`GcContext`]. GC of the cold log of `hashkv` uses `relocate`, as `wisckey` does.

mod gc;
mod pressure;

use std::{any::Any, sync::Arc};

pub use bifold_contract::rewrite::{Kept, RewriteJob, Rewriter};
use bifold_contract::{FileId, IoSource, Pointer, Result, SeqNo, Value, ValueEdit};

#[cfg(test)]
pub(crate) use self::gc::scene::Scene;
pub use self::{
    gc::{Commits, GcClaim, GcContext, GcJob, GcOutcome, IndexView, Moved, NewestAbove, RewrittenTables},
    pressure::SpacePressure,
};
use crate::parts::value_files::{Stretches, ValueFiles};

/// A placement's answers to the questions that the engine asks before doing anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The name used in options, statistics and the manifest.
    pub name: &'static str,
    /// Values of this length and above are written to a value file before the log record that points at them. `None`:
    /// commits need not call [`Placement::write`].
    pub separates_from: Option<usize>,
    /// Commits call [`Placement::write`] for all shorter values, too: it notes what they overwrite. Otherwise they call
    /// it for some of them, where [`Profile::learns_from_rewrites`] is set.
    pub hears_of_short_values: bool,
    /// Some values are moved or separated while streams are rewritten, so a trivial move needs the consent of
    /// [`Placement::may_move`].
    pub separates_at_rewrite: bool,
    /// It learns only from rewrites which values of this length and above are dead. [`Placement::note_overwritten`]
    /// reports an estimate in advance.
    pub learns_from_rewrites: Option<usize>,
    /// Its [`Placement::note_overwritten`] looks up where the overwritten record of a sample is. Then what short values
    /// overwrite in tables counts, too.
    pub finds_overwritten: bool,
    /// While its file exists, the value of a pointer is the record at that offset of it. So [`Placement::read`] is
    /// called only when the file is deleted, where a value need not be kept.
    pub reads_by_address: bool,
    /// The copies that GC makes while the originals exist take about this share of what the space target allows beyond
    /// live values, in percent: 1 to 99, and other numbers count as the nearest of these. GC starts when the rest of it
    /// is taken. With a smaller share there is more room for garbage, and GC copies less; GC runs must be small then.
    pub copies_percent: u8,
}

impl Profile {
    /// What most placements have as [`Profile::copies_percent`]: 25.
    pub const COPIES_PERCENT: u8 = 25;

    /// Whether any value is ever separated, by commits or by rewrites.
    #[must_use]
    pub fn separates(&self) -> bool {
        self.separates_from.is_some() || self.separates_at_rewrite
    }
}

/// Where values live. One object per keyspace; all methods may be called from several threads. How GC moves a value
/// is in [`GcContext`].
pub trait Placement: Send + Sync {
    /// What the engine must know about it in advance.
    fn profile(&self) -> Profile;

    /// Notes one operation of a commit before it is logged. If its value is to be separated, writes the value and
    /// returns the pointer to log instead. `None`: the value stays inline. Called under the commit lock, in commit
    /// order; operands of merge operators stay inline without a call. When it returns, the value has been handed to the
    /// operating system. After an error nothing more is written.
    ///
    /// # Errors
    /// Errors of writing the value.
    fn write(&self, op: WriteOp<'_>, seqno: SeqNo) -> Result<Option<Pointer>>;

    /// The hooks for one rewrite of a sorted stream.
    ///
    /// # Errors
    /// Errors of opening its output files.
    fn rewriter(&self, job: &RewriteJob) -> Result<Box<dyn Rewriter>>;

    /// The hooks of an ingest, which writes entries that are newer than all others to tables without the log. They are
    /// inline when they are passed to [`Rewriter::keep`], in key order, and each key once. An ingest that several
    /// threads write asks for several, which get key ranges in turns. The ingest may be abandoned, and until it is in
    /// force nothing of it may count. By default as in a rewrite: values that only commits separate stay inline.
    ///
    /// # Errors
    /// Errors of opening its output files.
    fn ingester(&self, job: &RewriteJob) -> Result<Box<dyn Rewriter>> {
        self.rewriter(job)
    }

    /// What to garbage-collect next under this pressure while the `running` jobs are under way, or `None`. It takes
    /// nothing that those have taken, and counts as free all that they will free. Not called while one of them is
    /// alone. Pure: changes nothing. The engine asks under a lock, so no two answers see the same state.
    fn pick(&self, pressure: &SpacePressure, running: &[GcClaim]) -> Option<Box<dyn GcJob>>;

    /// What the value files hold now.
    fn space(&self) -> ValueSpace;

    /// Each file or group: what is in it, whether GC would pick it, and why.
    fn explain(&self, pressure: &SpacePressure) -> Vec<Explained>;

    /// The value of version `seqno` of `key`, which is at `pointer`. `None` when the file was deleted because the value
    /// has moved: the index knows where to.
    ///
    /// # Errors
    /// I/O errors, and corruption when the record there is damaged or belongs to another key.
    fn read(
        &self,
        files: &ValueFiles,
        (key, _seqno): (&[u8], SeqNo),
        pointer: Pointer,
        source: IoSource,
    ) -> Result<Option<Value>> {
        files.read(key, pointer, source)
    }

    /// The next place of the value at `pointer`, whose file was deleted, if the placement leads readers on. `None`:
    /// [`Placement::read`] knows more, or nothing does.
    fn follow(&self, _pointer: Pointer) -> Option<Pointer> {
        None
    }

    /// Where the value at `pointer` is now, if that is certain without a read: neighbours that were announced are then
    /// read by one call, others alone. Asked only where [`Profile::reads_by_address`] does not hold.
    fn locate_now(&self, _pointer: Pointer) -> Option<Pointer> {
        None
    }

    /// Whether readers have lost so much time on the way to values that [`Placement::pick`] has a job which mends that.
    /// Asked when a scan begins, and by one get of some: nothing else looks for work while nothing is written.
    fn readers_ask(&self) -> bool {
        false
    }

    /// Announces reads to come, in the order of the requests. Returns those that are done by system calls, if any are:
    /// neighbours share a call.
    fn prefetch(&self, files: &ValueFiles, pointers: &[Pointer]) -> Option<Stretches> {
        files.prefetch(pointers)
    }

    /// The most bytes that GC of one unit, or a rewrite that drains one file, copies. The engine keeps so much of the
    /// disk free for it.
    fn largest_unit(&self, files: &ValueFiles) -> u64 {
        files.largest()
    }

    /// Whether a table from `from` to `to` may be moved without being read.
    fn may_move(&self, _from: u8, _to: u8) -> bool {
        true
    }

    /// `edit` is about to be recorded, and no other is meanwhile: adds to its garbage what its
    /// [`pointers`](ValueEdit::pointers) mean for files as they are now.
    fn count_pointers(&self, _edit: &mut ValueEdit) {}

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

    /// Commits, or an ingest, have overwritten about so many more bytes of records; only snapshots still see those.
    /// This is an estimate, from a sample of the commits and the part of the index in memory, or of the ingest and the
    /// whole index. `find` asks the whole index where the overwritten record of the sample is, and says how many bytes
    /// such a record stands for. Called only for placements with [`Profile::learns_from_rewrites`].
    fn note_overwritten(&self, _bytes: u64, _find: &dyn Fn() -> Option<(Pointer, u64)>) {}

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

    /// During recovery: what a pointer in the log leads to. Offline verification without the placement does what is
    /// done here.
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
    /// beyond the lengths in the manifest, without those in cold segments.
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
pub enum WriteOp<'a> {
    /// A key gets a value.
    Put {
        /// The key.
        key: &'a [u8],
        /// Its value.
        value: &'a [u8],
    },
    /// A key is deleted, which GC without index lookups must know; or it gets a large value, which no placement has.
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
    Whole(WriteOp<'a>),
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

/// Reads that found a pointer out of date (NovKV §III-D).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StaleReads {
    /// An earlier read had found where the value is.
    pub repaired: u64,
    /// The value had to be searched for.
    pub searched: u64,
}

/// How well values are sorted, and what that cost since the database was opened: merges, and bytes of records.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Order {
    /// The levels that have files.
    pub levels: Vec<LevelOrder>,
    /// Merges that moved values because their keys went to a deeper level, whatever else they moved.
    pub level_merges: u64,
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
    /// Bytes of files that GC leaves as they are: something in them cannot be read, GC cannot free them without
    /// such a file, or an option says so. All of them count as live.
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
