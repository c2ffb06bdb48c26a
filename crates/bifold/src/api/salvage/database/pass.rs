//! The fate of each key: what tables and logs have of it, merged, and what becomes of the newest version.

use std::collections::{BTreeMap, BTreeSet};

use bifold_contract::{FileId, Kind, Millis, Result, SeqNo, Value, expiry, key, planted};
use bifold_format::{large, pointer};
use bifold_index::range_tombstones::RangeTombstones;
use bifold_io::Dir;

use super::{
    DatabaseSalvage,
    large::WholeValue,
    logs::{LogVersions, Version},
    merge::Merge,
    report::RecoveredKeyspace,
    sources::SavedKeyspace,
    values::{Sought, ValueFiles},
};
use crate::api::{batch::Batch, db::Db, expiry::moment_of, keyspace::Keyspace, salvage::COMMIT_BYTES};

/// Bytes of an entry whose value is searched for, without its key: a map node that is two thirds full, and a box.
const SOUGHT_BYTES: usize = 96;

/// Where values are put.
pub(super) struct NewDatabase<'a> {
    db: &'a Db,
    keyspaces: Vec<Keyspace>,
    batch: Batch,
}

/// One keyspace in one pass.
struct Judge<'a, 'b, 'c> {
    at: usize,
    report: &'b mut RecoveredKeyspace,
    deletes: RangeTombstones,
    lost: RangeTombstones,
    values: ValueFiles<'a>,
    dir: &'a Dir,
    large_named: &'b mut BTreeSet<FileId>,
    target: &'b mut Option<NewDatabase<'c>>,
    /// Values that are not where their addresses lead.
    sought: BTreeMap<Box<[u8]>, Sought>,
    sought_bytes: usize,
}

impl<'a> NewDatabase<'a> {
    /// The keyspaces of `db` with the names of `spaces`; those that it lacks are created.
    pub fn of(db: &'a Db, spaces: &[SavedKeyspace]) -> Result<Self> {
        let find_or_create = |space: &SavedKeyspace| {
            let existing = db.existing_keyspace(&space.report.name)?;
            existing.map_or_else(|| db.keyspace(&space.report.name, db.options().keyspace.clone()), Ok)
        };
        let keyspaces = spaces.iter().map(find_or_create).collect::<Result<_>>()?;
        Ok(Self { db, keyspaces, batch: Batch::new() })
    }

    pub(super) fn keyspace(&self, at: usize) -> &Keyspace {
        &self.keyspaces[at]
    }

    pub(super) fn put(&mut self, at: usize, key: &[u8], value: &Value, expires: Option<Millis>) -> Result<()> {
        self.batch.put_until(&self.keyspaces[at], key, value, expires.map(moment_of))?;
        if self.batch.bytes() >= COMMIT_BYTES { self.commit() } else { Ok(()) }
    }

    /// Commits what was put.
    ///
    /// # Errors
    /// Those of commits.
    pub fn commit(&mut self) -> Result<()> {
        if self.batch.is_empty() { Ok(()) } else { self.db.commit(std::mem::take(&mut self.batch)) }
    }
}

impl DatabaseSalvage {
    /// Decides the fate of each key of a keyspace in the subset of `logged`.
    ///
    /// # Errors
    /// Those of commits; I/O errors that are not those of unreadable blocks.
    pub(super) fn merge(
        &mut self,
        at: usize,
        logged: &mut LogVersions,
        target: &mut Option<NewDatabase<'_>>,
    ) -> Result<()> {
        let SavedKeyspace { report, ranges, lost, found, .. } = &mut self.sources.spaces[at];
        let now = |ranges: &[_]| RangeTombstones::for_snapshots(ranges, &[key::MAX_SEQNO]);
        let mut from_logs = report.id.and_then(|id| logged.keys.remove(&id)).unwrap_or_default();
        let mut judge = Judge {
            at,
            report,
            deletes: now(ranges),
            lost: now(lost),
            values: ValueFiles::new(&self.dir, &self.sources.values),
            dir: &self.dir,
            large_named: &mut self.large_named,
            target,
            sought: BTreeMap::new(),
            sought_bytes: 0,
        };
        let mut tables = Merge::new(&self.dir, found);
        loop {
            let in_tables = tables.key()?.map(<[u8]>::to_vec);
            let key = match (in_tables, from_logs.first_key_value()) {
                (Some(key), Some((logged, _))) if key[..] > logged[..] => logged.to_vec(),
                (Some(key), _) => key,
                (None, Some((logged, _))) => logged.to_vec(),
                (None, None) => break,
            };
            let mut versions = tables.take(&key);
            if logged.covers(&key) {
                versions.extend(from_logs.remove(&key[..]));
                judge.judge(&key, versions)?;
            }
            if judge.sought_bytes > self.memory_bytes {
                judge.search()?;
            }
        }
        judge.search()
    }
}

