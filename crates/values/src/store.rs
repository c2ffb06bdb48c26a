//! The values of one keyspace: its value files, and the placement that decides about them.
//!
//! ```text
//! engine ─▶ ValueStore ─┬─▶ ValueFiles   durability, the manifest, deleting files: the same for every placement
//!                       ├─▶ LargeFiles   large values: no placement knows of them
//!                       └─▶ Placement    where a value is written, what GC picks
//! ```
//!
//! A placement that decides nothing special about durability or recovery has no code for it.

use std::{ops::Deref, sync::Arc};

use bifold_contract::{
    Error, FileId, IoSource, LargeEdit, Pointer, Result, SeqNo, Value, ValueEdit, ValueFileMeta, planted,
};

use crate::{
    parts::{
        large_files::{LargeFiles, LargeRewriter},
        value_files::{Stretches, ValueFiles},
    },
    placement::{FilesHeld, GcClaim, Located, Placement, RewriteJob, Rewriter},
    placements::inline::Inline,
};

/// The values of one keyspace. Dereferences to the placement, for what that alone decides.
pub struct ValueStore<P: ?Sized = dyn Placement> {
    files: Arc<ValueFiles>,
    large: Arc<LargeFiles>,
    /// [`Profile::reads_by_address`](crate::placement::Profile::reads_by_address).
    reads_by_address: bool,
    placement: Box<P>,
}

impl<P: ?Sized> Deref for ValueStore<P> {
    type Target = P;

    fn deref(&self) -> &Self::Target {
        &self.placement
    }
}

impl<P: Placement + ?Sized> std::fmt::Debug for ValueStore<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ValueStore").field(&self.profile().name).finish()
    }
}

impl ValueStore {
    /// A store of these files with this placement.
    #[must_use]
    pub fn new(files: Arc<ValueFiles>, placement: impl Placement + 'static) -> Self {
        Self::of(files, Box::new(placement))
    }

    /// Its files.
    #[must_use]
    pub fn files(&self) -> &Arc<ValueFiles> {
        &self.files
    }

    /// A store without values in the same place, for a keyspace that is dropped.
    #[must_use]
    pub fn for_dropped(&self) -> Self {
        Self::new(Arc::new(self.files.without_any()), Inline)
    }
}

/// Durability.
impl<P: Placement + ?Sized> ValueStore<P> {
    /// As [`ValueStore::new`], with the type of the placement kept.
    #[must_use]
    pub fn of(files: Arc<ValueFiles>, placement: Box<P>) -> Self {
        let large = Arc::new(LargeFiles::open(files.context(), &LargeEdit::default()));
        Self { files, large, reads_by_address: placement.profile().reads_by_address, placement }
    }

    /// The same store with these large values.
    #[must_use]
    pub fn with_large(self, large: LargeFiles) -> Self {
        Self { large: Arc::new(large), ..self }
    }

    /// Its large values.
    #[must_use]
    pub fn large(&self) -> &Arc<LargeFiles> {
        &self.large
    }

    /// See [`Placement::rewriter`]. The placement sees no entries of large values.
    ///
    /// # Errors
    /// As [`Placement::rewriter`].
    pub fn rewriter(&self, job: &RewriteJob) -> Result<Box<dyn Rewriter>> {
        Ok(LargeRewriter::around(&self.large, job, self.placement.rewriter(job)?))
    }

    /// Determines what the next [`ValueStore::sync`] covers: everything routed so far. Called under the commit lock.
    pub fn begin_sync(&self) {
        self.files.begin_sync();
    }

    /// Makes everything durable that [`ValueStore::begin_sync`] covered. Calls exclude each other.
    ///
    /// # Errors
    /// I/O errors. After one, nothing routed counts as durable.
    pub fn sync(&self) -> Result<()> {
        self.files.sync()
    }

    /// The log was synced after the last [`ValueStore::sync`]: the commits of those values are durable.
    pub fn synced(&self) {
        self.files.synced();
    }

    /// Whether something was routed that no [`ValueStore::synced`] has covered: tables that point there must wait.
    #[must_use]
    pub fn has_unsynced(&self) -> bool {
        self.files.has_unsynced()
    }
}

