//! The entries of an ingest once more, for the change feed: in no log, and in tables only until these are merged.
//!
//! ```text
//! piece ─▶ records of puts ─▶ NNNNNN.ingest ─▶ sync ─▶ announced in the log, arrived in the manifest
//! ```
//!
//! An error leaves the database as it was: nothing names the file. It is deleted unless it is [kept](FeedFile::keep).

use bifold_contract::{Entry, FileId, IoSource, Kind, Result, SeqNo, expiry, planted};
use bifold_format::{
    log::{self, Before, LogEncoder, LoggedIngest},
    names,
};
use bifold_index::{cursor::Cursor, entries::SortedEntries};
use bifold_io::{Dir, Writer};

/// A record has as many entries as fit here, and one at least.
const RECORD_BYTES: usize = 64 << 10;

/// The system is asked to begin writing after so many records, so that the sync at the end has less to do.
const WRITEBACK_RECORDS: u64 = 64;

/// The file with the entries of one ingest.
#[derive(Debug)]
pub(super) struct FeedFile {
    dir: Dir,
    file: FileId,
    keyspace: u32,
    writer: Option<Writer>,
    record: Vec<u8>,
    records: u64,
    bytes: u64,
    is_kept: bool,
}

impl FeedFile {
    /// Begins the file of an ingest into `keyspace`.
    ///
    /// # Errors
    /// I/O errors.
    pub fn create(dir: &Dir, file: FileId, keyspace: u32) -> Result<Self> {
        let writer = dir.create(&names::ingest(file), IoSource::Log)?;
        let mut made = Self {
            dir: dir.clone(),
            file,
            keyspace,
            writer: Some(writer),
            record: Vec::new(),
            records: 0,
            bytes: 0,
            is_kept: false,
        };
        made.write(&log::header(file))?;
        Ok(made)
    }

    /// Appends entries, the first of which has the number `seqno`.
    ///
    /// # Errors
    /// I/O errors; the file can only be dropped then.
    pub fn append(&mut self, entries: &SortedEntries, mut seqno: SeqNo) -> Result<()> {
        let mut cursor = entries.cursor(seqno);
        cursor.first()?;
        while cursor.entry().is_some() {
            let mut record = std::mem::take(&mut self.record);
            record.clear();
            let mut encoder = LogEncoder::begin(&mut record, self.file, self.bytes, seqno);
            let mut room = RECORD_BYTES;
            while let Some(entry) = cursor.entry()
                && room > 0
            {
                put(&mut encoder, self.keyspace, &entry);
                room = room.saturating_sub(entry.key.len() + entry.payload.len());
                seqno += 1;
                cursor.next()?;
            }
            encoder.finish(Before::Unsynced);
            self.write(&record)?;
            self.record = record;
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(writer) = &self.writer else { return Ok(()) };
        writer.append(&[bytes])?;
        self.bytes += bytes.len() as u64;
        self.records += 1;
        if self.records.is_multiple_of(WRITEBACK_RECORDS) {
            writer.start_writeback();
        }
        Ok(())
    }

    /// Completes the file and makes it durable, except for its name.
    ///
    /// # Errors
    /// I/O errors; the file can only be dropped then.
    pub fn finish(&mut self) -> Result<()> {
        match self.writer.take() {
            Some(writer) if !planted!("unsynced_feed_of_ingest") => writer.sync(),
            _ => Ok(()),
        }
    }

    /// What the log says of it. The ingest ends before the number `next`.
    pub fn announced(&self, next: SeqNo) -> LoggedIngest {
        LoggedIngest { next, file: self.file, bytes: self.bytes }
    }

    /// The ingest may have arrived: the file is not deleted.
    pub fn keep(&mut self) {
        self.is_kept = true;
    }
}

fn put(encoder: &mut LogEncoder<'_>, keyspace: u32, entry: &Entry<'_>) {
    match entry.kind {
        Kind::InlineUntil => {
            let (instant, value) = expiry::split(entry.payload);
            encoder.put_until(keyspace, entry.key, instant, value);
        }
        _ => encoder.put(keyspace, entry.key, entry.payload),
    }
}

impl Drop for FeedFile {
    fn drop(&mut self) {
        drop(self.writer.take());
        if !self.is_kept {
            // A file that stays only takes space. The failure was counted, and recovery removes what never arrived.
            let _counted = self.dir.remove(&names::ingest(self.file));
        }
    }
}
