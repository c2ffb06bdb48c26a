//! The seam between index and values: where a value lives, and how its garbage is collected.
//!
//! Flush, compaction, partition split and UniKV's collection are one act: a sorted stream is rewritten, and each entry
//! is **kept** (its value perhaps moved) or **dropped**. Collection works *by file* or *by asking for a rewrite*. The
//! index learns new addresses in three ways: the rewrite returns them, the engine writes them back, or a read finds a
//! fresher one. A placement only ever returns edits; the engine alone applies them.
//!
//! | | `inline` | `wisckey` | `hashkv` | `novkv` | `diffkv` | `unikv` |
//! |---|---|---|---|---|---|---|
//! | [`Placement::route`] | – | value first | value first | value first | large values first | – |
//! | [`Rewriter::keep`] | unchanged | unchanged | unchanged | unchanged | moves values with keys | parts values at L0→L1 |
//! | [`Rewriter::discard`] | – | – | dead bytes of cold files | drop-keys | garbage counters | garbage counters |
//! | [`Placement::read`] | – | by address | by address | by epoch, else by key, and a fresher pointer | by address | by address |
//! | [`Placement::pick`] | – | log tail | segment group | files under the valid rate | large logs; tags | a partition's range |
//! | [`Placement::collect`] | – | asks the index | the group itself | drop-keys | asks the index (large logs) | – (a rewrite) |

use crate::{Entry, FileId, KeyspaceId, Pointer, Result, SeqNo, Value, ValueEdit};

/// A placement's answers to the questions that the engine asks before doing anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The name used in options, statistics and the manifest.
    pub name: &'static str,
    /// Some values are written apart before the log record that points at them, so commits go through
    /// [`Placement::route`].
    pub parts_at_write: bool,
    /// Some values are moved or parted while streams are rewritten, so a trivial move is allowed only if
    /// [`Placement::may_move`] agrees.
    pub parts_at_rewrite: bool,
}

/// Where values live. One object per keyspace; all methods may be called from several threads.
pub trait Placement: Send + Sync {
    /// Its answers as data.
    fn profile(&self) -> Profile;

    /// Decides, before the log is written, which values of a commit are written apart, writes those, and leaves
    /// pointers in their place. What it wrote must be as durable as the log record will be: the engine passes the
    /// commit's level.
    ///
    /// # Errors
    /// Whatever writing the values met; nothing of the commit is then visible.
    fn route(&self, ops: &mut [RoutedOp<'_>], durable: bool) -> Result<()>;

    /// The hooks for one rewrite of a sorted stream.
    ///
    /// # Errors
    /// Whatever opening its output files met.
    fn rewriter(&self, job: &RewriteJob) -> Result<Box<dyn Rewriter>>;

    /// The value at `pointer`, and a fresher pointer where the placement had to search for it (NovKV §3.6).
    ///
    /// # Errors
    /// I/O errors, or corruption when the record there is not of `key`.
    fn read(&self, key: &[u8], pointer: Pointer) -> Result<Found>;

    /// Announces reads to come, in the order in which they will be asked for.
    fn prefetch(&self, pointers: &[Pointer]);

    /// What to collect next under this pressure, or `None`. Pure: changes nothing.
    fn pick(&self, pressure: &SpacePressure) -> Option<Collection>;

    /// Collects the files of one pick. `view` answers questions about liveness; a placement that needs none asks none.
    ///
    /// # Errors
    /// I/O errors and corruption; nothing is changed then.
    fn collect(&self, files: &[FileId], view: &dyn IndexView) -> Result<Collected>;

    /// Whether a table from `from` to `to` may be moved without being read.
    fn may_move(&self, from: u8, to: u8) -> bool;

    /// Tells that `edit` is durable and in force: files it removed may be forgotten.
    fn installed(&self, edit: &ValueEdit);
}

/// One operation of a commit on its way to the log.
#[derive(Debug)]
pub struct RoutedOp<'a> {
    /// The keyspace it goes to.
    pub keyspace: KeyspaceId,
    /// The key, value and number it will have. Deletes and range deletes pass through here too, because a file that is
    /// collected alone must know them.
    pub entry: Entry<'a>,
    /// Set by the placement: the address to log instead of the value.
    pub pointer: Option<Pointer>,
}

/// What a rewrite is for: enough for a placement to decide what moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RewriteJob {
    /// The keyspace.
    pub keyspace: KeyspaceId,
    /// The level of the newest input; `None` when a memtable is flushed.
    pub from: Option<u8>,
    /// The level that receives the output.
    pub to: u8,
    /// The output is the oldest data of its range.
    pub bottom: bool,
}

/// Hooks of one rewrite, called in stream order from one thread.
pub trait Rewriter: Send {
    /// An entry survives. The answer says how it is written.
    ///
    /// # Errors
    /// I/O errors of moving its value; the rewrite is then given up and its outputs are deleted.
    fn keep(&mut self, entry: &Entry<'_>) -> Result<Kept>;

    /// An entry is dropped because `newer` (or a tombstone with that number) hides it and no snapshot needs it.
    ///
    /// # Errors
    /// As [`Rewriter::keep`].
    fn discard(&mut self, entry: &Entry<'_>, newer: SeqNo) -> Result<()>;

    /// The stream is at its end: whatever was written is made durable, and the changes of value files are returned.
    /// They go into the same manifest record as the tables.
    ///
    /// # Errors
    /// As [`Rewriter::keep`].
    fn finish(self: Box<Self>) -> Result<ValueEdit>;
}

/// How a surviving entry is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// As it came.
    Unchanged,
    /// With its value at this address.
    Pointer(Pointer),
    /// With its value beside the key.
    Inline(Value),
}

/// A value read by address.
#[derive(Clone, Debug)]
pub struct Found {
    /// The value.
    pub value: Value,
    /// A better address, where the one given led to a search.
    pub fresher: Option<Pointer>,
}

/// What may be asked of the index during a collection. Every call is counted (`gc.index_lookups`).
pub trait IndexView {
    /// The address and number under which `key` is now known, if its newest version is parted.
    ///
    /// # Errors
    /// Those of a read.
    fn current(&self, key: &[u8]) -> Result<Option<(SeqNo, Pointer)>>;

    /// The numbers of all snapshots that are open, ascending.
    fn snapshots(&self) -> &[SeqNo];
}

/// How tight space is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpacePressure {
    /// Bytes of live values, as far as known.
    pub live_bytes: u64,
    /// Bytes of all value files.
    pub total_bytes: u64,
    /// The bound, in bytes, that the directory should keep.
    pub target_bytes: u64,
}

/// What a placement wants collected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Collection {
    /// These files, by [`Placement::collect`].
    Files(Vec<FileId>),
    /// The tables of this key range rewritten, so that [`Rewriter::keep`] moves their values (`None`: unbounded).
    Rewrite {
        /// First key.
        start: Option<Box<[u8]>>,
        /// First key after the range.
        end: Option<Box<[u8]>>,
    },
}

/// What a collection did.
#[derive(Clone, Debug, Default)]
pub struct Collected {
    /// Files that come and go.
    pub edit: ValueEdit,
    /// Values that moved, to be written back by the engine: key, number of the version that moved, old and new address.
    pub moved: Vec<Moved>,
}

/// One moved value. It replaces the old address only where that is still the current one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The key.
    pub key: Box<[u8]>,
    /// The version that moved.
    pub seqno: SeqNo,
    /// Where it was.
    pub from: Pointer,
    /// Where it is.
    pub to: Pointer,
}
