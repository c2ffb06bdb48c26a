//! How operands are written. Page: `docs/merge.md`.

use bifold_contract::Result;

use crate::{api::keyspace::Keyspace, settings::options::Durability, state::op::Act};

impl Keyspace {
    /// Gives `key` an operand of the keyspace's [`merge`](crate::KeyspaceOptions::merge) operator. Nothing is read, nor
    /// is the operand checked: reads, flushes and compactions combine operands with what is older.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("bifold-doc-merge-{}", std::process::id()));
    /// use bifold::{KeyspaceOptions, MergeOperator};
    /// # let db = bifold::Db::open(&dir)?;
    /// let options = KeyspaceOptions { merge: Some(MergeOperator::add_i64()), ..KeyspaceOptions::default() };
    /// let visits = db.keyspace("visits", options)?;
    /// visits.merge("home", 1i64.to_le_bytes())?;
    /// visits.merge("home", 2i64.to_le_bytes())?;
    /// assert_eq!(visits.get("home")?.as_deref(), Some(&3i64.to_le_bytes()[..]));
    /// # db.close()?;
    /// # std::fs::remove_dir_all(dir).ok();
    /// # Ok::<(), bifold::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::put`]; [`InvalidArgument`](crate::Error::InvalidArgument) when the keyspace has no merge
    /// operator.
    pub fn merge(&self, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) -> Result<()> {
        self.merge_with(key, operand, self.durability())
    }

    /// [`Keyspace::merge`] with the given durability.
    ///
    /// # Errors
    /// As [`Keyspace::merge`].
    pub fn merge_with(&self, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>, durability: Durability) -> Result<()> {
        self.write(key.as_ref(), Act::Merge(operand.as_ref()), durability)
    }
}
