//! Where the operations of a commit lead: into a value file, or to the file of a large value.

use bifold_contract::{Corruption, Error, LargeFileMeta, Pointer, Result, SeqNo};
use bifold_format::{
    large::{self, LargeLayout},
    log::Operation,
    names, pointer,
};
use bifold_io::Dir;

use super::RecordAt;
use crate::{placement::Located, store::ValueStore};

/// Where an operation of a commit leads.
pub struct Lead<'a> {
    values: &'a ValueStore,
    /// The name of its keyspace, where there are several.
    keyspace: Option<&'a str>,
    pub(super) seqno: SeqNo,
    to: LeadsTo,
    pub(super) located: Located,
}

#[derive(Clone, Copy)]
enum LeadsTo {
    /// A record of a value file.
    Record(Pointer),
    /// The file of a large value.
    Large(LargeFileMeta),
}

impl<'a> Lead<'a> {
    /// Where an operation leads in the values of its keyspace; `None` if it has no separated value.
    ///
    /// # Errors
    /// Corruption; I/O errors.
    pub fn of(
        values: &'a ValueStore,
        keyspace: Option<&'a str>,
        (operation, seqno): (&Operation<'_>, SeqNo),
        at: &RecordAt<'_>,
    ) -> Result<Option<Self>> {
        let damaged = |damage: Corruption| at.damaged(damage.at(at.record.offset));
        let (to, located) = if let Some(pointer) = operation.pointer() {
            let pointer = pointer::decode(pointer).map_err(damaged)?;
            (LeadsTo::Record(pointer), values.locate(pointer)?)
        } else if let Operation::Large { keyspace, key, named } = *operation {
            let named = large::decode(named).map_err(damaged)?;
            let bytes = LargeLayout::of(key.len(), named.len).file_bytes();
            (LeadsTo::Large(LargeFileMeta { keyspace, named, bytes }), values.large().locate(key, named)?)
        } else {
            return Ok(None);
        };
        Ok(Some(Self { values, keyspace, seqno, to, located }))
    }

    /// The file of the large value that it leads to, if it is one.
    #[must_use]
    pub fn large(&self) -> Option<LargeFileMeta> {
        match self.to {
            LeadsTo::Large(file) => Some(file),
            LeadsTo::Record(_) => None,
        }
    }

    /// Its commit, which is kept, points there.
    pub(super) fn refer(&self) {
        if let LeadsTo::Record(pointer) = self.to {
            self.values.refer(pointer, self.seqno);
        }
    }

    /// The error for a value that is not there, or not as it was written.
    pub(super) fn damage(&self, dir: &Dir, found: &'static str) -> Error {
        let keyspace = self.keyspace.map(|name| format!(" in keyspace `{name}`")).unwrap_or_default();
        let expected = format!("the value of commit {}{keyspace}", self.seqno);
        match self.to {
            LeadsTo::Record(at) => {
                Corruption::new(at.offset, "value record", expected, found).of(dir.file(&names::value(at.file)))
            }
            LeadsTo::Large(file) => {
                Corruption::new(0, "large value", expected, found).of(dir.file(&names::large(file.named.file)))
            }
        }
    }
}
