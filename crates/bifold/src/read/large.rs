//! Reads of large values, each of which has a file of its own.

use std::sync::Arc;

use bifold_contract::{Corruption, Error, FileId, IoSource, LargeRef, Pointer, Result, Value};
use bifold_format::{large, names};
use bifold_values::parts::large_files::LargeReading;

use super::get::{Live, Looked, MOVES_MAX, Reader};
use crate::state::{
    time::Sight,
    tree::{Tree, Values},
};

/// A value that was not where its entry says.
#[derive(Clone, Copy, Debug)]
pub(super) enum Gone {
    Value(Pointer),
    Large(FileId),
}

/// What a reader of one value begins with.
pub(crate) enum OpenedValue {
    /// The value, which is in memory.
    InMemory(Value),
    Large(LargeReading),
}

impl Reader {
    /// The newest value of `key`, at `snapshot` or now, not read yet if it is a large one.
    ///
    /// # Errors
    /// As [`Reader::get`].
    pub fn open_value(&self, tree: &Tree, key: &[u8], snapshot: Option<Sight>) -> Result<Option<OpenedValue>> {
        let begin = self.counters.sample_get(|| self.clock.now());
        let opened = self.open_newest(tree, key, || snapshot.unwrap_or_else(|| Sight::now(self.visible())))?;
        let len = |opened: &OpenedValue| match opened {
            OpenedValue::InMemory(value) => value.len(),
            // Counted as it is read.
            OpenedValue::Large(_) => 0,
        };
        self.counters.got(opened.as_ref().map(len), || self.clock.now(), begin);
        Ok(opened)
    }

    pub(super) fn open_newest(
        &self,
        tree: &Tree,
        key: &[u8],
        sight: impl Fn() -> Sight,
    ) -> Result<Option<OpenedValue>> {
        for _ in 0..MOVES_MAX {
            let view = self.present(tree)?;
            // Again each time: what the view has not may be overwritten by what an older number does not see.
            match self.newest(&view, key, sight(), &mut None)? {
                None => return Ok(None),
                Some(Live::Large(encoded)) => {
                    if let Some(file) = view.values.large().find(key.len(), decode_large(tree, &encoded)?) {
                        return Ok(Some(OpenedValue::Large(LargeReading::new(file, key, IoSource::Get)?)));
                    }
                }
                Some(live) if live.may_lack_ingest(tree, &view) => {}
                Some(live) => match self.value_of(tree, (&view, &view.values), key, live)? {
                    Looked::Answer(value) => return Ok(value.map(OpenedValue::InMemory)),
                    Looked::Moved(_) => {}
                },
            }
        }
        // With its error.
        Ok(self.find_now(tree, key, sight)?.map(OpenedValue::InMemory))
    }

    /// The value of a version with a file of its own.
    #[cold]
    pub(super) fn value_of_large(&self, tree: &Tree, values: &Values, key: &[u8], encoded: &[u8]) -> Result<Looked> {
        let named = decode_large(tree, encoded)?;
        let value = values.large().read(key, named, IoSource::Get)?;
        Ok(value.map_or(Looked::Moved(Gone::Large(named.file)), |value| Looked::Answer(Some(value))))
    }

    /// The value of a version with a file of its own, which an open snapshot sees.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn read_large(
        &self,
        (tree, values): (&Tree, &Arc<Values>),
        key: &[u8],
        encoded: &[u8],
        source: IoSource,
    ) -> Result<Value> {
        let named = decode_large(tree, encoded)?;
        values.large().read(key, named, source)?.ok_or_else(|| self.lost(tree, Gone::Large(named.file)))
    }

    /// The error for an entry that is up to date but whose value has no file.
    pub(super) fn lost(&self, tree: &Tree, gone: Gone) -> Error {
        if let (Gone::Value(_), Some(why)) = (gone, tree.placement().why_lost()) {
            return why;
        }
        let (file, offset, what) = match gone {
            Gone::Value(pointer) => (names::value(pointer.file), pointer.offset, "value record"),
            Gone::Large(file) => (names::large(file), 0, "large value"),
        };
        let expected = format!("a value file that an entry of keyspace {} points to", tree.name);
        Corruption::new(offset, what, expected, "no such file").of(self.dir.file(&file))
    }
}

/// # Errors
/// Corruption.
fn decode_large(tree: &Tree, encoded: &[u8]) -> Result<LargeRef> {
    large::decode(encoded).map_err(|damage| damage.of(format!("keyspace {}", tree.name)))
}
