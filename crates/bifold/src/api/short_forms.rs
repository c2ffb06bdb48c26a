//! Calls on the default keyspace, in short.

use std::ops::RangeBounds;

use bifold_contract::{Result, Value};

use crate::{
    api::{db::Db, keyspace::Swap},
    read::{pair::Pair, scan::Range},
    settings::options::Durability,
};

#[allow(unused_imports, reason = "for the links below")]
use crate::api::keyspace::Keyspace;

/// Short forms for the default keyspace.
impl Db {
    /// [`Keyspace::put`] on the default keyspace.
    ///
    /// # Errors
    /// As [`Keyspace::put`].
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.default_keyspace().put(key, value)
    }

    /// [`Keyspace::put_with`] on the default keyspace.
    ///
    /// # Errors
    /// As [`Keyspace::put`].
    pub fn put_with(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, durability: Durability) -> Result<()> {
        self.default_keyspace().put_with(key, value, durability)
    }

    /// [`Keyspace::get`] on the default keyspace.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.default_keyspace().get(key)
    }

    /// [`Keyspace::contains_key`] on the default keyspace.
    ///
    /// # Errors
    /// As [`Keyspace::contains_key`].
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.default_keyspace().contains_key(key)
    }

    /// [`Keyspace::delete`] on the default keyspace.
    ///
    /// # Errors
    /// As [`Keyspace::delete`].
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.default_keyspace().delete(key)
    }

    /// [`Keyspace::delete_with`] on the default keyspace.
    ///
    /// # Errors
    /// As [`Keyspace::delete`].
    pub fn delete_with(&self, key: impl AsRef<[u8]>, durability: Durability) -> Result<()> {
        self.default_keyspace().delete_with(key, durability)
    }

    /// [`Keyspace::delete_range`] on the default keyspace.
    ///
    /// # Errors
    /// As [`Keyspace::delete_range`].
    pub fn delete_range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<()> {
        self.default_keyspace().delete_range(range)
    }

    /// [`Keyspace::delete_range_with`] on the default keyspace.
    ///
    /// # Errors
    /// As [`Keyspace::delete_range`].
    pub fn delete_range_with<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>, durability: Durability) -> Result<()> {
        self.default_keyspace().delete_range_with(range, durability)
    }

    /// [`Keyspace::multi_get`] on the default keyspace.
    ///
    /// # Errors
    /// As [`Keyspace::multi_get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Vec<Option<Value>>> {
        self.default_keyspace().multi_get(keys)
    }

    /// [`Keyspace::compare_and_swap`] on the default keyspace.
    ///
    /// # Errors
    /// As [`Keyspace::compare_and_swap`].
    pub fn compare_and_swap(&self, key: impl AsRef<[u8]>, expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<Swap> {
        self.default_keyspace().compare_and_swap(key, expected, new)
    }

    /// [`Keyspace::first_key_value`] of the default keyspace.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn first_key_value(&self) -> Result<Option<Pair>> {
        self.default_keyspace().first_key_value()
    }

    /// [`Keyspace::last_key_value`] of the default keyspace.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn last_key_value(&self) -> Result<Option<Pair>> {
        self.default_keyspace().last_key_value()
    }

    /// [`Keyspace::iter`] on the default keyspace.
    #[must_use]
    pub fn iter(&self) -> Range {
        self.default_keyspace().iter()
    }

    /// [`Keyspace::range`] on the default keyspace.
    #[must_use]
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Range {
        self.default_keyspace().range(range)
    }

    /// [`Keyspace::prefix`] on the default keyspace.
    #[must_use]
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        self.default_keyspace().prefix(prefix)
    }
}
