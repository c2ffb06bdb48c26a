//! Deletes old generations. First it is recorded that they are deleted, durably; then their records are removed, and
//! the files that no other record names.

use std::collections::BTreeMap;

use bifold_contract::{Result, planted};
use bifold_format::backup::{self as format};

use super::{report::PruneReport, repository::Repository};

/// Deletes all but the newest `keep` generations of each database.
///
/// # Errors
/// See [`Backup::prune`](super::Backup::prune).
pub(super) fn prune(repository: &Repository, keep: usize) -> Result<PruneReport> {
    let mut records = repository.records()?;
    if let Some((_, error)) = records.damaged.first() {
        return Err(error.clone());
    }
    let mut newer: BTreeMap<u64, usize> = BTreeMap::new();
    let mut old = Vec::new();
    for record in records.whole.iter().rev() {
        let kept = newer.entry(record.database_id).or_default();
        *kept += 1;
        if *kept > keep {
            old.push(record.number);
        }
    }
    old.reverse();
    records.whole.retain(|record| !old.contains(&record.number));
    if planted!("prune_by_number") {
        records.whole.iter_mut().for_each(|record| record.files.retain(|file| !old.contains(&file.stored_by)));
    }
    let (files, bytes) = repository.remove_unnamed(&mut records)?;
    // Where all their files are named by others, nothing else has removed them.
    for &number in &old {
        repository.generations.remove(&format::record_name(number))?;
    }
    repository.generations.sync()?;
    Ok(PruneReport { generations: old, files, bytes })
}
