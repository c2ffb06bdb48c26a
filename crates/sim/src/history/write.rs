//! A write of a history.

use std::fmt;

use bifold::{Batch, Error, Ingest, Keyspace, Result};

use super::{KeyNo, Span, Until, key_bytes};
use crate::{
    model::{Change, NAMES, Name},
    value::Spec,
};

/// One write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// A key gets a value.
    Put(Name, KeyNo, Spec),
    /// A key gets a value that expires.
    PutUntil(Name, KeyNo, Spec, Until),
    /// A key gets an operand.
    Merge(Name, KeyNo, Spec),
    /// A key loses its value.
    Delete(Name, KeyNo),
    /// All keys of a range lose theirs.
    DeleteRange(Name, Span),
}

impl Write {
    /// The write as the model takes it.
    #[must_use]
    pub fn change(&self) -> Change {
        match self {
            Self::Put(name, key, value) => Change::Put(*name, key_bytes(*key), *value),
            Self::PutUntil(name, key, value, until) => Change::PutUntil(*name, key_bytes(*key), *value, *until),
            Self::Merge(name, key, operand) => Change::Merge(*name, key_bytes(*key), *operand),
            Self::Delete(name, key) => Change::Delete(*name, key_bytes(*key)),
            Self::DeleteRange(name, span) => Change::DeleteRange(*name, span.bounds()),
        }
    }

    /// The write's keyspace.
    #[must_use]
    pub fn name(&self) -> Name {
        self.change().name()
    }

    /// Does it by the keyspace's own method.
    ///
    /// # Errors
    /// The database's.
    pub fn apply(&self, tree: &Keyspace) -> Result<()> {
        match self {
            Self::Put(_, key, value) => tree.put(key_bytes(*key), value.bytes()),
            Self::PutUntil(_, key, value, until) => {
                tree.put_until(key_bytes(*key), value.bytes(), Some(until.moment()))
            }
            Self::Merge(_, key, operand) => tree.merge(key_bytes(*key), operand.bytes()),
            Self::Delete(_, key) => tree.delete(key_bytes(*key)),
            Self::DeleteRange(_, span) => tree.delete_range(span.bounds()),
        }
    }

    /// Adds it to a batch.
    ///
    /// # Errors
    /// The batch's.
    pub fn add_to(&self, batch: &mut Batch, tree: &Keyspace) -> Result<()> {
        match self {
            Self::Put(_, key, value) => batch.put(tree, key_bytes(*key), value.bytes()),
            Self::PutUntil(_, key, value, until) => {
                batch.put_until(tree, key_bytes(*key), value.bytes(), Some(until.moment()))
            }
            Self::Merge(_, key, operand) => batch.merge(tree, key_bytes(*key), operand.bytes()),
            Self::Delete(_, key) => batch.delete(tree, key_bytes(*key)),
            Self::DeleteRange(_, span) => batch.delete_range(tree, span.bounds()),
        }
        .map(drop)
    }

    /// Adds it to an ingest.
    ///
    /// # Errors
    /// The ingest's; and anything but a put is refused.
    pub fn add_to_ingest(&self, ingest: &mut Ingest) -> Result<()> {
        match self {
            Self::Put(_, key, value) => ingest.put(key_bytes(*key), value.bytes()),
            Self::PutUntil(_, key, value, until) => {
                ingest.put_until(key_bytes(*key), value.bytes(), Some(until.moment()))
            }
            Self::Merge(..) | Self::Delete(..) | Self::DeleteRange(..) => {
                Err(Error::invalid("write", format!("`{self}` is no put, and ingests have only these")))
            }
        }
    }
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put(name, key, value) => write!(f, "put {}/{key} {value}", NAMES[*name as usize]),
            Self::PutUntil(name, key, value, until) => {
                write!(f, "put {}/{key} {value} until {until:?}", NAMES[*name as usize])
            }
            Self::Merge(name, key, operand) => write!(f, "merge {}/{key} {operand}", NAMES[*name as usize]),
            Self::Delete(name, key) => write!(f, "delete {}/{key}", NAMES[*name as usize]),
            Self::DeleteRange(name, span) => write!(f, "delete {}/{span}", NAMES[*name as usize]),
        }
    }
}
