//! Gets: layers, then the index, then the value file.

use bifold_contract::{Corruption, IoSource, Pointer, Result, Value};
use bifold_format::names;

use crate::{
    core::Core,
    index::{Entry, ForeignIndex, ForeignView, decode, stored_key},
};

impl<I: ForeignIndex> Core<I> {
    /// What a key has now; `None` if neither a layer nor the index knows it.
    pub fn newest(&self, key: &[u8]) -> Result<Option<Entry>> {
        // A layer goes only when the index has all of it, so what is not in these layers is in the index by now.
        match self.layers.get(key) {
            Some(entry) => Ok(Some(entry)),
            None => self.in_index(key, |key, see| self.index.get(key, see)),
        }
    }

    /// What `get`, which asks the index or a snapshot of it, has for a user's key.
    fn in_index(
        &self,
        key: &[u8],
        get: impl FnOnce(&[u8], &mut dyn FnMut(&[u8])) -> Result<bool>,
    ) -> Result<Option<Entry>> {
        let mut found = None;
        get(&stored_key(key), &mut |stored| found = Some(decode(stored)))?;
        found.transpose().map_err(|damage| self.damaged_index(damage))
    }

    /// The same in a snapshot.
    pub fn in_view(&self, view: &I::View<'_>, key: &[u8]) -> Result<Option<Entry>> {
        self.in_index(key, |key, see| view.get(key, see))
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        let mut before = None;
        loop {
            let Some(entry) = self.newest(key)? else { return Ok(None) };
            match self.value_of(key, &entry, IoSource::Get)? {
                Resolved::Value(value) => return Ok(Some(value)),
                Resolved::Nothing => return Ok(None),
                // Its file was deleted because the value has moved: the next look finds the new address.
                Resolved::Moved(from) if before == Some(from) => return Err(self.lost(from)),
                Resolved::Moved(from) => before = Some(from),
            }
        }
    }

    /// What an entry of a key leads to.
    pub fn value_of(&self, key: &[u8], entry: &Entry, source: IoSource) -> Result<Resolved> {
        match entry {
            Entry::Deleted => Ok(Resolved::Nothing),
            Entry::Inline(value) => Ok(Resolved::Value(Value::copy_of(value))),
            // No placement of ours asks for the number of the version.
            &Entry::Separated(pointer) => {
                let value = self.values.read(key, 0, pointer, source)?;
                Ok(value.map_or(Resolved::Moved(pointer), Resolved::Value))
            }
        }
    }

    /// The error for an address that should lead to a value.
    pub fn lost(&self, pointer: Pointer) -> bifold_contract::Error {
        let expected = "the value file that an address in the index leads to";
        let path = self.dir.file(&names::value(pointer.file));
        Corruption::new(pointer.offset, "value record", expected, "no such file").of(path)
    }

    /// The error for something in the index that is not ours.
    pub fn damaged_index(&self, damage: Corruption) -> bifold_contract::Error {
        damage.of(format!("the index ({})", self.index.name()))
    }
}

/// What an entry leads to.
#[derive(Debug)]
pub(crate) enum Resolved {
    /// A value.
    Value(Value),
    /// The key is deleted.
    Nothing,
    /// A file that was deleted because everything in it had moved.
    Moved(Pointer),
}
