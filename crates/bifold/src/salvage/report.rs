//! What a salvage found.

use std::path::{Path, PathBuf};

use bifold_contract::{FileId, KeyspaceId, SeqNo};
use bifold_format::{
    sorted,
    value::{ValueKind, ValueRecord},
};
use bifold_values::parts::salvage::{self, Source};
use serde::{Serialize, Serializer};

/// Damaged stretches that are listed of each file; more are only counted.
const LISTED_MAX: usize = 1000;

/// What a salvage found.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Of each file, ascending by their numbers.
    pub files: Vec<FileReport>,
    /// Of each keyspace.
    pub keyspaces: Vec<KeyspaceReport>,
}

/// What was found in a file.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct FileReport {
    /// Where it is.
    #[serde(serialize_with = "shown")]
    pub path: PathBuf,
    /// Its number.
    pub file: FileId,
    /// Whose values it has, if that is whole.
    pub keyspace: Option<KeyspaceId>,
    /// Its length, in bytes.
    pub bytes: u64,
    /// Whole records, of all kinds.
    pub records: u64,
    /// Of these, values.
    pub values: u64,
    /// Notes that a key was deleted.
    pub deletes: u64,
    /// Notes that a key's newest value is somewhere else.
    pub stubs: u64,
    /// Tags: notes that a value was copied to the cold log.
    pub tags: u64,
    /// Range deletes.
    pub range_deletes: u64,
    /// Drop-keys: numbers of values, in whatever files, that compaction has dropped.
    pub drop_keys: u64,
    /// The largest number of a record with a key.
    pub newest_seqno: SeqNo,
    /// Damaged stretches, and bytes in them.
    pub damaged_stretches: u64,
    /// See above.
    pub damaged_bytes: u64,
    /// The first thousand damaged stretches.
    pub damage: Vec<Damage>,
}

/// A path that is not UTF-8 is still told, as far as it can be.
fn shown<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}

/// A stretch of a file that holds no whole record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// Where it starts, in bytes from the start of the file.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
    /// What was found there, in words.
    pub problem: String,
}

/// What was found of a keyspace, in all files.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct KeyspaceReport {
    /// The name it has here: value files do not know it.
    pub name: String,
    /// Its id; `None` for a file that does not say it any more.
    pub id: Option<KeyspaceId>,
    /// Keys met.
    pub keys: u64,
    /// Keys whose newest record is a value.
    pub values: u64,
    /// Keys that were deleted.
    pub deleted: u64,
    /// Keys in a range that was deleted.
    pub range_deleted: u64,
    /// Keys whose newest value stood beside them, or in another file.
    pub moved: u64,
    /// Keys whose newest record is a value that a drop-key names: deleted, or overwritten by what is in none of the files.
    pub dropped: u64,
    /// The largest number of a record.
    pub newest_seqno: SeqNo,
    /// Keys put into the new database.
    pub restored: u64,
    /// Bytes of these and their values.
    pub restored_bytes: u64,
    /// Values that were whole when they were found, and not any more when they were to be restored.
    pub lost: u64,
}

impl Report {
    /// Whether every byte of all files was whole, and stayed so.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.files.iter().all(|file| file.damaged_stretches == 0) && self.keyspaces.iter().all(|k| k.lost == 0)
    }
}

impl FileReport {
    pub(super) fn new(path: &Path, source: &Source) -> Self {
        let keyspace = source.description.map(|description| description.keyspace);
        let mut report =
            Self { path: path.to_owned(), file: source.file, keyspace, bytes: source.len(), ..Self::default() };
        if let Some(head) = source.head.clone() {
            report.damaged(head);
        }
        report
    }

    pub(super) fn count(&mut self, record: &ValueRecord<'_>) {
        self.records += 1;
        if record.kind.has_key() {
            self.newest_seqno = self.newest_seqno.max(record.seqno);
        }
        *match record.kind {
            ValueKind::Value => &mut self.values,
            ValueKind::Delete => &mut self.deletes,
            ValueKind::Stub => &mut self.stubs,
            ValueKind::Tag => &mut self.tags,
            ValueKind::DeleteRange | ValueKind::DeleteRangeUnbounded => &mut self.range_deletes,
            ValueKind::Drops => {
                self.drop_keys += sorted::drop_totals(record.body()).map_or(0, |totals| totals.count);
                return;
            }
            ValueKind::Index | ValueKind::Properties => return,
        } += 1;
    }

    pub(super) fn damaged(&mut self, damage: salvage::Damage) {
        self.damaged_stretches += 1;
        self.damaged_bytes += damage.bytes;
        if self.damage.len() < LISTED_MAX {
            let salvage::Damage { offset, bytes, problem } = damage;
            self.damage.push(Damage { offset, bytes, problem });
        }
    }
}
