//! Whose the value files are that no edit names: each says it itself, and is looked at once for all keyspaces.

use std::collections::BTreeMap;

use bifold_contract::{FileId, IoSource, KeyspaceId, Result};
use bifold_format::{
    names,
    value::{self, DESCRIPTION_BYTES_MAX},
};
use bifold_io::Dir;

/// Sorts files by the keyspace that they say they belong to. One without a whole description is left out: it was begun right
/// before a crash, and nothing in it was ever pointed at.
///
/// # Errors
/// I/O errors.
pub fn owners(dir: &Dir, files: impl Iterator<Item = FileId>) -> Result<BTreeMap<KeyspaceId, Vec<FileId>>> {
    let mut owners: BTreeMap<KeyspaceId, Vec<FileId>> = BTreeMap::new();
    for id in files {
        let name = names::value(id);
        // For reading only: opening a file to append to it changes it, and the keyspace may have been dropped.
        let reader = dir.open(&name)?;
        if cfg!(planted = "append_to_any") {
            drop(dir.append_to(&reader, IoSource::Value)?);
        }
        let mut first = vec![0; DESCRIPTION_BYTES_MAX.min(usize::try_from(reader.len()).unwrap_or(usize::MAX))];
        reader.read_at(&mut first, 0, IoSource::Recovery)?;
        if let Ok((found, description, _)) = value::describe(&first)
            && found == id
        {
            owners.entry(description.keyspace).or_default().push(id);
        }
    }
    Ok(owners)
}
