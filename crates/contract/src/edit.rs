//! One atomic change to a database: the content of one manifest record.
//!
//! Tables and value files change in the **same** record. A crash between two records would leave pointers to deleted
//! values, or values that nothing points at.

use std::sync::Arc;

use crate::{FileId, KeyspaceId, LargeRef, Millis, Pointer, RunId, SeqNo, TableMeta};

/// One record of the manifest. Applying all records in order to an empty database gives its current state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edit {
    /// The next file id to hand out, if it changed.
    pub next_file: Option<FileId>,
    /// A lower bound on the last sequence number in use, if it changed (the log may hold later ones).
    pub last_seqno: Option<SeqNo>,
    /// A moment up to which entries may have been seen expired, where entries expire.
    pub seen_time: Option<Millis>,
    /// Which logs are still needed, if that changed.
    pub log_floor: Option<LogFloor>,
    /// Changes to keyspaces.
    pub keyspaces: Vec<KeyspaceEdit>,
    /// Changes to tables, by keyspace.
    pub levels: Vec<LevelEdit>,
    /// Changes to value files.
    pub values: ValueEdit,
}

/// Where recovery starts to read logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogFloor {
    /// Logs with a smaller id are no longer needed.
    pub log: FileId,
    /// The number of the first commit in this log, or in the next one while this one is empty. Recovery must find it
    /// first.
    pub first: SeqNo,
}

/// A change to a keyspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyspaceEdit {
    /// A keyspace is created.
    Created {
        /// Its id, new in this database.
        id: KeyspaceId,
        /// Its name, unique among existing keyspaces.
        name: String,
        /// Its options as TOML, which the engine reads back at open.
        options: String,
    },
    /// Its options changed.
    Configured {
        /// Which keyspace.
        id: KeyspaceId,
        /// Its new options as TOML.
        options: String,
    },
    /// A keyspace and all its tables are deleted.
    Dropped {
        /// Which keyspace.
        id: KeyspaceId,
    },
    /// All commits of the keyspace up to `seqno` are in tables: replay of the log skips them.
    Flushed {
        /// Which keyspace.
        id: KeyspaceId,
        /// The last sequence number that the log need not replay.
        seqno: SeqNo,
    },
    /// From now on entries of the keyspace may vanish that nobody has overwritten: they expire.
    Expires {
        /// Which keyspace.
        id: KeyspaceId,
    },
}

/// Tables added to and removed from one tree, and keys at which the tree is split.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LevelEdit {
    /// Which keyspace.
    pub keyspace: KeyspaceId,
    /// Tables removed. Applied before `added`, so a moved table is in both.
    pub removed: Vec<TableRemoved>,
    /// Tables added.
    pub added: Vec<TableAdded>,
    /// New boundaries, added to the existing ones: see [`Levels::partitions`](crate::Levels::partitions).
    pub boundaries: Vec<Box<[u8]>>,
}

/// A table is added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableAdded {
    /// The level.
    pub level: u8,
    /// The run in that level, created if it does not exist yet.
    pub run: RunId,
    /// The table.
    pub table: Arc<TableMeta>,
}

/// A table is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableRemoved {
    /// The level it was in.
    pub level: u8,
    /// The run it was in.
    pub run: RunId,
    /// The table.
    pub table: FileId,
}

/// Changes to value files. Empty for placements with inline values only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValueEdit {
    /// Value files removed. Applied before `added`, so a file with a changed description is in both.
    pub removed: Vec<FileId>,
    /// Value files added.
    pub added: Vec<ValueFileMeta>,
    /// New garbage: file, bytes, records. The counters of a file only grow while the file lives.
    pub garbage: Vec<(FileId, u64, u64)>,
    /// Files and the tags added to those they have. Ignored for a file that has been deleted meanwhile.
    pub tagged: Vec<(FileId, u32)>,
    /// Changes to files of large values.
    pub large: LargeEdit,
    /// What a placement turns into counts at the moment the edit is recorded. Never recorded itself.
    pub pointers: PointerChanges,
}

/// What a rewrite did to pointers of the index. It is for placements that count by records, not by files: which file
/// a record is in may change between the rewrite and the moment its edit is recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PointerChanges {
    /// Of versions that leave the index with the edit: as the index has them.
    pub dropped: Vec<Pointer>,
    /// Of versions that stay, those that the edit gives a newer pointer: how often it was found in which file.
    pub led_by: Vec<(FileId, u64)>,
    /// Bytes of versions that leave the index though nobody has overwritten them, where the placement learns by itself
    /// of those that are overwritten: file, the number by which it knows the group of their keys, bytes.
    pub lost: Vec<(FileId, u64, u64)>,
}

impl PointerChanges {
    /// Adds those of another rewrite.
    pub fn extend(&mut self, other: Self) {
        self.dropped.extend(other.dropped);
        self.led_by.extend(other.led_by);
        self.lost.extend(other.lost);
    }
}

impl ValueEdit {
    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.removed.is_empty()
            && self.added.is_empty()
            && self.garbage.is_empty()
            && self.tagged.is_empty()
            && self.large.is_empty()
    }
}

/// Changes to files of large values: each is named by the one entry that has its value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LargeEdit {
    /// The files of entries that come into tables.
    pub added: Vec<LargeFileMeta>,
    /// The files of entries that leave the tables.
    pub removed: Vec<FileId>,
    /// The files of entries that were dropped before they came into tables. No manifest has named them, and none
    /// records this.
    pub unneeded: Vec<FileId>,
}

impl LargeEdit {
    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.unneeded.is_empty()
    }

    /// Adds the changes of another rewrite.
    pub fn extend(&mut self, other: Self) {
        self.added.extend(other.added);
        self.removed.extend(other.removed);
        self.unneeded.extend(other.unneeded);
    }
}

/// What the manifest knows of the file of a large value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeFileMeta {
    /// The keyspace of its entry.
    pub keyspace: KeyspaceId,
    /// What the entry says.
    pub named: LargeRef,
    /// The file's length, in bytes.
    pub bytes: u64,
}

/// What the manifest knows of one value file. The placement that wrote it gives `class`, `group` and `tags` their
/// meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueFileMeta {
    /// The file.
    pub id: FileId,
    /// The kind of value file (the placement's own numbering).
    pub class: u8,
    /// The keyspace its values belong to.
    pub keyspace: KeyspaceId,
    /// Segment group, sorted group, partition or stable file number.
    pub group: u64,
    /// The level it follows, where the placement ties values to levels.
    pub level: u8,
    /// Marks for the next merge or GC run.
    pub tags: u32,
    /// Bytes in it.
    pub bytes: u64,
    /// Records in it, where they are counted.
    pub entries: u64,
    /// The file is deleted, while logs may still point into it: the sequence number of the last move out of it.
    pub deleted: Option<SeqNo>,
    /// Smallest key in it, where known.
    pub smallest: Box<[u8]>,
    /// Largest key in it, where known.
    pub largest: Box<[u8]>,
}
