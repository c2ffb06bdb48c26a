//! Salvage: what can be read of a damaged database.
//!
//! * [`DatabaseSalvage`] reads a directory in which anything may be damaged. Page: `docs/salvage.md`.
//! * [`Salvage`] reads value files alone, when manifest, logs and tables are lost. Page: `docs/formats/value.md`. The
//!   rest of this text is about it.
//!
//! ```text
//! pass: walk all files ─▶ the newest record of each key ─▶ walk files with drop-keys again: which of these are dropped
//!       ─▶ the fate of each key ─▶ report it, or put its value into another database
//! ```
//!
//! * Files are opened for reading only. A record that fails its checks is reported as damage, never returned as a
//!   value.
//! * The newest record of a key decides: if a delete, a stub or a range delete is newer than a value, the value is
//!   history, unless [`Restore::LastValue`] asks for it. The same goes for a value that a drop-key names, in
//!   whichever file: something newer overwrote it for all readers. That holds even if the rewrite that dropped it
//!   never took effect.
//! * Memory: one pass keeps the keys that fit in [`SalvageOptions::memory_bytes`]. It leaves the others, chosen by
//!   the hash of the key, to a later pass, which walks the files again. A pass remembers only those drop-keys that
//!   name the newest record of one of its keys. The limit does not cover range deletes and the largest record.
//!
//! **What no salvage can know**: inline values; deletes without a record (`wisckey` writes none; those of `novkv` are
//! known once compaction has found what they delete; GC of `hashkv` leaves out those with nothing left to delete in
//! their group, though the cold log may still hold some); commits that a crash undid; names of keyspaces.

mod bounded;
mod database;
mod newest;
mod report;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fmt,
    io::ErrorKind,
    path::Path,
    sync::Arc,
};

use bifold_contract::{Error, FileId, KeyspaceId, RangeTombstone, Result, SeqNo, Value, key};
use bifold_format::{
    sorted,
    value::{ValueKind, ValueRecord},
};
use bifold_index::range_tombstones::RangeTombstones;
use bifold_io::{Dir, Env};
use bifold_values::parts::salvage::{Found, Source};

pub use self::database::{DatabaseReport, DatabaseSalvage, LostStretch, RecoveredKeyspace};
pub use self::report::{Damage, FileReport, KeyspaceReport, Report};
use self::{
    bounded::Subset,
    newest::{Known, Newest, NewestVersions, Place},
};
use crate::{
    api::{
        batch::Batch,
        db::{DEFAULT_KEYSPACE, Db},
        keyspace::Keyspace,
    },
    settings::merge::MergeOperators,
};

/// The id that a new database gives the keyspace "default": file numbers and ids come from one counter, and the log
/// takes the first.
const DEFAULT_KEYSPACE_ID: KeyspaceId = 2;

/// Keys and values of one commit, in bytes.
const COMMIT_BYTES: usize = 1 << 20;

/// Progress is reported about once per this many bytes.
const PROGRESS_BYTES: u64 = 1 << 20;

/// Which values are restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Restore {
    /// The values of keys whose newest record is a value. The default.
    #[default]
    Newest,
    /// The newest value that the files hold for every key, even if the key was deleted later or its newest value is
    /// inline or in a lost file: keys may come back, and values may be old.
    LastValue,
}

/// How files are salvaged.
#[derive(Clone, Debug)]
pub struct SalvageOptions {
    /// For [`Salvage`]: which values are restored. Default: [`Restore::Newest`].
    pub restore: Restore,
    /// About how many bytes of keys are kept in memory at a time. Default: 256 MiB. Keys that do not fit cost another
    /// pass over the files.
    pub memory_bytes: usize,
    /// Known names of keyspaces, by their ids.
    pub names: BTreeMap<KeyspaceId, String>,
    /// For [`DatabaseSalvage`]: the keyspace of tables of which nothing tells whose they are. `None`: each becomes a
    /// keyspace of its own.
    pub tables_of: Option<KeyspaceId>,
    /// For [`DatabaseSalvage`]: merge operators of your own. Keys with operands of others are left out.
    pub merge_operators: MergeOperators,
}

impl Default for SalvageOptions {
    fn default() -> Self {
        Self {
            restore: Restore::default(),
            memory_bytes: 256 << 20,
            names: BTreeMap::new(),
            tables_of: None,
            merge_operators: MergeOperators::default(),
        }
    }
}

/// What the newest record of a key says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fate {
    /// It is a value.
    Value,
    /// The key was deleted.
    Deleted,
    /// A range with the key in it was deleted.
    RangeDeleted,
    /// The newest value was inline, or in another file.
    Moved,
    /// It is a value that compaction dropped: the key was deleted, or its newest value is in none of the files.
    Dropped,
}