/// Reading.
impl<P: Placement + ?Sized> ValueStore<P> {
    /// See [`Placement::read`].
    ///
    /// # Errors
    /// I/O errors, or corruption when the record there is not of `key`.
    pub fn read(&self, key: &[u8], seqno: SeqNo, pointer: Pointer, source: IoSource) -> Result<Option<Value>> {
        self.placement.read(&self.files, (key, seqno), pointer, source)
    }

    /// As [`ValueStore::read`], but the value is only shown to `see`. Returns whether it was there.
    ///
    /// # Errors
    /// As [`ValueStore::read`].
    pub fn show(
        &self,
        (key, seqno): (&[u8], SeqNo),
        pointer: Pointer,
        source: IoSource,
        see: &mut dyn FnMut(&[u8]),
    ) -> Result<bool> {
        let mut at = self.reads_by_address.then_some(pointer);
        while let Some(place) = at {
            if self.files.show(key, place, source, see)? {
                return Ok(true);
            }
            at = self.placement.follow(place);
        }
        Ok(self.read(key, seqno, pointer, source)?.map(|value| see(&value)).is_some())
    }

    /// See [`Placement::prefetch`].
    pub fn prefetch(&self, pointers: &[Pointer]) -> Option<Stretches> {
        self.placement.prefetch(&self.files, pointers)
    }

    /// Calls `look` with the value of `key` at `pointer`, if it was announced together with its neighbours in the file.
    /// `None`: [`ValueStore::read`] knows more.
    ///
    /// # Errors
    /// As [`Stretches::look_at`].
    pub fn look_at_announced<T>(
        &self,
        (key, pointer): (&[u8], Pointer),
        announced: &Stretches,
        source: IoSource,
        mut look: impl FnMut(&[u8]) -> T,
    ) -> Result<Option<T>> {
        let mut at = if self.reads_by_address { Some(pointer) } else { self.placement.locate_now(pointer) };
        while let Some(place) = at {
            let looked = announced.look_at((key, place), source, &mut look)?;
            if looked.is_some() {
                return Ok(looked);
            }
            at = self.placement.follow(place);
        }
        Ok(None)
    }

    /// Bytes of memory that it holds between calls: filters, and what open files take. Without the system's page
    /// cache, from which value files may be mapped.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.files.memory_bytes() + self.large.memory_bytes() + self.placement.memory_bytes()
    }

    /// See [`Placement::readers_ask`].
    #[must_use]
    pub fn readers_ask(&self) -> bool {
        self.placement.readers_ask()
    }

    /// See [`Placement::largest_unit`].
    #[must_use]
    pub fn largest_unit(&self) -> u64 {
        self.placement.largest_unit(&self.files)
    }
}

/// The manifest, and deleting files.
impl<P: Placement + ?Sized> ValueStore<P> {
    /// Files made by commits and GC that no edit names yet. The next edit must record them, after
    /// [`ValueStore::make_durable`].
    #[must_use]
    pub fn unrecorded(&self) -> Vec<ValueFileMeta> {
        self.files.unrecorded()
    }

    /// Makes the recorded lengths of these files durable.
    ///
    /// # Errors
    /// I/O errors.
    pub fn make_durable(&self, files: &[ValueFileMeta]) -> Result<()> {
        self.files.make_durable(files)
    }

    /// The pending edit: what the manifest should record once all commits up to `flushed` are in tables. The edit of
    /// those tables includes it.
    #[must_use]
    pub fn pending_edit(&self, flushed: SeqNo) -> ValueEdit {
        self.placement.count_dead();
        self.files.pending_edit(flushed)
    }

    /// `edit` is durable and installed: the files that it removed are deleted.
    pub fn installed(&self, edit: &ValueEdit) {
        self.files.unhide(edit);
        self.placement.comes_into_force(edit);
        self.files.installed(edit);
        self.large.installed(&edit.large);
        if !edit.removed.is_empty() {
            self.placement.files_were_deleted(&self.files);
        }
    }

    /// See [`Placement::give_up`].
    pub fn give_up(&self, edit: &ValueEdit) {
        self.files.remove_hidden(edit);
        self.placement.give_up(&self.files, edit);
    }

    /// All value files, and those of large values, as one edit, with which a new manifest begins.
    #[must_use]
    pub fn recorded(&self) -> ValueEdit {
        ValueEdit { large: self.large.recorded(), ..self.files.recorded() }
    }

