//! Writes the file of a large value.

use std::sync::Arc;

use bifold_contract::{FileId, IoSource, LargeRef, Result, planted};
use bifold_format::{
    large::{self, CHUNK_BYTES},
    names,
};
use bifold_io::Writer;

use super::LargeHome;
use crate::parts::buffers::Held;

/// The system is asked to begin writing after so many chunks, so that the sync at the end has less to do.
const WRITEBACK_CHUNKS: u64 = 16;

/// A file that is being written. Unless it is [kept](LargeWriter::keep), it is deleted.
#[derive(Debug)]
pub struct LargeWriter {
    home: Arc<LargeHome>,
    file: FileId,
    key_len: usize,
    writer: Option<Writer>,
    len: u64,
    sum: u64,
    is_kept: bool,
    /// What the caller has of the value in memory.
    _memory: Held,
}

impl LargeWriter {
    pub(super) fn create(home: &Arc<LargeHome>, key: &[u8]) -> Result<Self> {
        let file = (home.new_file)();
        let writer = home.dir.create_whole(&names::large(file), IoSource::Value)?;
        let chunk = CHUNK_BYTES as usize;
        let made = Self {
            home: Arc::clone(home),
            file,
            key_len: key.len(),
            writer: Some(writer),
            len: 0,
            sum: 0,
            is_kept: false,
            _memory: home.buffers.hold(chunk, chunk),
        };
        made.write(&[&large::head(file, home.keyspace, key)])?;
        Ok(made)
    }

    fn write(&self, parts: &[&[u8]]) -> Result<()> {
        self.writer.as_ref().map_or(Ok(()), |writer| writer.append(parts))
    }

    /// Appends a chunk: [`CHUNK_BYTES`] bytes of the value, or what is left of it.
    ///
    /// # Errors
    /// I/O errors; the file can only be dropped then.
    pub fn append(&mut self, chunk: &[u8]) -> Result<()> {
        let offset = self.writer.as_ref().map_or(0, Writer::len);
        let check = large::chunk_check(chunk, self.file, offset);
        self.write(&[chunk, &check.to_le_bytes()])?;
        self.sum = large::sum_with(self.sum, check);
        self.len += chunk.len() as u64;
        let is_time = (self.len / CHUNK_BYTES).is_multiple_of(WRITEBACK_CHUNKS);
        if let Some(writer) = self.writer.as_ref().filter(|_| is_time) {
            writer.start_writeback();
        }
        Ok(())
    }

    /// Completes the file and makes it durable, except for its name. Returns what an entry must say of it.
    ///
    /// # Errors
    /// As [`LargeWriter::append`].
    pub fn finish(&mut self) -> Result<LargeRef> {
        let named = LargeRef { file: self.file, len: self.len, sum: self.sum };
        self.write(&[&large::trailer(named, self.key_len)])?;
        let writer = self.writer.take();
        if let Some(writer) = writer.filter(|_| !planted!("large_named_before_sync")) {
            writer.sync()?;
        }
        Ok(named)
    }

    /// An entry names it, or may: it is not deleted.
    pub fn keep(&mut self) {
        self.is_kept = true;
    }
}

impl Drop for LargeWriter {
    fn drop(&mut self) {
        drop(self.writer.take());
        if !self.is_kept {
            // A file that stays only takes space. The failure was counted, and recovery removes what nothing names.
            let _counted = self.home.dir.remove(&names::large(self.file));
        }
    }
}
