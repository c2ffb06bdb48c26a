//! Garbage collection: a placement picks a [`GcJob`], and the engine runs it with the calls of a [`GcContext`].
//!
//! ```text
//! Placement::pick ─▶ GcJob ─▶ run ─┬─ look_up        which address is current?
//!   (pure)          (claims files) ├─ relocate       commits moves that the index still agrees to
//!                                  ├─ hold_commits   no commit meanwhile: the placement knows what is current
//!                                  ├─ rewrite        merges tables; the rewriter moves values with their keys
//!                                  └─ install        one manifest edit leads readers to the copies
//! ```
//!
//! **How a value moves** (HashKV §3.2 to 3.4, without its journals): a job copies what is live to new files, which
//! changes nothing yet. Then it moves the addresses, by one of these calls. A move is committed like a write, with a
//! sequence number of its own. The old files are marked as drained. They are deleted when the moves are durable and no
//! snapshot is older than them.

#[cfg(test)]
pub(crate) mod scene;

use bifold_contract::{FileId, Pointer, Result, SeqNo, ValueEdit};

/// One run of GC that a placement has picked.
pub trait GcJob: Send + Sync {
    /// What no other job may take until this one has ended.
    fn claim(&self) -> &GcClaim;

    /// Does the work. If the disk is full before anything was committed, the engine may free some space and call it
    /// again.
    ///
    /// # Errors
    /// I/O errors and corruption. What was not committed by then is as it was, and its copies are discarded.
    fn run(&self, gc: &dyn GcContext) -> Result<GcOutcome>;
}

/// What a GC job takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GcClaim {
    /// The value files that it reads. If it fails and nobody knows which file is to blame, all of them are left out.
    pub files: Vec<FileId>,
    /// It rewrites tables.
    pub rewrites: bool,
    /// No other GC job of the keyspace may run at the same time.
    pub is_alone: bool,
    /// It takes little time and commits no moves, so it never waits for a flush: the worker for flushes does it, too,
    /// while it has nothing to flush.
    pub is_short: bool,
}

impl GcClaim {
    /// A job on these files that no other may run concurrently with.
    #[must_use]
    pub fn alone(files: Vec<FileId>) -> Self {
        Self { files, is_alone: true, ..Self::default() }
    }

    /// A job on these files, concurrent with jobs on others.
    #[must_use]
    pub fn of(files: Vec<FileId>) -> Self {
        Self { files, ..Self::default() }
    }
}

/// What a GC run has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GcOutcome {
    /// Nothing has moved; the next pick knows better how much is dead.
    Looked,
    /// Garbage was freed.
    Collected {
        /// Bytes that come free: those of the drained files minus those of the copies.
        freed_bytes: u64,
        /// Bytes of values that an installed edit has moved. Moves that were committed are counted by the engine.
        installed_bytes: u64,
    },
}

impl GcOutcome {
    /// A run whose values moved by commits or by rewrites.
    #[must_use]
    pub fn freed(freed_bytes: u64) -> Self {
        Self::Collected { freed_bytes, installed_bytes: 0 }
    }
}

/// What GC may ask of the index.
pub trait IndexView {
    /// The current address of `key`, if its newest version is separated. Every call is counted (`gc.index_lookups`).
    ///
    /// # Errors
    /// Those of a read.
    fn look_up(&self, key: &[u8]) -> Result<Option<Pointer>>;

    /// Whether a placement that knows by itself what is current must ask all the same, for each value that it copies:
    /// entries may vanish that nobody has overwritten, because they expire, or may be needed by operands above them.
    fn must_be_asked(&self) -> bool {
        false
    }

    /// For each of these versions, which are known to be in the index and given by key and number: the newest version
    /// of the key above the last run that may have the key. If there is none, the given version is the newest, and the
    /// last run need not be read. Several at once cost much less than one at a time. Each is counted as a lookup.
    ///
    /// # Errors
    /// Those of a read.
    fn look_above(&self, asked: &[(&[u8], SeqNo)]) -> Result<Vec<NewestAbove>> {
        let newest = |key| Ok(self.look_up(key)?.map_or(NewestAbove::Other, NewestAbove::Separated));
        asked.iter().map(|&(key, _)| newest(key)).collect()
    }
}

