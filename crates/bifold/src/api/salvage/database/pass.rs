//! The fate of each key: what tables and logs have of it, merged, and what becomes of the newest version.

use std::collections::{BTreeMap, BTreeSet};

use bifold_contract::{FileId, Kind, Millis, RangeTombstone, Result, SeqNo, Value, expiry, key, planted};
use bifold_format::{large, names, pointer, table::Place};
use bifold_index::range_tombstones::RangeTombstones;
use bifold_io::Dir;

use super::{
    DatabaseSalvage,
    large::WholeValue,
    logs::{LogVersions, Logged, Version},
    merge::{Merge, TableStart},
    operands::{Above, FoundOperands, OperandRules},
    report::RecoveredKeyspace,
    sources::{SavedKeyspace, range},
    values::{Sought, ValueFiles},
};
use crate::{
    api::{batch::Batch, db::Db, keyspace::Keyspace, salvage::COMMIT_BYTES},
    settings::options::KeyspaceOptions,
    state::time::moment_of,
};

/// Bytes of an entry whose value is searched for, without its key: a map node that is two thirds full, and a box.
const SOUGHT_BYTES: usize = 176;

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
    rules: OperandRules<'b>,
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
            let name = &space.report.name;
            let existing = db.existing_keyspace(name)?;
            existing.map_or_else(|| db.keyspace(name, options_of(db, space)), Ok)
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

/// The options of a new keyspace: those of the database, but for the merge operator, which it could not get later. It
/// keeps its own if the database takes that; then nothing expires in it, as before.
fn options_of(db: &Db, space: &SavedKeyspace) -> KeyspaceOptions {
    let options = db.options().keyspace.clone();
    match space.merge.clone() {
        None if space.is_described => KeyspaceOptions { merge: None, ..options },
        None => options,
        Some(merge) => {
            let with = KeyspaceOptions { merge: Some(merge), ttl: None, ..options.clone() };
            db.options().merge_operators.resolve(&space.report.name, &with).unwrap_or(options)
        }
    }
}

/// What the copies of a version lead to.
enum LedTo {
    Value(Value, Option<Millis>),
    Deleted,
    /// `None`: it is damaged.
    Large(Option<WholeValue>),
    /// No address leads to it.
    Elsewhere(Option<Millis>),
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
        let space = &mut self.sources.spaces[at];
        let rules = OperandRules::of(space, &self.merge_operators, (&self.sources.reach, self.sources.is_exact));
        let SavedKeyspace { report, ranges, lost, lost_in_tables, found, .. } = space;
        let (path_of, name) = (|id| self.dir.file(&names::table(id)), report.name.clone());
        let mut newly_lost: Vec<(FileId, Place)> = Vec::new();
        let mut from_logs = report.id.map(|id| logged.take(id)).unwrap_or_default();
        let mut judge = Judge {
            at,
            report,
            deletes: now(ranges),
            lost: now(lost),
            rules,
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
                (Some(key), Some((logged, _))) if key[..] > logged[..] => Some(logged.to_vec()),
                (None, Some((logged, _))) => Some(logged.to_vec()),
                (in_tables, _) => in_tables,
            };
            let versions = key.as_ref().map(|key| tables.take(key));
            // Before any key is judged that it may have told of.
            for (TableStart { of, .. }, met) in tables.take_lost() {
                let (met, newest) = of.bounded(met);
                newly_lost.push((of.id, met.place));
                let told = range((met.first.as_deref(), met.last.as_deref()), newest);
                lost.push(told.clone());
                lost_in_tables.push(told);
                (judge.lost, judge.rules.lost_in_tables) = (now(lost), now(lost_in_tables));
                self.left_out.add(path_of(of.id), Some(&name), met);
            }
            let Some((key, mut versions)) = key.zip(versions) else { break };
            if logged.covers(&key) {
                versions.extend(from_logs.remove(&key[..]).into_iter().flat_map(Logged::into_versions));
                judge.judge(&key, versions)?;
            }
            if judge.sought_bytes > self.memory_bytes {
                judge.search()?;
            }
        }
        judge.search()?;
        for (table, place) in newly_lost {
            let known = found.iter_mut().filter(|known| known.of.id == table);
            known.for_each(|known| known.known.push(place));
        }
        Ok(())
    }
}

/// Ranges, as they are now.
fn now(ranges: &[RangeTombstone]) -> RangeTombstones {
    RangeTombstones::for_snapshots(ranges, &[key::MAX_SEQNO])
}

