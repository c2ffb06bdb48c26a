//! Checkpoint: a copy of the whole database in another directory, in nearly no time and space.
//!
//! Tables never change, so they are linked; logs still grow, so what they hold now is copied; value files are ended, so that
//! they are linked too and commits go on in new ones; the manifest is written anew. While the manifest lock is held nothing is installed or deleted. The manifest comes last: a crash before that
//! leaves a directory that is not a database, and opening it says so or begins afresh.

use std::{collections::BTreeSet, path::Path};

use bifold_contract::{Error, FileId, IoSource, Result};
use bifold_format::names;
use bifold_io::Dir;

use crate::{engine::Engine, manifest::ManifestFile, options::Access, sync::LockExt, wal::LogFile};

/// Bytes copied at a time.
const COPY_BYTES: u64 = 1 << 20;

/// Copies the database to `path`.
///
/// # Errors
/// I/O errors; [`Error::InvalidArgument`] when `path` holds files; [`Error::Poisoned`].
pub(crate) fn checkpoint(engine: &Engine, path: &Path) -> Result<()> {
    engine.health.open()?;
    let to = engine.dir.sibling(path);
    to.create_dir()?;
    if let Some(name) = to.list()?.first() {
        let reason = format!("{} holds files already ({name}); name a new or an empty directory", path.display());
        return Err(Error::invalid("checkpoint directory", reason));
    }
    let mut manifest = engine.manifest.hold();
    // Before the list of logs: a later one may be missing there.
    let floor = engine.log_floor(None);
    let end = end_here(engine)?;
    if end.shares_values {
        engine.sync_everything()?;
        engine.list_lengths(&mut manifest)?;
    }
    let mut state = engine.state(floor);
    state.values.added.retain(|file| end.values.contains(&file.id) || file.bytes == 0);
    for added in state.levels.iter().flat_map(|change| &change.added) {
        engine.dir.link_into(&to, &names::table(added.table.id))?;
    }
    for file in state.values.added.iter().filter(|file| file.bytes > 0) {
        engine.dir.link_into(&to, &names::value(file.id))?;
    }
    end.logs.iter().try_for_each(|log| copy_log(&engine.dir, &to, log.id, log.bytes))?;
    to.sync()?;
    ManifestFile::create(&to, manifest.database_id(), &state)?;
    let above = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    to.sibling(above).sync()
}

/// Where the copy ends.
struct End {
    logs: Vec<LogFile>,
    values: BTreeSet<FileId>,
    /// Values are kept apart. Recovery of the copy cuts what its manifest does not list, in files that are shared: so all
    /// must be listed, and durable before.
    shares_values: bool,
}

/// Ends the present logs and value files, for the copy's purposes, after the same commit.
fn end_here(engine: &Engine) -> Result<End> {
    let mut wal = engine.wal.hold();
    let trees = engine.steady_trees(&*wal);
    let apart = trees.iter().any(|p| p.keeps_apart) && engine.options.access == Access::ReadWrite;
    engine.health.well()?;
    engine.watch(wal.write_out())?;
    if apart {
        trees.iter().for_each(|p| p.placement().seal());
    }
    Ok(End {
        logs: wal.files(),
        values: trees.iter().flat_map(|p| p.placement().live_files()).collect(),
        shares_values: apart,
    })
}

fn copy_log(from: &Dir, to: &Dir, id: FileId, bytes: u64) -> Result<()> {
    let name = names::log(id);
    let (reader, writer) = (from.open(&name)?, to.create(&name, IoSource::Maintenance)?);
    let mut buffer = vec![0; usize::try_from(bytes.min(COPY_BYTES)).unwrap_or(0)];
    let mut done = 0;
    while done < bytes {
        let step = usize::try_from(COPY_BYTES.min(bytes - done)).unwrap_or(0);
        reader.read_at(&mut buffer[..step], done, IoSource::Maintenance)?;
        writer.append(&[&buffer[..step]])?;
        done += step as u64;
    }
    writer.sync()
}
