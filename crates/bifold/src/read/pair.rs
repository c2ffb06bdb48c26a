//! What an iterator yields.

use std::{sync::Arc, time::SystemTime};

use bifold_contract::{Error, IoSource, Kind, Millis, Result, SeqNo, Value};
use bifold_values::parts::value_files::Stretches;

use super::scan::Pinned;
use crate::api::expiry::moment_of;

/// A key and its value, which is fetched on demand.
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

    /// When it expires; `None` if it does not. It had not when the iterator began, or the snapshot that it reads.
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
    /// I/O errors and corruption, for separated values. An I/O error may be that of neighbouring values, which are read
    /// by the same call: the next call reads this one alone. With [`Range::undamaged`](crate::Range::undamaged) also
    /// those of what operands are combined with, the same at each call.
    pub fn value(&self) -> Result<Value> {
        if let Some(error) = &self.unread {
            return Err(Error::clone(error));
        }
        match self.kind {
            Kind::Pointer => {
                self.pinned.note_value_asked();
                if let Some(announced) = &self.announced
                    && let Some(value) = self.pinned.look_at(announced, (&self.key, &self.payload), Value::copy_of)?
                {
                    return Ok(value);
                }
                let from = (&*self.pinned.tree, &self.pinned.values);
                self.pinned.reader.resolve(from, (&self.key, self.seqno), &self.payload, IoSource::Scan)
            }
            Kind::Large => {
                let Pinned { reader, tree, values, .. } = &*self.pinned;
                reader.read_large((tree, values), &self.key, &self.payload, IoSource::Scan)
            }
            _ => Ok(self.payload.clone()),
        }
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
