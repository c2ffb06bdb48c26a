//! Which keyspace each unrecorded value file belongs to. Each file says so itself, and is read once for all
//! keyspaces.

use std::collections::BTreeMap;

use bifold_contract::{FileId, IoSource, KeyspaceId, Result};
use bifold_format::{
    names,
    value::{self, DESCRIPTION_BYTES_MAX},
};
use bifold_io::Dir;

/// Unrecorded files, by keyspace.
#[derive(Debug, Default)]
pub struct Owners {
    of: BTreeMap<KeyspaceId, Vec<FileId>>,
    /// Those whose header is damaged in a way that no crash explains: they may belong to any keyspace.
    of_anybody: Vec<FileId>,
}

impl Owners {
    /// The files that belong to this keyspace, or may.
    #[must_use]
    pub fn of(&self, keyspace: KeyspaceId) -> Vec<FileId> {
        self.of.get(&keyspace).into_iter().flatten().chain(&self.of_anybody).copied().collect()
    }
}

/// Sorts files by the keyspace in their header. A file begun right before a crash, whose beginning is torn, is
/// skipped: nothing ever pointed into it.
///
/// # Errors
/// I/O errors.
pub fn owners(dir: &Dir, files: impl Iterator<Item = FileId>) -> Result<Owners> {
    let mut owners = Owners::default();
    for id in files {
        // For reading only: opening a file to append to it changes it, and the keyspace may have been dropped.
        let reader = dir.open(&names::value(id))?;
        let mut first = vec![0; DESCRIPTION_BYTES_MAX.min(usize::try_from(reader.len()).unwrap_or(usize::MAX))];
        reader.read_at(&mut first, 0, IoSource::Recovery)?;
        match value::describe(&first) {
            Ok((found, description, _)) if found == id => owners.of.entry(description.keyspace).or_default().push(id),
            Err(_) if value::is_torn_beginning(&first, id) => {}
            _ => owners.of_anybody.push(id),
        }
    }
    Ok(owners)
}
