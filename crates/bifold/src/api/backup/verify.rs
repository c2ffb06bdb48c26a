//! Reads every stored byte of a repository.

use std::collections::BTreeMap;

use bifold_contract::Result;
use bifold_format::backup::StoredFile;

use super::{repository::Repository, restore::StoredReader};
use crate::api::verify::{VerifyProgress, VerifyReport};

/// Checks all records and the files that they name, each once.
///
/// # Errors
/// I/O errors of the directories.
pub(super) fn verify(repository: &Repository, progress: &mut dyn FnMut(VerifyProgress<'_>)) -> Result<VerifyReport> {
    let records = repository.records()?;
    let mut report = VerifyReport::default();
    report.problems.extend(records.damaged.iter().map(|(_, error)| error.clone()).chain(records.list_damage));
    report.files = (records.whole.len() + records.damaged.len()) as u64;
    // Two records that differ about one file are checked both.
    let mut files: BTreeMap<(String, &[u128]), &StoredFile> = BTreeMap::new();
    for file in records.whole.iter().flat_map(|record| &record.files) {
        files.insert((file.stored_name(), &file.sums), file);
    }
    let total_bytes = files.values().map(|file| file.bytes).sum();
    for ((name, _), file) in files {
        progress(VerifyProgress { file: &name, done_bytes: report.bytes, total_bytes });
        let checked = StoredReader::open(repository, file).and_then(|stored| stored.read(|_| Ok(())));
        report.problems.extend(checked.err());
        report.files += 1;
        report.bytes += file.bytes;
    }
    Ok(report)
}
