//! What GC of groups knows of each key: its newest record, and where that goes.

use std::num::NonZeroU32;

use bifold_contract::{FileId, SeqNo, planted};
use bifold_format::value::ValueKind;

use crate::placements::hashkv::options::Cold;

/// Destinations of copies.
pub(super) const HOT: usize = 0;
pub(super) const COLD_SEGMENT: usize = 1;
pub(super) const COLD_LOG: usize = 2;

/// The newest record of a key: its number and where it is.
#[derive(Clone)]
pub(super) struct Newest {
    pub seqno: SeqNo,
    pub source: u32,
    /// Records of the key in the hot segment, so far.
    pub hot_records: u32,
    pub offset: u64,
    /// Its position in `copied`, counted from 1.
    pub copied: Option<NonZeroU32>,
    /// Few records are tags.
    pub tag: Option<Box<Tag>>,
}

/// The tag that is the newest record of a key: the file of the cold log with the value, and the length of the value.
#[derive(Clone, Copy)]
pub(super) struct Tag {
    pub file: FileId,
    pub len: u32,
}

impl Newest {
    /// By age. Of two records with one number, a value is newer than its tag: a crash may have undone the move to the
    /// cold log, so that the index points at the value here. Of two tags, that of the later file is newer: the value
    /// moved on there.
    pub fn order(&self) -> (SeqNo, bool, FileId) {
        let is_value = self.tag.is_none() != planted!("tag_over_value");
        (self.seqno, is_value, self.tag.as_ref().map_or(0, |tag| tag.file))
    }

    /// Where a record goes, by whether it was updated since the last GC.
    pub fn goes_to(&self, cold: Cold, kind: ValueKind) -> usize {
        match (cold, kind) {
            (_, ValueKind::Tag) => HOT,
            _ if self.hot_records > 1 => HOT,
            (Cold::Segments, _) => COLD_SEGMENT,
            (Cold::Log | Cold::UnlimitedLog, ValueKind::Value) => COLD_LOG,
            _ => HOT,
        }
    }
}
