//! Large values of a database of which anything may be damaged: each file that an entry names is restored if all of it
//! is whole, and one that no entry names, though some entries are lost, is reported.

use std::io::{self, Read};

use bifold_contract::{Error, IoSource, LargeFileMeta, LargeRef, Result, Value};
use bifold_format::{
    large::{self, LargeLayout},
    names,
    table::Place,
};
use bifold_index::table::salvage::Lost;
use bifold_io::Dir;
use bifold_values::parts::large_files::{self, LargeFile, LargeReading};

use super::{DatabaseSalvage, pass::NewDatabase, sources::SavedKeyspace};

/// A large value, all of which has been checked, piece by piece.
pub(super) struct WholeValue {
    reading: LargeReading,
    position: u64,
}

impl WholeValue {
    /// The value that an entry of `key` names, if it is whole.
    pub fn open(dir: &Dir, key: &[u8], encoded: &[u8]) -> Option<Self> {
        Self::whole(dir, key, large::decode(encoded).ok()?).ok()
    }

    fn whole(dir: &Dir, key: &[u8], named: LargeRef) -> Result<Self> {
        // The keyspace of a table may not be known.
        let keyspace = large_files::described(dir, named.file)?.keyspace;
        let bytes = LargeLayout::of(key.len(), named.len).file_bytes();
        large_files::verify(dir, &LargeFileMeta { keyspace, named, bytes })?;
        let file = LargeFile::alone(dir, keyspace, named, key.len());
        Ok(Self { reading: LargeReading::new(file, key, IoSource::Maintenance)?, position: 0 })
    }

    /// All of it.
    pub fn read_all(&mut self) -> Option<Value> {
        self.reading.read_all().ok()
    }

    /// Bytes of the value.
    pub fn len(&self) -> u64 {
        self.reading.len()
    }
}

impl Read for WholeValue {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut rest = self.reading.bytes_at(self.position).map_err(io::Error::other)?;
        let bytes = rest.read(buffer)?;
        self.position += bytes as u64;
        Ok(bytes)
    }
}

impl NewDatabase<'_> {
    /// Puts a large value, piece by piece unless the database does not take that.
    ///
    /// # Errors
    /// Those of commits.
    pub(super) fn put_large(&mut self, at: usize, key: &[u8], mut value: WholeValue) -> Result<()> {
        match self.keyspace(at).put_reader(key, &mut value) {
            Err(Error::InvalidArgument { .. }) => self.put(at, key, &value.reading.read_all()?, None),
            other => other,
        }
    }
}

impl DatabaseSalvage {
    /// Reports the large values that no entry names, if the entry may be lost: with a whole manifest, if something is
    /// lost that may have told of the key. Others were overwritten, or are kept for the change feed.
    pub(super) fn report_unnamed(&mut self) {
        if self.sources.is_exact && self.left_out.stretches == 0 {
            return;
        }
        for &id in self.sources.large.iter().filter(|id| !self.large_named.contains(id)) {
            let name = names::large(id);
            let end = self.dir.len(&name).ok().flatten().unwrap_or(0);
            let said = large_files::described(&self.dir, id).ok();
            let told_of = |space: &SavedKeyspace| match &said {
                Some(said) if space.report.id != Some(said.keyspace) => false,
                Some(said) => space.lost.iter().any(|range| range.contains(&said.key)),
                None => !space.lost.is_empty(),
            };
            if self.sources.is_exact && !self.sources.spaces.iter().any(told_of) {
                continue;
            }
            let is_of = |keyspace| self.sources.spaces.iter().find(|space| space.report.id == Some(keyspace));
            let keyspace = said.as_ref().and_then(|said| is_of(said.keyspace)).map(|space| space.report.name.clone());
            let key = said.map(|said| said.key);
            let problem = "a large value that no entry names which can be read: it is kept nowhere else".to_owned();
            let lost = Lost { place: Place { start: 0, end }, first: key.clone(), last: key, problem };
            self.left_out.add(self.dir.file(&name), keyspace.as_deref(), lost);
        }
    }
}
