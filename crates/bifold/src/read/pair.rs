//! What an iterator yields.

use std::{sync::Arc, time::SystemTime};

use bifold_contract::{Error, IoSource, Kind, Millis, Result, SeqNo, Value};
use bifold_values::parts::value_files::Stretches;

use super::scan::Pinned;
use crate::state::time::moment_of;

/// A key and its value, which is fetched on demand. It keeps what its iterator keeps: see [`Range`](crate::Range).
#[derive(Debug)]
pub struct Pair {
    pub(super) key: Box<[u8]>,
    pub(super) seqno: SeqNo,
    pub(super) kind: Kind,
    pub(super) payload: Value,
    pub(super) expires_at: Option<Millis>,
    pub(super) pinned: Arc<Pinned>,
    pub(super) announced: Option<Arc<Stretches>>,
    /// Why it has no value: what its operands are combined with cannot be read.
    pub(super) unread: Option<Box<Error>>,
}

impl Pair {
    /// The key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Whether the value is a large one with a file of its own: [`Snapshot::get_reader`](crate::Snapshot::get_reader)
    /// reads it piece by piece.
    #[must_use]
    pub fn is_large(&self) -> bool {
        self.kind == Kind::Large
    }

    /// When it expires; `None`: never. It had not expired when the iterator or the snapshot that it reads was made.
    #[must_use]
    pub fn expires_at(&self) -> Option<SystemTime> {
        self.expires_at.map(moment_of)
    }

    pub(crate) fn instant(&self) -> Option<Millis> {
        self.expires_at
    }

    /// The value. Cheap for an inline value; each call reads a separated value again. A value of
    /// [`Keyspace::put_reader`](crate::Keyspace::put_reader) is read into memory.
    ///
    /// # Errors
    /// I/O errors and corruption, of separated and large values. An I/O error may be that of neighbouring values, which
    /// are read by the same system call: the next call of this method reads this one alone. With
    /// [`Range::undamaged`](crate::Range::undamaged) also those of what operands are combined with, the same at each
    /// call.
    pub fn value(&self) -> Result<Value> {
        match self.announced_value()? {
            Some(value) => Ok(value),
            None => self.value_alone(),
        }
    }

    /// The value, if it was announced together with neighbours and is whole: one call reads all of them.
    ///
    /// # Errors
    /// The I/O error of that call, which may be that of a neighbour.
    pub(super) fn announced_value(&self) -> Result<Option<Value>> {
        let Some(announced) = self.announced.as_ref().filter(|_| self.kind == Kind::Pointer) else { return Ok(None) };
        self.pinned.note_value_asked();
        let value = self.pinned.look_at(announced, (&self.key, &self.payload), Value::copy_of)?;
        if let Some(value) = &value {
            self.pinned.reader.counters.read_value(value.len());
        }
        Ok(value)
    }

    /// The value, read alone.
    ///
    /// # Errors
    /// As [`Pair::value`], but for none of its neighbours.
    pub(super) fn value_alone(&self) -> Result<Value> {
        if let Some(error) = &self.unread {
            return Err(Error::clone(error));
        }
        let Pinned { reader, tree, values, .. } = &*self.pinned;
        let value = match self.kind {
            Kind::Pointer => {
                self.pinned.note_value_asked();
                reader.resolve((tree, values), (&self.key, self.seqno), &self.payload, IoSource::Scan)?
            }
            Kind::Large => reader.read_large((tree, values), &self.key, &self.payload, IoSource::Scan)?,
            // Counted when it was yielded.
            _ => return Ok(self.payload.clone()),
        };
        reader.counters.read_value(value.len());
        Ok(value)
    }

    /// The key alone.
    #[must_use]
    pub fn into_key(self) -> Box<[u8]> {
        self.key
    }

    /// Key and value.
    ///
    /// # Errors
    /// As [`Pair::value`].
    pub fn into_parts(self) -> Result<(Box<[u8]>, Value)> {
        let value = self.value()?;
        Ok((self.key, value))
    }
}
