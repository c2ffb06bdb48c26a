//! What a salvage found.

use std::path::{Path, PathBuf};

use bifold_contract::{FileId, KeyspaceId, SeqNo};
use bifold_format::{
    sorted,
    value::{ValueKind, ValueRecord},
};
use bifold_values::parts::salvage::{self, Source};
use serde::{Serialize, Serializer};

/// How many damaged stretches of a file are listed; more are only counted.
const DAMAGE_LISTED_MAX: usize = 1000;

/// What a salvage found.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The files, ascending by number.
    pub files: Vec<FileReport>,
    /// The keyspaces.
    pub keyspaces: Vec<KeyspaceReport>,
}

/// What was found in a file.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct FileReport {
    /// Its path.
    #[serde(serialize_with = "shown")]
    pub path: PathBuf,
    /// Its number.
    pub file: FileId,
    /// The keyspace that its values belong to, if its description is intact.
    pub keyspace: Option<KeyspaceId>,
    /// Its length, in bytes.
    pub bytes: u64,
    /// Intact records, of all kinds.
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
    /// Drop-keys: numbers of values, in any file, that compaction has dropped.
    pub drop_keys: u64,
    /// The largest sequence number of a record with a key.
    pub newest_seqno: SeqNo,
    /// Damaged stretches.
    pub damaged_stretches: u64,
    /// Bytes in them.
    pub damaged_bytes: u64,
    /// The first thousand damaged stretches.
    pub damage: Vec<Damage>,
}

/// Serializes a path that may not be UTF-8: what cannot be shown is replaced.
fn shown<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}

/// A stretch of a file that holds no intact record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
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
    /// The name used here: value files do not contain it.
    pub name: String,
    /// Its id; `None` for a file whose id is lost.
    pub id: Option<KeyspaceId>,
    /// Keys found.
    pub keys: u64,
    /// Keys whose newest record is a value.
    pub values: u64,
    /// Keys that were deleted.
    pub deleted: u64,
    /// Keys in a range that was deleted.
    pub range_deleted: u64,
    /// Keys whose newest value was inline, or in another file.
    pub moved: u64,
    /// Keys whose newest record is a value that a drop-key names: deleted, or overwritten by a value that none of the
    /// files holds.
    pub dropped: u64,
    /// The largest sequence number of a record.
    pub newest_seqno: SeqNo,
    /// Keys put into the new database.
    pub restored: u64,
    /// Bytes of these keys and their values.
    pub restored_bytes: u64,
    /// Values that were intact when they were found, but no longer when they were to be restored.
    pub lost: u64,
}

impl Report {
    /// Whether every byte of all files was intact, and stayed so.
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
            ValueKind::Index | ValueKind::Properties | ValueKind::Forwards => return,
        } += 1;
    }

    pub(super) fn damaged(&mut self, damage: salvage::Damage) {
        self.damaged_stretches += 1;
        self.damaged_bytes += damage.bytes;
        if self.damage.len() < DAMAGE_LISTED_MAX {
            let salvage::Damage { offset, bytes, problem } = damage;
            self.damage.push(Damage { offset, bytes, problem });
        }
    }
}