impl Judge<'_, '_, '_> {
    fn judge(&mut self, key: &[u8], mut versions: Vec<Version>) -> Result<()> {
        // Of copies of one version, those first whose value is at hand. What a job made of an operand comes before it.
        let rank = |kind: Kind| (kind == Kind::Operand, kind.plain() == Kind::Pointer);
        versions.sort_by_key(|version| (std::cmp::Reverse(version.seqno), rank(version.kind)));
        if planted!("salvage_takes_older") {
            versions.reverse();
        }
        if planted!("salvage_overlooks_deletes") {
            versions.retain(|version| version.kind != Kind::Delete);
        }
        let large = versions.iter().filter(|version| version.kind == Kind::Large);
        self.large_named.extend(large.filter_map(|version| Some(large::decode(&version.payload).ok()?.file)));
        let Some(&Version { seqno: newest, kind, .. }) = versions.first() else { return Ok(()) };
        let deleted = self.deletes.covering(key, key::MAX_SEQNO);
        if deleted > newest {
            self.report.range_deleted += 1;
            return Ok(());
        }
        if kind == Kind::Operand {
            return self.judge_operands(key, &versions, deleted);
        }
        versions.retain(|version| version.seqno == newest && version.kind != Kind::Operand);
        match self.look_up(key, &versions) {
            LedTo::Value(value, expires) => self.restore(key, newest, &value, expires),
            LedTo::Deleted => {
                self.report.deleted += 1;
                Ok(())
            }
            LedTo::Large(large) => self.restore_large(key, newest, large),
            LedTo::Elsewhere(expires) => {
                self.seek(key, Sought { seqno: newest, expires, above: None });
                Ok(())
            }
        }
    }

    /// What a version leads to, of which there are these copies.
    fn look_up(&mut self, key: &[u8], copies: &[Version]) -> LedTo {
        let mut expires = None;
        for Version { seqno, kind, payload, .. } in copies {
            let (instant, rest) = match kind.expires() {
                true => (
                    Some(expiry::split(payload).0),
                    payload.part(expiry::INSTANT_BYTES.min(payload.len()), payload.len()),
                ),
                false => (None, payload.clone()),
            };
            expires = instant;
            match kind.plain() {
                Kind::Inline => return LedTo::Value(rest, instant),
                Kind::Delete => return LedTo::Deleted,
                Kind::Large => return LedTo::Large(WholeValue::open(self.dir, key, &rest)),
                _ => {}
            }
            let value = pointer::decode(&rest).ok().and_then(|pointer| self.values.read(pointer, key, *seqno));
            if let Some(value) = value {
                return LedTo::Value(value, instant);
            }
        }
        LedTo::Elsewhere(expires)
    }

    /// Decides the fate of a key whose newest version is an operand.
    fn judge_operands(&mut self, key: &[u8], versions: &[Version], deleted: SeqNo) -> Result<()> {
        if let Err(why) = &self.rules.operator {
            self.report.lose_operands(key, why.clone());
            return Ok(());
        }
        let Some(FoundOperands { base, above }) = self.rules.chain(key, versions, deleted) else {
            let why = "versions of the key may be lost, so it is not known which of its operands count";
            self.report.lose_operands(key, why.to_owned());
            return Ok(());
        };
        let looked = if base.is_empty() { LedTo::Deleted } else { self.look_up(key, &base) };
        let value = match looked {
            LedTo::Value(value, _) => Some(value),
            LedTo::Deleted => None,
            LedTo::Large(large) => match large.and_then(|mut large| large.read_all()) {
                Some(value) => Some(value),
                None => {
                    self.report.lose(key);
                    return Ok(());
                }
            },
            LedTo::Elsewhere(expires) => {
                let seqno = base.first().map_or(0, |base| base.seqno);
                self.seek(key, Sought { seqno, expires, above: Some(above) });
                return Ok(());
            }
        };
        let mut restoring = Restorer { at: self.at, lost: &self.lost, rules: &self.rules, target: self.target };
        restoring.restore_combined(self.report, key, value, &above)
    }

    /// Notes that a value is not where its address leads.
    fn seek(&mut self, key: &[u8], sought: Sought) {
        let above: usize = sought.above.iter().flat_map(|above| &above.operands).map(|operand| operand.len()).sum();
        self.sought_bytes += key.len() + SOUGHT_BYTES + above;
        self.sought.insert(key.into(), sought);
    }

    fn restore_large(&mut self, key: &[u8], seqno: SeqNo, large: Option<WholeValue>) -> Result<()> {
        let Some(value) = large else {
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
        let Self { at, report, lost, rules, values, target, .. } = self;
        let mut found = Restorer { at: *at, lost, rules, target };
        let id = report.id;
        values.search(id, &mut sought, |key, entry, value| match &entry.above {
            None => found.restore(report, key, entry.seqno, value, entry.expires),
            Some(above) => found.restore_combined(report, key, Some(value.clone()), above),
        })?;
        sought.keys().for_each(|key| self.report.lose(key));
        Ok(())
    }

    fn restore(&mut self, key: &[u8], seqno: SeqNo, value: &Value, expires: Option<Millis>) -> Result<()> {
        let mut restoring = Restorer { at: self.at, lost: &self.lost, rules: &self.rules, target: self.target };
        restoring.restore(self.report, key, seqno, value, expires)
    }
}

/// What is needed to put a value.
struct Restorer<'a, 'b> {
    at: usize,
    lost: &'a RangeTombstones,
    rules: &'a OperandRules<'a>,
    target: &'a mut Option<NewDatabase<'b>>,
}

impl Restorer<'_, '_> {
    /// Puts what operands make of a value, as a value: that is right whatever operator the new keyspace has.
    fn restore_combined(
        &mut self,
        report: &mut RecoveredKeyspace,
        key: &[u8],
        base: Option<Value>,
        Above { operands, newest, is_certain }: &Above,
    ) -> Result<()> {
        match self.rules.combine(key, base, operands) {
            Err(why) => report.lose_operands(key, why),
            Ok(None) => report.deleted += 1,
            Ok(Some(value)) => {
                report.combine(key, *is_certain);
                return self.restore(report, key, *newest, &value, None);
            }
        }
        Ok(())
    }

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
