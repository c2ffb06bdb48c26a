//! What GC writes: copies at the end of files, and files that do not belong to commits.

use std::{
    borrow::Borrow,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use bifold_contract::{FileId, IoSource, Pointer, Result, ValueEdit, ValueFileMeta, planted};
use bifold_format::{
    names,
    value::{self, ValueRecord},
};
use bifold_io::{Dir, Writer};

use super::{Extent, ValueFile, ValueFiles};
use crate::parts::{buffers::Held, hash_map::HashMap, sync::LockExt};

/// Copies are written in pieces of this size, where there is memory for it: 0.3 µs per KiB instead of 0.9.
const COPY_BUFFER_BYTES: usize = 256 << 10;

/// Pieces end at a multiple of this, except the last. So no piece is smaller.
const COPY_ALIGNMENT: usize = 32 << 10;

/// What GC appends to a file, new or existing. A copy that is dropped before it is finished leaves nothing.
#[derive(Debug)]
pub struct Copy {
    file: Arc<ValueFile>,
    undo: Undo,
    /// Keeps the file open for appending.
    writer: Arc<Writer>,
    /// Where the next record will stand. The length of the file itself changes only when the copy is finished.
    end: u64,
    /// Records not written yet.
    buffer: Vec<u8>,
    /// The buffer is written in pieces of this size.
    piece_bytes: usize,
    held: Held,
}

/// A file to which nothing is appended any more, and which no sync has covered.
#[derive(Debug)]
pub struct Finished {
    file: Arc<ValueFile>,
    writer: Arc<Writer>,
}

impl Borrow<Writer> for Finished {
    fn borrow(&self) -> &Writer {
        &self.writer
    }
}

/// Undoes a copy, unless it is finished.
#[derive(Debug)]
struct Undo {
    dir: Dir,
    file: Arc<ValueFile>,
    /// The file is new: nobody else knows it.
    is_new: bool,
    is_finished: bool,
}

impl Drop for Undo {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        // There may be bytes beyond the length that counts.
        self.file.sealed.store(true, Relaxed);
        if self.is_new {
            let _counted = self.dir.remove(&names::value(self.file.id));
        }
    }
}

impl Copy {
    /// The number of its file.
    #[must_use]
    pub fn id(&self) -> FileId {
        self.file.id
    }

    /// Where the next record will stand.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Appends a copy of `record` and returns where it will stand.
    ///
    /// # Errors
    /// I/O errors.
    pub fn append(&mut self, record: &ValueRecord<'_>) -> Result<Pointer> {
        self.append_with(|out, place| {
            value::encode(out, place, record.kind, record.seqno, record.key, record.stored());
        })
    }

    /// Appends a tag: the value of `record` is at `to`.
    ///
    /// # Errors
    /// I/O errors.
    pub fn append_tag(&mut self, record: &ValueRecord<'_>, to: Pointer) -> Result<Pointer> {
        self.append_with(|out, place| value::encode_tag(out, place, record.seqno, record.key, to))
    }

    /// Appends what `encode` appends to a buffer: one record that is to stand in this file, at this offset.
    ///
    /// # Errors
    /// I/O errors.
    pub fn append_with(&mut self, encode: impl FnOnce(&mut Vec<u8>, (FileId, u64))) -> Result<Pointer> {
        let offset = self.end;
        let begin = self.buffer.len();
        encode(&mut self.buffer, (self.file.id, offset));
        let len = self.buffer.len() - begin;
        self.end += len as u64;
        self.held.grow_to(self.buffer.capacity());
        if self.buffer.len() >= self.piece_bytes + COPY_ALIGNMENT {
            // So that the next piece begins at a page boundary of the system's cache.
            self.write_out(self.buffer.len() - (self.end % COPY_ALIGNMENT as u64) as usize)?;
        }
        Ok(Pointer { file: self.file.id, epoch: 0, offset, len: len as u32 })
    }

    /// Writes the first `bytes` of the buffer. To a file that was sealed since nothing is written: a checkpoint may
    /// have it under another name, and the copy is never finished.
    fn write_out(&mut self, bytes: usize) -> Result<()> {
        if bytes > 0 {
            let _not_sealed_meanwhile = self.file.writer.hold();
            debug_assert!(!self.undo.is_new || !self.file.is_sealed(), "nobody else knows a new file");
            if !self.file.is_sealed() || planted!("append_to_sealed") {
                self.writer.append(&[&self.buffer[..bytes]])?;
            }
            self.buffer.drain(..bytes);
        }
        Ok(())
    }
}

impl ValueFiles {
    /// Begins a file for what GC copies. Nobody reads it before it is finished.
    ///
    /// # Errors
    /// I/O errors.
    pub fn begin_copy(&self, class: u8, group: u64) -> Result<Copy> {
        self.begin_copy_for(class, group, IoSource::Gc)
    }