/// The newest version of a key above the last run of the index that may have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewestAbove {
    /// Its value is separated and at this address.
    Separated(Pointer),
    /// Its value is not separated, or it is a deletion.
    Other,
    /// There is none.
    Nothing,
}

/// What the engine does for a GC job.
pub trait GcContext: IndexView {
    /// How many of these copies, in their order, the disk has room for: for each, at most its bytes. A job that copies
    /// much asks before it begins.
    ///
    /// # Errors
    /// [`Error::Full`](bifold_contract::Error::Full) when there is no room for even the first ones.
    fn fit(&self, copies: &[u64]) -> Result<usize>;

    /// Commits those of these moves whose old address is still the newest of its key. Each is compared with the index,
    /// a few at a time, with other commits in between. Calls `refused` for each that is not committed, also before it
    /// returns an error. Returns a sequence number that all of them, and all that the index has shown to this job, are
    /// below or at, even without moves; `None` when the keyspace was dropped.
    ///
    /// # Errors
    /// I/O errors, and every reason not to take writes.
    fn relocate(&self, moves: &[Moved], refused: &mut dyn FnMut(&Moved)) -> Result<Option<SeqNo>>;

    /// Calls `act` while nothing else is committed. Keep it to half a millisecond: writers wait. Returns `false`,
    /// without a call, when the keyspace was dropped.
    ///
    /// # Errors
    /// Those of `act`, which end writes, and every reason not to take writes. While there is no room to write a full
    /// memtable, it fails before the call, and the database goes on: a placement must not lose track of its copies. So
    /// it does if [`Commits::commit`] cannot read the index, or finds that a value has too many operands above it; what
    /// it has committed stays.
    fn hold_commits(&self, act: &mut dyn FnMut(&mut dyn Commits) -> Result<()>) -> Result<bool>;

    /// Merges tables, so that their [`Rewriter`](super::Rewriter) learns what is dead and moves values. Returns the
    /// bytes that come free. Tables and values that cannot be read stay where they are, and the rewrite goes on.
    ///
    /// # Errors
    /// I/O errors, and every reason not to take writes.
    fn rewrite(&self, tables: RewrittenTables<'_>) -> Result<u64>;

    /// Makes an edit durable, then calls `in_force`, which leads readers to the copies, and then deletes the files that
    /// the edit removes. `edit` is called under the manifest lock. Neither is called when the keyspace was dropped.
    ///
    /// `copied` is the newest version whose value was copied, unless all that are copied are known to be durable. All
    /// commits up to it become durable before the edit: a power loss must not take them and leave the copies, which
    /// nothing would ever call dead.
    ///
    /// # Errors
    /// I/O errors. If the edit is not durable then, the files that it adds are given up.
    fn install(
        &self,
        copied: Option<SeqNo>,
        edit: &mut dyn FnMut() -> ValueEdit,
        in_force: &mut dyn FnMut(),
    ) -> Result<()>;
}

/// Commits, while all others wait.
pub trait Commits {
    /// Commits these moves. They are compared with the index only if [`IndexView::must_be_asked`]: those whose old
    /// address is not the newest are then left out, and `refused` is called for each. Returns a sequence number that
    /// they, and everything committed before, are below or at.
    ///
    /// # Errors
    /// I/O errors, and every reason not to take writes.
    fn commit(&mut self, moves: &[Moved], refused: &mut dyn FnMut(&Moved)) -> Result<SeqNo>;
}

/// Which tables a GC job has rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RewrittenTables<'a> {
    /// All with entries that others may have overwritten. Memtables are written to tables first.
    Overwritten,
    /// All, so that the placement sees every entry of the tables.
    All,
    /// All, and memtables are written to tables first: the placement sees every entry of the index.
    Everything,
    /// All with keys of a range.
    Range {
        /// First key.
        start: &'a [u8],
        /// The last key; it may be exceeded.
        end: &'a [u8],
        /// Files whose values are to move.
        moving: &'a [FileId],
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
