//! What a log says of an ingest: that one is about to come.
//!
//! The announcement is synced before the manifest has the ingest, and nothing else is appended before that is durable.
//! So an ingest that was announced has arrived if the manifest has its last number, and if anything comes behind it but
//! markers. Otherwise a crash was in between, and it never happened.

use bifold_contract::{Corruption, FileId, SeqNo, key::MAX_SEQNO};

use super::{ANNOUNCED, LogEncoder, LogRecord, SKIP};
use crate::{
    bytes::{Input, put_varint},
    frame::HEADER_BYTES,
};

/// An ingest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedIngest {
    /// The number after its last entry, which the next operation has.
    pub next: SeqNo,
    /// The file that has its entries for the change feed; 0: none, because changes are not kept.
    pub file: FileId,
    /// How long that file is.
    pub bytes: u64,
}

impl LogEncoder<'_> {
    /// Makes the record a skip: the next operation has the number `next`, and those before it belong to nobody. It has
    /// no other content.
    pub fn skipped(&mut self, next: SeqNo) {
        self.out.push(SKIP);
        put_varint(self.out, next);
    }

    /// Makes the record the announcement of an ingest. It has no other content.
    pub fn announced(&mut self, LoggedIngest { next, file, bytes }: LoggedIngest) {
        self.out.push(ANNOUNCED);
        [next, file, bytes].into_iter().for_each(|number| put_varint(self.out, number));
    }
}

impl LogRecord<'_> {
    /// The ingest that the record announces, if it does.
    ///
    /// # Errors
    /// If it cannot be decoded.
    pub fn announced(&self) -> Result<Option<LoggedIngest>, Corruption> {
        let Some((_, rest)) = self.payload.split_first().filter(|(first, _)| **first == ANNOUNCED) else {
            return Ok(None);
        };
        let mut input = Input::new(rest, "log record of an ingest");
        let mut ingest = || {
            let ingest = LoggedIngest { next: input.varint()?, file: input.varint()?, bytes: input.varint()? };
            input.end().map(|()| ingest)
        };
        let at = self.offset + HEADER_BYTES as u64;
        let ingest = ingest().map_err(|damage: Corruption| damage.at(at))?;
        let least = self.first_seqno + 1;
        if (least..=MAX_SEQNO).contains(&ingest.next) {
            return Ok(Some(ingest));
        }
        let expected = format!("a next number from {least} to {MAX_SEQNO}");
        Err(Corruption::new(at, "log record of an ingest", expected, ingest.next.to_string()))
    }
}