/// One key.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SalvagedKey<'a> {
    /// The name of its keyspace, as used here.
    pub keyspace: &'a str,
    /// The key.
    pub key: &'a [u8],
    /// The number of its newest record.
    pub seqno: SeqNo,
    /// What that record says.
    pub fate: Fate,
    /// The number of its newest value, if there is one.
    pub value_seqno: Option<SeqNo>,
    /// The value file that holds the newest record.
    pub file: FileId,
    /// The offset of that record, in bytes from the start of the file.
    pub offset: u64,
}

/// How far a salvage has come.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SalvageProgress {
    /// Bytes of files walked.
    pub done_bytes: u64,
    /// Bytes to walk in all; grows when the keys do not fit in memory.
    pub total_bytes: u64,
}

/// A file and what was found in it.
struct OpenedFile {
    source: Source,
    /// The keyspace of its records: an index into `Salvage::keyspaces`.
    keyspace: usize,
    report: FileReport,
}

/// A keyspace and what was found of it.
#[derive(Default)]
struct FoundKeyspace {
    report: KeyspaceReport,
    /// Range deletes, in the order found.
    ranges: Vec<RangeTombstone>,
    /// The same, for lookups.
    tombstones: Option<RangeTombstones>,
}

impl fmt::Debug for Salvage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.opened.iter().map(|opened| &opened.report.path)).finish()
    }
}

/// Whether the files have been walked before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    First,
    Later,
}

/// Value files, open for reading only: see the [module](crate::salvage).
pub struct Salvage {
    /// Ordered by file number: of two records with the same sequence number, the one in the later file counts.
    opened: Vec<OpenedFile>,
    keyspaces: Vec<FoundKeyspace>,
    restore: Restore,
    memory_bytes: usize,
}

impl Salvage {
    /// Opens value files, which may lie in any directory. All of them must belong to the same database.
    ///
    /// # Errors
    /// I/O errors of opening them; corruption for a file that is not a value file; [`Error::InvalidArgument`] when two
    /// keyspaces would have the same name.
    pub fn open(env: &Env, files: &[impl AsRef<Path>], options: &SalvageOptions) -> Result<Self> {
        let mut sources = Vec::new();
        for path in files {
            sources.push((path.as_ref(), open_source(env, path.as_ref())?));
        }
        sources.sort_by_key(|(_, source)| source.file);
        let mut salvage = Self {
            opened: Vec::new(),
            keyspaces: Vec::new(),
            restore: options.restore,
            memory_bytes: options.memory_bytes,
        };
        for (path, source) in sources {
            let id = source.description.map(|description| description.keyspace);
            let keyspace = salvage.space(id, name_of(id, source.file, &options.names));
            let report = FileReport::new(path, &source);
            salvage.opened.push(OpenedFile { source, keyspace, report });
        }
        let names: BTreeSet<&str> = salvage.keyspaces.iter().map(|keyspace| &*keyspace.report.name).collect();
        if names.len() < salvage.keyspaces.len() {
            let reason = "two keyspaces would have the same name: give each id a different name";
            return Err(Error::invalid("names of keyspaces", reason));
        }
        Ok(salvage)
    }

