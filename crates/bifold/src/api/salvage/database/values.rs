//! Separated values of a database whose index may be damaged.
//!
//! An address leads to one record, which says whose value it is. Some placements move values without a write to the
//! index (`novkv`, `streams`): then the record with the key and the number of the entry is searched for in all files.

use std::collections::BTreeMap;

use bifold_contract::{FileId, KeyspaceId, Millis, Pointer, Result, SeqNo, Value};
use bifold_format::{
    names,
    value::{ValueKind, ValueRecord},
};
use bifold_io::Dir;
use bifold_values::parts::salvage::{Found, Source};

use super::operands::Above;

/// An entry whose value was not where its address leads.
#[derive(Debug)]
pub(super) struct Sought {
    pub seqno: SeqNo,
    pub expires: Option<Millis>,
    /// The operands above it, if the newest version is one.
    pub above: Option<Above>,
}

/// The value files of a database.
pub(super) struct ValueFiles<'a> {
    dir: &'a Dir,
    ids: &'a [FileId],
    open: BTreeMap<FileId, Option<Source>>,
}

impl<'a> ValueFiles<'a> {
    pub fn new(dir: &'a Dir, ids: &'a [FileId]) -> Self {
        Self { dir, ids, open: BTreeMap::new() }
    }

    fn file(&mut self, id: FileId) -> Option<&Source> {
        let dir = self.dir;
        let open = || {
            let name = names::value(id);
            Source::open(dir, &name).or_else(|_| Source::open(dir, &names::again(&name))).ok()
        };
        self.open.entry(id).or_insert_with(open).as_ref()
    }

    /// The value at an address, if that is one of `key`, and no newer than the entry. (A move by GC gets a number of
    /// its own, the value keeps its own.)
    pub fn read(&mut self, pointer: Pointer, key: &[u8], seqno: SeqNo) -> Option<Value> {
        let source = self.file(pointer.file)?;
        let within = pointer.offset.checked_add(pointer.len.into()).is_some_and(|end| end <= source.len());
        let take = |record: &ValueRecord<'_>| {
            let is_his = record.kind == ValueKind::Value && record.key == key && record.seqno <= seqno;
            if is_his { record.value().ok() } else { None }
        };
        if within { source.again(pointer.offset, pointer.len, take).flatten() } else { None }
    }

    /// Searches the files of a keyspace for these entries, and takes out those that are found.
    ///
    /// # Errors
    /// Those of `found`.
    pub fn search(
        &mut self,
        keyspace: Option<KeyspaceId>,
        sought: &mut BTreeMap<Box<[u8]>, Sought>,
        mut found: impl FnMut(&[u8], Sought, &Value) -> Result<()>,
    ) -> Result<()> {
        for &id in self.ids {
            let Some(source) = self.file(id) else { continue };
            let others = source.description.is_some_and(|said| keyspace.is_some_and(|id| said.keyspace != id));
            if sought.is_empty() || others {
                continue;
            }
            let mut walk = source.salvage();
            loop {
                match walk.step() {
                    Found::Record(record, _) if record.kind == ValueKind::Value => {
                        let is_it = sought.get(record.key).is_some_and(|entry| entry.seqno == record.seqno);
                        let Some(value) = is_it.then(|| record.value().ok()).flatten() else { continue };
                        if let Some((key, entry)) = sought.remove_entry(record.key) {
                            found(&key, entry, &value)?;
                        }
                    }
                    Found::Record(..) | Found::Damage(_) => {}
                    Found::End => break,
                }
            }
        }
        Ok(())
    }
}
