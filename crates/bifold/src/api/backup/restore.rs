//! Makes a generation a database. Every byte is checked on the way; the manifest comes last.

use std::{
    io::{self, ErrorKind},
    path::Path,
};

use bifold_contract::{Corruption, Error, IoSource, Result};
use bifold_format::{
    backup::{CHUNK_BYTES, GenerationRecord, StoredFile, chunk_sum},
    names,
};
use bifold_io::{Reader, Together, Writer};

use super::{report::BackupProgress, repository::Repository};
use crate::api::checkpoint::target::{Purpose, Target};

const RESTORED: Purpose = Purpose {
    directory: "restore directory",
    apart_from: "the repository's own directory",
    removal: "remove the unfinished restored database",
    failed: "restoring failed",
};

/// Makes the generation of `record` a database in `path`.
///
/// # Errors
/// See [`Backup::restore`](super::Backup::restore).
pub(super) fn restore(
    repository: &Repository,
    record: &GenerationRecord,
    path: &Path,
    report: &mut dyn FnMut(BackupProgress),
) -> Result<()> {
    let mut target = Target::claim(&repository.root, path, &RESTORED)?;
    let bytes_total = record.files.iter().map(|file| file.bytes).sum();
    let mut restoring = Restoring {
        repository,
        target: &mut target,
        pending: Together::default(),
        progress: BackupProgress { bytes_total, ..BackupProgress::default() },
        report,
    };
    match restoring.carry_out(record) {
        Ok(()) => Ok(()),
        Err(error) => Err(target.undo(error)),
    }
}

struct Restoring<'a> {
    repository: &'a Repository,
    target: &'a mut Target,
    /// Files that are not yet synced.
    pending: Together<Writer>,
    progress: BackupProgress,
    report: &'a mut dyn FnMut(BackupProgress),
}

impl Restoring<'_> {
    fn carry_out(&mut self, record: &GenerationRecord) -> Result<()> {
        self.require_room()?;
        for file in &record.files {
            self.file(file)?;
        }
        self.sync_pending()?;
        self.target.dir().sync()?;
        self.target.begin_manifest();
        let dir = self.target.dir();
        let manifest = dir.create(names::MANIFEST_TEMPORARY, IoSource::Manifest)?;
        manifest.append(&[&record.manifest])?;
        manifest.sync()?;
        dir.rename(names::MANIFEST_TEMPORARY, names::MANIFEST)?;
        dir.sync()?;
        self.target.make_name_durable()
    }

    fn require_room(&self) -> Result<()> {
        let (dir, needed) = (self.target.dir(), self.progress.bytes_total);
        match dir.free_bytes() {
            Some(free) if free < needed => {
                let reason = format!("{free} bytes are free and the database takes {needed}");
                Err(Error::io("restore to", dir.path(), io::Error::new(ErrorKind::StorageFull, reason)))
            }
            _ => Ok(()),
        }
    }

    fn file(&mut self, file: &StoredFile) -> Result<()> {
        let stored = StoredReader::open(self.repository, file)?;
        let writer = self.target.make(&file.name, |to| to.create(&file.name, IoSource::Maintenance))?;
        let (progress, report) = (&mut self.progress, &mut *self.report);
        stored.read(|chunk| {
            writer.append(&[chunk])?;
            progress.bytes_done += chunk.len() as u64;
            progress.bytes_copied = progress.bytes_done;
            report(*progress);
            Ok(())
        })?;
        self.pending.push(writer);
        if self.pending.is_full() || self.target.dir().is_crowded_by_writers() {
            self.sync_pending()?;
        }
        Ok(())
    }

    fn sync_pending(&mut self) -> Result<()> {
        let writers = self.pending.take();
        self.target.dir().sync_files(&writers)
    }
}

/// A stored file that is read and checked.
pub(super) struct StoredReader<'a> {
    file: &'a StoredFile,
    reader: Reader,
}

impl<'a> StoredReader<'a> {
    /// Opens a stored file.
    ///
    /// # Errors
    /// Corruption when it is missing or has another length; I/O errors.
    pub fn open(repository: &Repository, file: &'a StoredFile) -> Result<Self> {
        let (name, expected) = (file.stored_name(), format!("{} bytes", file.bytes));
        let found = repository.files.len(&name)?;
        if found != Some(file.bytes) {
            let at = found.unwrap_or(0).min(file.bytes);
            let found = found.map_or_else(|| "no such file".to_owned(), |bytes| format!("{bytes} bytes"));
            return Err(Corruption::new(at, "stored file", expected, found).of(repository.files.file(&name)));
        }
        Ok(Self { file, reader: repository.files.open(&name)? })
    }

    /// Passes each chunk to `take`, once it is checked.
    ///
    /// # Errors
    /// Corruption; those of `take`; I/O errors.
    pub fn read(&self, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut buffer = vec![0; usize::try_from(self.file.bytes.min(CHUNK_BYTES)).unwrap_or(0)];
        let mut at = 0;
        for &sum in &*self.file.sums {
            let step = CHUNK_BYTES.min(self.file.bytes - at);
            let chunk = &mut buffer[..usize::try_from(step).unwrap_or(0)];
            self.reader.read_once(chunk, at, IoSource::Maintenance)?;
            let found = chunk_sum(chunk, at);
            if found != sum {
                let what = "chunk of a stored file";
                let damage = Corruption::new(at, what, format!("sum {sum:032x}"), format!("{found:032x}"));
                return Err(damage.of(self.reader.path()));
            }
            take(chunk)?;
            at += step;
        }
        Ok(())
    }
}
