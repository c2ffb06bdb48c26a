//! One atomic change of a database: what a record of the manifest says.
//!
//! Tables and value files change in the **same** record, because a crash between two records would leave pointers
//! to values that are gone or values that nothing points at.

use std::sync::Arc;

use crate::{FileId, KeyspaceId, RunId, SeqNo, TableMeta};

/// One record of the manifest. Applying all records in order to an empty database yields its present state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edit {
    /// The next file id to hand out, when it changed.
    pub next_file: Option<FileId>,
    /// A lower bound of the last sequence number in use, when it changed (the log may hold later ones).
    pub last_seqno: Option<SeqNo>,
    /// Which logs are still needed, when it changed.
    pub log_floor: Option<LogFloor>,
    /// Changes of keyspaces.
    pub keyspaces: Vec<KeyspaceEdit>,
    /// Changes of tables, by keyspace.
    pub levels: Vec<LevelEdit>,
    /// Changes of value files.
    pub values: ValueEdit,
}

/// Where recovery begins to read logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogFloor {
    /// Logs with a smaller id are not needed any more.
    pub log: FileId,
    /// The number of the first commit in this log or, while it is empty, in the next: what recovery must find first.
    pub first: SeqNo,
}

/// A keyspace comes, goes or moves on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyspaceEdit {
    /// A keyspace is created.
    Created {
        /// Its id, new in this database.
        id: KeyspaceId,
        /// Its name, unique among those that exist.
        name: String,
        /// Its options as TOML; what the engine reads back at open.
        options: String,
    },
    /// Its options changed.
    Configured {
        /// Which keyspace.
        id: KeyspaceId,
        /// Its new options as TOML.
        options: String,
    },
    /// A keyspace and all its tables are gone.
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
}

/// Tables added to and removed from one tree, and keys at which it is split.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LevelEdit {
    /// Which keyspace.
    pub keyspace: KeyspaceId,
    /// Tables removed; done before `added`, so a moved table stands in both.
    pub removed: Vec<TableRemoved>,
    /// Tables added.
    pub added: Vec<TableAdded>,
    /// Boundaries added to those there are: see [`Levels::partitions`](crate::Levels::partitions).
    pub boundaries: Vec<Box<[u8]>>,
}

/// A table takes its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableAdded {
    /// The level.
    pub level: u8,
    /// The run of that level, made when it is not there yet.
    pub run: RunId,
    /// The table.
    pub table: Arc<TableMeta>,
}

/// A table leaves its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableRemoved {
    /// The level it was in.
    pub level: u8,
    /// The run it was in.
    pub run: RunId,
    /// The table.
    pub table: FileId,
}

/// Changes of value files. Empty for placements that keep values beside keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValueEdit {
    /// Value files removed; done before `added`, so a file whose description changed stands in both.
    pub removed: Vec<FileId>,
    /// Value files added.
    pub added: Vec<ValueFileMeta>,
    /// Garbage that became known: file, bytes, records. Counters only grow while a file lives.
    pub garbage: Vec<(FileId, u64, u64)>,
    /// Files and tags that they get beside those they have. Of a file that is gone meanwhile it means nothing.
    pub tagged: Vec<(FileId, u32)>,
}

impl ValueEdit {
    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.added.is_empty() && self.garbage.is_empty() && self.tagged.is_empty()
    }
}

/// What the manifest knows of one value file. The placement that wrote it gives `class`, `group` and `tags` their
/// meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueFileMeta {
    /// The file.
    pub id: FileId,
    /// Which kind of value file (the placement's own numbering).
    pub class: u8,
    /// Which keyspace its values belong to.
    pub keyspace: KeyspaceId,
    /// Segment group, sorted group, partition or stable file number.
    pub group: u64,
    /// The level it follows, where the placement ties values to levels.
    pub level: u8,
    /// How often it has been rewritten.
    pub epoch: u32,
    /// Marks for the next merge or collection.
    pub tags: u32,
    /// Bytes in it.
    pub bytes: u64,
    /// Records in it.
    pub entries: u64,
    /// Smallest key in it, where known.
    pub smallest: Box<[u8]>,
    /// Largest key in it, where known.
    pub largest: Box<[u8]>,
}