    /// As [`ValueFiles::begin_copy`], on behalf of `source`.
    ///
    /// # Errors
    /// I/O errors.
    pub fn begin_copy_for(&self, class: u8, group: u64, source: IoSource) -> Result<Copy> {
        let (file, writer) = self.create(class, group, source)?;
        Ok(self.copy_to(file, writer, true))
    }

    /// Begins a file for what an ingest writes: see [`ValueFiles::finish_hidden`].
    ///
    /// # Errors
    /// I/O errors.
    pub fn begin_ingested(&self, class: u8, group: u64) -> Result<Copy> {
        self.begin_copy_for(class, group, IoSource::Value)
    }

    /// Continues a file that no commit appends to. If the copy is not finished, the file is sealed.
    ///
    /// # Errors
    /// I/O errors.
    pub fn go_on_with(&self, file: &Arc<ValueFile>) -> Result<Copy> {
        let writer = self.writer(file)?;
        Ok(self.copy_to(Arc::clone(file), writer, false))
    }

    fn copy_to(&self, file: Arc<ValueFile>, writer: Arc<Writer>, is_new: bool) -> Copy {
        let undo = Undo { dir: self.context.dir.clone(), file: Arc::clone(&file), is_new, is_finished: false };
        let held = self.buffers().hold(COPY_ALIGNMENT, COPY_BUFFER_BYTES);
        let (end, buffer, piece_bytes) = (file.len(), Vec::new(), held.bytes());
        Copy { file, undo, writer, end, buffer, piece_bytes, held }
    }

    /// Lets readers find copies. The next sync covers them, and the next edit records them. `None`: a continued file
    /// has been sealed meanwhile, so nothing was copied.
    ///
    /// # Errors
    /// I/O errors.
    pub fn finish_copies(&self, mut copies: Vec<Copy>) -> Result<Option<Vec<Arc<ValueFile>>>> {
        copies.iter_mut().try_for_each(|copy| copy.write_out(copy.buffer.len()))?;
        let files: Vec<_> = copies.iter().map(|copy| Arc::clone(&copy.file)).collect();
        let _alone = self.change.hold();
        if files.iter().any(|file| file.is_sealed()) {
            return Ok(None);
        }
        let begun: Vec<_> = files.iter().filter(|file| self.get(file.id).is_none()).map(Arc::clone).collect();
        if planted!("record_before_found") {
            self.unrecorded.hold().extend(begun.iter().map(Arc::clone));
        }
        self.mark_named();
        for mut copy in copies {
            copy.undo.is_finished = true;
            copy.file.len.store(copy.end, Relaxed);
            self.mark_dirty(&copy.file);
        }
        self.insert_alone(&files);
        // The last step: whoever records a file finds it by its number, to make it durable first.
        if !planted!("record_before_found") {
            self.unrecorded.hold().extend(begun);
        }
        Ok(Some(files))
    }

    /// Completes a file that does not belong to commits: durable, except for its name, when this returns. The caller
    /// names it in an edit.
    ///
    /// # Errors
    /// I/O errors; the file is then deleted.
    pub fn finish_alone(&self, copy: Copy) -> Result<ValueFileMeta> {
        let (meta, finished) = self.finish_unsynced(copy, None)?;
        self.sync_finished(&[finished]).inspect_err(|_| self.remove(meta.id))?;
        Ok(meta)
    }

    /// As [`ValueFiles::finish_alone`], for several files with one sync.
    ///
    /// # Errors
    /// I/O errors; the files are then deleted.
    pub fn finish_all_alone(&self, copies: Vec<Copy>) -> Result<Vec<ValueFileMeta>> {
        let mut metas: Vec<ValueFileMeta> = Vec::new();
        let finish = || {
            let mut finished = Vec::new();
            for copy in copies {
                let (meta, file) = self.finish_unsynced(copy, None)?;
                metas.push(meta);
                finished.push(file);
            }
            self.sync_finished(&finished)
        };
        let outcome = finish();
        outcome.inspect_err(|_| metas.iter().for_each(|meta| self.remove(meta.id)))?;
        Ok(metas)
    }

    /// As [`ValueFiles::finish_alone`], but the file becomes durable by [`ValueFiles::sync_finished`], which the caller
    /// calls before an edit names it. Values sorted by key have an `extent`.
    ///
    /// # Errors
    /// I/O errors; the file is then deleted.
    pub fn finish_unsynced(&self, copy: Copy, extent: Option<Extent>) -> Result<(ValueFileMeta, Finished)> {
        let finished = end_with(copy, extent)?;
        self.insert(std::slice::from_ref(&finished.file));
        Ok((finished.file.meta(self.context.keyspace), finished))
    }

    /// As [`ValueFiles::finish_unsynced`], but nobody finds the file before the edit that names it is in force.
    ///
    /// # Errors
    /// As [`ValueFiles::finish_unsynced`].
    pub fn finish_hidden(&self, copy: Copy, extent: Option<Extent>) -> Result<(ValueFileMeta, Finished)> {
        let finished = end_with(copy, extent)?;
        let file = Arc::clone(&finished.file);
        let meta = file.meta(self.context.keyspace);
        if planted!("ingest_shows_files_early") {
            self.insert(std::slice::from_ref(&file));
        } else {
            self.hidden.hold().insert(file.id, file);
        }
        Ok((meta, finished))
    }