impl Judge<'_, '_, '_> {
    fn judge(&mut self, key: &[u8], mut versions: Vec<Version>) -> Result<()> {
        // Of copies of one version, those first whose value is at hand.
        versions.sort_by_key(|version| (std::cmp::Reverse(version.seqno), version.kind.plain() == Kind::Pointer));
        if planted!("salvage_takes_older") {
            versions.reverse();
        }
        if planted!("salvage_overlooks_deletes") {
            versions.retain(|version| version.kind != Kind::Delete);
        }
        let large = versions.iter().filter(|version| version.kind == Kind::Large);
        self.large_named.extend(large.filter_map(|version| Some(large::decode(&version.payload).ok()?.file)));
        let Some(newest) = versions.first().map(|version| version.seqno) else { return Ok(()) };
        if self.deletes.covering(key, key::MAX_SEQNO) > newest {
            self.report.range_deleted += 1;
            return Ok(());
        }
        let (mut is_pointer, mut expires) = (false, None);
        for Version { kind, payload, .. } in versions.iter().take_while(|version| version.seqno == newest) {
            let (instant, rest) = match kind.expires() {
                true => (
                    Some(expiry::split(payload).0),
                    payload.part(expiry::INSTANT_BYTES.min(payload.len()), payload.len()),
                ),
                false => (None, payload.clone()),
            };
            expires = instant;
            match kind.plain() {
                Kind::Inline => return self.restore(key, newest, &rest, instant),
                Kind::Delete => {
                    self.report.deleted += 1;
                    return Ok(());
                }
                Kind::Large => return self.restore_large(key, newest, &rest),
                Kind::Operand => {
                    self.report.operands += 1;
                    self.report.lose(key);
                    return Ok(());
                }
                _ => is_pointer = true,
            }
            let value = pointer::decode(&rest).ok().and_then(|pointer| self.values.read(pointer, key, newest));
            if let Some(value) = value {
                return self.restore(key, newest, &value, instant);
            }
        }
        if is_pointer {
            self.sought.insert(key.into(), Sought { seqno: newest, expires });
            self.sought_bytes += key.len() + SOUGHT_BYTES;
        }
        Ok(())
    }

    fn restore_large(&mut self, key: &[u8], seqno: SeqNo, encoded: &[u8]) -> Result<()> {
        let Some(value) = WholeValue::open(self.dir, key, encoded) else {
            self.report.lose(key);
            return Ok(());
        };
        self.report.restored += 1;
        self.report.restored_bytes += key.len() as u64 + value.len();
        self.report.may_be_older += u64::from(self.lost.covering(key, key::MAX_SEQNO) > seqno);
        match self.target {
            Some(target) => target.put_large(self.at, key, value),
            None => Ok(()),
        }
    }

    /// Searches for the values that were not where their addresses lead.
    fn search(&mut self) -> Result<()> {
        let mut sought = std::mem::take(&mut self.sought);
        self.sought_bytes = 0;
        let Self { at, report, lost, values, target, .. } = self;
        let mut found = Restorer { at: *at, lost, target };
        let id = report.id;
        values.search(id, &mut sought, |key, entry, value| {
            found.restore(report, key, entry.seqno, value, entry.expires)
        })?;
        sought.keys().for_each(|key| self.report.lose(key));
        Ok(())
    }

    fn restore(&mut self, key: &[u8], seqno: SeqNo, value: &Value, expires: Option<Millis>) -> Result<()> {
        let mut restoring = Restorer { at: self.at, lost: &self.lost, target: self.target };
        restoring.restore(self.report, key, seqno, value, expires)
    }
}

/// What is needed to put a value.
struct Restorer<'a, 'b> {
    at: usize,
    lost: &'a RangeTombstones,
    target: &'a mut Option<NewDatabase<'b>>,
}

impl Restorer<'_, '_> {
    fn restore(
        &mut self,
        report: &mut RecoveredKeyspace,
        key: &[u8],
        seqno: SeqNo,
        value: &Value,
        expires: Option<Millis>,
    ) -> Result<()> {
        report.restored += 1;
        report.restored_bytes += (key.len() + value.len()) as u64;
        report.may_be_older += u64::from(self.lost.covering(key, key::MAX_SEQNO) > seqno);
        match self.target {
            Some(target) => target.put(self.at, key, value, expires),
            None => Ok(()),
        }
    }
}