    /// Files that are no longer needed: drained by moves that are durable (numbers up to `durable`) and that all
    /// snapshots see. They must be removed from the manifest and are then deleted by [`ValueStore::installed`].
    #[must_use]
    pub fn reclaim(&self, durable: SeqNo, oldest_snapshot: Option<SeqNo>) -> ValueEdit {
        self.files.reclaim(durable, oldest_snapshot)
    }

    /// Whether [`ValueStore::reclaim`] would find something after a sync.
    #[must_use]
    pub fn can_reclaim(&self, oldest_snapshot: Option<SeqNo>) -> bool {
        self.files.can_reclaim(oldest_snapshot)
    }

    /// Bytes of deleted value files that nobody needs and that are still to be removed from the disk.
    #[must_use]
    pub fn being_removed_bytes(&self) -> u64 {
        if planted!("removed_files_take_no_space") { 0 } else { self.files.being_removed_bytes() }
    }

    /// Bytes of drained files that a snapshot of everything up to `seqno` may still read.
    #[must_use]
    pub fn drained_after(&self, seqno: SeqNo) -> u64 {
        self.files.drained_after(seqno)
    }

    /// Something in a file cannot be read: see [`Placement::is_left_out`]. Returns whether that is new.
    pub fn leave_out(&self, file: FileId, why: &Error) -> bool {
        let is_new = self.files.leave_out(file, why);
        if is_new {
            self.placement.is_left_out(file);
        }
        is_new
    }

    /// Whether a file is left out.
    #[must_use]
    pub fn is_left_out(&self, file: FileId) -> bool {
        self.files.is_left_out(file)
    }

    /// How many files of a GC job are left out.
    #[must_use]
    pub fn left_out_of(&self, claim: &GcClaim) -> usize {
        claim.files.iter().filter(|&&file| self.is_left_out(file)).count()
    }

    /// Why files are left out.
    #[must_use]
    pub fn left_out(&self) -> Vec<Error> {
        self.files.left_out()
    }

    /// Why a pointer of the index may lead nowhere, where that is known: a file that is left out would say more.
    #[must_use]
    pub fn why_lost(&self) -> Option<Error> {
        self.files.why_lost()
    }

    /// The keyspace is dropped: its files are deleted when the last reader releases them.
    pub fn drop_files(&self) {
        self.files.drop_all();
        self.large.drop_all();
    }

    /// All its files that exist, drained files included.
    #[must_use]
    pub fn live_files(&self) -> Vec<FileId> {
        self.files.present()
    }

    /// Keeps the files of [`ValueStore::live_files`] from being deleted while the result lives.
    #[must_use]
    pub fn hold_files(&self) -> FilesHeld {
        self.files.hold()
    }

    /// See [`Placement::seal`].
    pub fn seal(&self) {
        self.placement.seal(&self.files);
    }
}

/// Recovery.
impl<P: Placement + ?Sized> ValueStore<P> {
    /// See [`Placement::locate`].
    ///
    /// # Errors
    /// Corruption, if the file does not say which keyspace it belongs to.
    pub fn locate(&self, pointer: Pointer) -> Result<Located> {
        self.placement.locate(&self.files, pointer)
    }

    /// See [`Placement::refer`].
    pub fn refer(&self, pointer: Pointer, commit: SeqNo) {
        self.placement.refer(&self.files, pointer, commit);
    }

    /// The last commit that the logs must hold if they are whole: files were deleted because it was durable. 0 if
    /// there is none.
    #[must_use]
    pub fn durable_before(&self) -> SeqNo {
        self.files.durable_before()
    }

    /// Truncates the files before the logs are replayed: of what follows the lengths recorded in the manifest, keeps
    /// what commits up to `last` have written. What was appended up to the commit `durable` is on disk. The rest is
    /// written again in place, because it may be what a failed sync left in the system's cache. A database open
    /// read-only changes no file.
    ///
    /// # Errors
    /// I/O errors.
    pub fn finish_recovery(&self, last: SeqNo, durable: SeqNo) -> Result<()> {
        let in_tails = self.files.truncate_tails(last, durable)?;
        self.placement.recovered(&self.files, in_tails)
    }
}