    /// Calls `keys` for each key, in the order of keyspaces and keys if all keys fit in memory.
    ///
    /// # Errors
    /// Those of `keys`. Damage is not an error.
    pub fn inspect<E: From<Error>>(
        mut self,
        mut keys: impl FnMut(SalvagedKey<'_>) -> std::result::Result<(), E>,
        progress: impl FnMut(SalvageProgress),
    ) -> std::result::Result<Report, E> {
        self.passes::<E>(progress, |salvage, newest| {
            for (at, key, known) in newest.keys() {
                let fate = salvage.judge(at, key, known);
                let record = known.newest;
                keys(SalvagedKey {
                    keyspace: &salvage.keyspaces[at].report.name,
                    key,
                    seqno: record.seqno,
                    fate,
                    value_seqno: known.value.map(|value| value.seqno),
                    file: salvage.opened[record.source as usize].source.file,
                    offset: record.offset,
                })?;
            }
            Ok(())
        })?;
        Ok(self.report())
    }

    /// Puts what was found into `db`, each keyspace into the one with its name; creates those that are missing, with
    /// [`Options::keyspace`](crate::Options::keyspace) of `db`. Commits have the durability of `db`.
    ///
    /// # Errors
    /// Those of writing to `db`. Damage is not an error.
    pub fn restore(mut self, db: &Db, progress: impl FnMut(SalvageProgress)) -> Result<Report> {
        let find_or_create = |space: &FoundKeyspace| match db.existing_keyspace(&space.report.name)? {
            Some(existing) => Ok(existing),
            None => db.keyspace(&space.report.name, db.options().keyspace.clone()),
        };
        let keyspaces: Vec<Keyspace> = self.keyspaces.iter().map(find_or_create).collect::<Result<_>>()?;
        self.passes::<Error>(progress, |salvage, newest| {
            let mut wanted: Vec<(Place, usize, &[u8])> = Vec::new();
            for (at, key, known) in newest.keys() {
                let fate = salvage.judge(at, key, known);
                if fate == Fate::Value || salvage.restore == Restore::LastValue {
                    wanted.extend(known.value.map(|value| (value, at, key)));
                }
            }
            // In file order, so that the disk reads forward.
            wanted.sort_unstable_by_key(|(place, ..)| (place.source, place.offset));
            salvage.copy(&wanted, db, &keyspaces)
        })?;
        Ok(self.report())
    }

    /// The index of a keyspace, which is added if it is new. A file that does not name its keyspace gets its own: its
    /// deletes must not apply to the keys of others.
    fn space(&mut self, id: Option<KeyspaceId>, name: String) -> usize {
        let known = self.keyspaces.iter().position(|keyspace| id.is_some() && keyspace.report.id == id);
        known.unwrap_or_else(|| {
            let report = KeyspaceReport { name, id, ..KeyspaceReport::default() };
            self.keyspaces.push(FoundKeyspace { report, ..FoundKeyspace::default() });
            self.keyspaces.len() - 1
        })
    }

    /// Walks the files in as many passes as the keys need, and hands the keys of each pass to `done`.
    fn passes<E: From<Error>>(
        &mut self,
        mut progress: impl FnMut(SalvageProgress),
        mut done: impl FnMut(&mut Self, &Newest) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let pass_bytes: u64 = self.opened.iter().map(|opened| opened.source.len()).sum();
        let mut left = vec![Subset::ALL];
        let mut passes = 0;
        while let Some(subset) = left.pop() {
            let mut newest = Newest::new(subset, self.memory_bytes);
            for at in 0..self.opened.len() {
                let before = self.opened[..at].iter().map(|opened| opened.source.len()).sum::<u64>();
                let mut reported = 0;
                self.walk(
                    at,
                    if passes == 0 { Pass::First } else { Pass::Later },
                    &mut newest,
                    |position, open_subsets| {
                        let done_bytes = passes * pass_bytes + before + position;
                        if done_bytes >= reported + PROGRESS_BYTES {
                            reported = done_bytes;
                            let passes_total = passes + 1 + (left.len() + open_subsets) as u64;
                            progress(SalvageProgress { done_bytes, total_bytes: passes_total * pass_bytes });
                        }
                    },
                );
            }
            for keyspace in &mut self.keyspaces {
                // Only the newest state matters, so one snapshot is enough.
                let tombstones = || RangeTombstones::for_snapshots(&keyspace.ranges, &[key::MAX_SEQNO]);
                keyspace.tombstones.get_or_insert_with(tombstones);
            }
            self.look_for_drops(&mut newest);
            done(self, &newest)?;
            left.append(&mut newest.left);
            passes += 1;
        }
        Ok(())
    }

    /// Walks one file. Only the first pass counts what it finds.
    fn walk(&mut self, at: usize, pass: Pass, newest: &mut Newest, mut report_progress: impl FnMut(u64, usize)) {
        let OpenedFile { source, keyspace, report } = &mut self.opened[at];
        let space = &mut self.keyspaces[*keyspace];
        let mut salvage = source.salvage();
        loop {
            match salvage.step() {
                Found::Record(record, _) if !record.kind.has_key() => {
                    if pass == Pass::First {
                        report.count(&record);
                    }
                }
                Found::Record(record, len) => {
                    if pass == Pass::First {
                        report.count(&record);
                        space.report.newest_seqno = space.report.newest_seqno.max(record.seqno);
                        space.ranges.extend(range_of(&record));
                    }
                    if range_of(&record).is_none() {
                        let place = Place {
                            seqno: record.seqno,
                            offset: record.offset,
                            source: at as u32,
                            len,
                            kind: record.kind,
                        };
                        newest.add(*keyspace, record.key, Known::of(place));
                    }
                }
                Found::Damage(damage) if pass == Pass::First => report.damaged(damage),
                Found::Damage(_) => {}
                Found::End => break,
            }
            report_progress(salvage.position(), newest.left.len());
        }
    }

    /// Walks the files with drop-keys, and notes which of the newest values they name.
    fn look_for_drops(&self, newest: &mut Newest) {
        let mut drop_files = self.opened.iter().filter(|opened| opened.report.drop_keys > 0).peekable();
        if drop_files.peek().is_none() {
            return;
        }
        let mut asked = NewestVersions::of(newest);
        for OpenedFile { source, keyspace, .. } in drop_files {
            let mut salvage = source.salvage();
            loop {
                match salvage.step() {
                    Found::Record(record, _) if record.kind == ValueKind::Drops => {
                        let _whole_records_can_be_decoded =
                            sorted::decode_drops(record.body(), |seqno| asked.dropped(*keyspace, seqno));
                    }
                    Found::Record(..) | Found::Damage(_) => {}
                    Found::End => break,
                }
            }
        }
        asked.tell(newest);
    }

    /// Decides the fate of a key and counts it.
    fn judge(&mut self, at: usize, key: &[u8], known: &Known) -> Fate {
        let FoundKeyspace { report, tombstones, .. } = &mut self.keyspaces[at];
        let covered = tombstones.as_ref().map_or(0, |ranges| ranges.covering(key, key::MAX_SEQNO));
        report.keys += 1;
        let (fate, count) = match known.newest.kind {
            _ if covered > known.newest.seqno => (Fate::RangeDeleted, &mut report.range_deleted),
            ValueKind::Value if known.is_dropped => (Fate::Dropped, &mut report.dropped),
            ValueKind::Value => (Fate::Value, &mut report.values),
            ValueKind::Stub | ValueKind::Tag => (Fate::Moved, &mut report.moved),
            _ => (Fate::Deleted, &mut report.deleted),
        };
        *count += 1;
        fate
    }

    /// Puts values into `db`.
    fn copy(&mut self, wanted: &[(Place, usize, &[u8])], db: &Db, keyspaces: &[Keyspace]) -> Result<()> {
        let mut batch = Batch::new();
        for &(place, at, key) in wanted {
            let source = &self.opened[place.source as usize].source;
            let report = &mut self.keyspaces[at].report;
            match source.again(place.offset, place.len, |record| value_of(record, key, place.seqno)).flatten() {
                Some(value) => {
                    batch.put(&keyspaces[at], key, &value)?;
                    report.restored += 1;
                    report.restored_bytes += (key.len() + value.len()) as u64;
                }
                // An older value would be wrong.
                None => report.lost += 1,
            }
            if batch.bytes() >= COMMIT_BYTES {
                db.commit(std::mem::take(&mut batch))?;
            }
        }
        if batch.is_empty() { Ok(()) } else { db.commit(batch) }
    }

    fn report(self) -> Report {
        Report {
            files: self.opened.into_iter().map(|opened| opened.report).collect(),
            keyspaces: self.keyspaces.into_iter().map(|space| space.report).collect(),
        }
    }
}

/// The value of a record, if that is still the record found before.
fn value_of(record: &ValueRecord<'_>, key: &[u8], seqno: SeqNo) -> Option<Value> {
    let is_same = record.kind == ValueKind::Value && record.key == key && record.seqno == seqno;
    if is_same { record.value().ok() } else { None }
}

/// The tombstone of a record, if that is a range delete.
fn range_of(record: &ValueRecord<'_>) -> Option<RangeTombstone> {
    let end = match record.kind {
        ValueKind::DeleteRange => record.range_end(),
        ValueKind::DeleteRangeUnbounded => None,
        _ => return None,
    };
    Some(RangeTombstone { start: record.key.into(), end: end.map(Into::into), seqno: record.seqno })
}

fn name_of(id: Option<KeyspaceId>, file: FileId, names: &BTreeMap<KeyspaceId, String>) -> String {
    match id {
        None => format!("keyspace-of-file-{file}"),
        Some(id) => match names.get(&id) {
            Some(name) => name.clone(),
            None if id == DEFAULT_KEYSPACE_ID => DEFAULT_KEYSPACE.to_owned(),
            None => format!("keyspace-{id}"),
        },
    }
}

fn open_source(env: &Env, path: &Path) -> Result<Source> {
    let not_a_file = |kind: ErrorKind| Error::io("open", path, kind.into());
    let Some(name) = path.file_name().and_then(OsStr::to_str) else { return Err(not_a_file(ErrorKind::InvalidInput)) };
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let dir = Dir::new(Arc::clone(&env.fs), above);
    if dir.len(name)?.is_none() {
        return Err(not_a_file(ErrorKind::NotFound));
    }
    Source::open(&dir, name)
}
