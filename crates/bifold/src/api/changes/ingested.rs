//! The changes of an ingest, from the file that has them.

use bifold_contract::{Corruption, IoSource, Result, SeqNo, planted};
use bifold_format::{
    frame::FILE_HEADER_BYTES,
    log::{LogRecord, LoggedIngest},
    names,
    walk::{Met, Walk},
};
use bifold_io::{Dir, Reader};
use bifold_values::logs::check_header;

use super::{Change, change_of};

/// How far the file of an ingest is read.
pub(crate) struct AtIngest {
    ingest: LoggedIngest,
    reader: Reader,
    walk: Walk,
    /// The number of its next entry; `None` before the first.
    next: Option<SeqNo>,
}

impl AtIngest {
    /// # Errors
    /// I/O errors; damage.
    pub fn open(dir: &Dir, ingest: LoggedIngest) -> Result<Self> {
        let reader = dir.open_held(&names::ingest(ingest.file))?;
        let cut_short =
            |found| Corruption::new(found, "file of an ingest", format!("{} bytes", ingest.bytes), "the end");
        let found = reader.len_now()?;
        if found < ingest.bytes || !check_header(&reader, ingest.file, found)? {
            return Err(cut_short(found).of(reader.path()));
        }
        let walk = Walk::new(ingest.file, FILE_HEADER_BYTES as u64, ingest.bytes);
        Ok(Self { ingest, reader, walk, next: None })
    }

    /// The number after its last entry.
    pub fn end(&self) -> SeqNo {
        self.ingest.next
    }

    /// The changes of its next record; `None` behind the last one.
    ///
    /// # Errors
    /// I/O errors; damage.
    pub fn step(&mut self) -> Result<Option<Vec<Change>>> {
        let Self { ingest, reader, walk, next } = self;
        let path = reader.path();
        let read = |buffer: &mut [u8], at: u64| reader.read_at(buffer, at, IoSource::Recovery);
        let record = match walk.step(read)? {
            Met::Record(frame, _) => LogRecord::of(frame),
            Met::End if *next == Some(ingest.next) => return Ok(None),
            Met::End => {
                let expected = format!("entries up to number {}", ingest.next - 1);
                return Err(Corruption::new(ingest.bytes, "file of an ingest", expected, "the end").of(path));
            }
            Met::Torn(at) => {
                return Err(Corruption::new(at, "entries of an ingest", "a whole record", "one cut short").of(path));
            }
            Met::Damaged { offset, expected, found } => {
                return Err(Corruption::new(offset, "entries of an ingest", expected, found).of(path));
            }
        };
        let first = record.first_seqno;
        if let Some(expected) = next.filter(|next| *next != first) {
            let (expected, found) = (format!("entry {expected}"), format!("entry {first}"));
            return Err(Corruption::new(record.offset, "entries of an ingest", expected, found).of(path));
        }
        let mut changes = Vec::new();
        for (operation, seqno) in record.operations().zip(first..) {
            let change = operation.and_then(|operation| change_of(&operation, seqno));
            changes.push(change.map_err(|damage| damage.of(path))?);
        }
        let end = first + changes.len() as SeqNo;
        *next = Some(end);
        if let Some(last) = changes.last_mut() {
            last.ends_commit = end == ingest.next || planted!("each_record_of_an_ingest_is_a_commit");
        }
        Ok(Some(changes))
    }
}

/// Reads the file of an ingest from its first byte to its last one.
///
/// # Errors
/// Damage, I/O errors.
pub(crate) fn verify(dir: &Dir, ingest: LoggedIngest) -> Result<()> {
    let mut at = AtIngest::open(dir, ingest)?;
    while at.step()?.is_some() {}
    Ok(())
}