    /// Lets readers and GC find the hidden files that `edit` names. It is durable, and so are they.
    pub(crate) fn unhide(&self, edit: &ValueEdit) {
        let mut hidden = self.hidden.hold();
        if hidden.is_empty() {
            return;
        }
        let shown: Vec<Arc<ValueFile>> = edit.added.iter().filter_map(|meta| hidden.remove(&meta.id)).collect();
        shown.iter().for_each(|file| file.recorded_len.store(file.len(), Relaxed));
        self.insert(&shown);
    }

    /// Makes finished files durable, except for their names.
    ///
    /// # Errors
    /// I/O errors.
    pub fn sync_finished(&self, finished: &[Finished]) -> Result<()> {
        if !planted!("skip_alone_sync") {
            self.context.dir.sync_files(finished.iter().map(|finished| &*finished.writer))?;
        }
        for Finished { file, .. } in finished {
            file.synced.store(file.len(), Relaxed);
            // Nothing is appended any more.
            *file.writer.hold() = None;
        }
        Ok(())
    }

    /// Deletes the hidden files that an edit names which was never recorded.
    pub(crate) fn remove_hidden(&self, edit: &ValueEdit) {
        let mut hidden = self.hidden.hold();
        for file in edit.added.iter().filter_map(|meta| hidden.remove(&meta.id)) {
            file.reader.remove_when_unused();
        }
    }

    /// Deletes a finished file that no edit has named.
    pub fn remove(&self, id: FileId) {
        if let Some(file) = self.hidden.hold().remove(&id) {
            file.reader.remove_when_unused();
            return;
        }
        let _alone = self.change.hold();
        let mut all = HashMap::clone(&self.all.load());
        if let Some(file) = all.remove(&id) {
            file.reader.remove_when_unused();
            self.all.store(Arc::new(all));
        }
    }
}

/// Writes what is left of a copy. Nothing is appended any more. Values sorted by key have an `extent`.
fn end_with(mut copy: Copy, extent: Option<Extent>) -> Result<Finished> {
    copy.write_out(copy.buffer.len())?;
    copy.writer.start_writeback();
    copy.undo.is_finished = true;
    let Copy { file, writer, .. } = copy;
    file.len.store(copy.end, Relaxed);
    if let Some(extent) = extent {
        let _it_had_none = file.extent.set(extent);
    }
    Ok(Finished { file, writer })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use bifold_contract::Error;
    use bifold_format::compression::{Compression, Compressor};
    use bifold_io::memory::MemoryFs;

    use super::*;
    use crate::parts::value_files::scratch::value_files;

    #[test]
    fn nothing_is_written_to_a_file_that_is_sealed_while_copies_are_appended_to_it() {
        let files = value_files(&MemoryFs::new(), 100);
        let mut first = files.begin_copy(0, 0).unwrap();
        let append = |copy: &mut Copy| {
            let mut plain = Compressor::new(Compression::None);
            copy.append_with(|out, place| value::encode_value(out, place, 7, b"key", b"value", &mut plain)).unwrap()
        };
        append(&mut first);
        let file = files.finish_copies(vec![first]).unwrap().unwrap().remove(0);
        let mut more = files.go_on_with(&file).unwrap();
        append(&mut more);
        files.seal();
        let bytes = || files.context.dir.len(&names::value(file.id)).unwrap();
        let before = bytes();
        assert!(files.finish_copies(vec![more]).unwrap().is_none(), "the copies do not count");
        assert_eq!((bytes(), before), (Some(file.len()), Some(file.len())), "and are not in the file");
    }

    #[test]
    fn a_file_that_the_next_edit_records_is_found_and_made_durable() {
        let files = value_files(&MemoryFs::new(), 100);
        let copy = files.begin_copy(0, 0).unwrap();
        let id = copy.id();
        let is_found = std::thread::scope(|scope| {
            let list = files.unrecorded.hold();
            let finishing = scope.spawn(|| files.finish_copies(vec![copy]).unwrap());
            // The other thread stops where it would list the file.
            let begin = Instant::now();
            while files.get(id).is_none() && begin.elapsed() < Duration::from_secs(5) {
                std::thread::yield_now();
            }
            let is_found = files.get(id).is_some();
            drop(list);
            assert!(finishing.join().unwrap().is_some());
            is_found
        });
        assert!(is_found, "the file is listed before it is found");
        let listed = files.unrecorded();
        assert_eq!(listed.iter().map(|meta| meta.id).collect::<Vec<_>>(), [id]);
        files.make_durable(&listed).unwrap();
        let unknown = [ValueFileMeta { id: id + 1, ..listed[0].clone() }];
        let error = files.make_durable(&unknown).unwrap_err();
        assert!(matches!(error, Error::Panicked { .. }), "{error}");
    }
}
