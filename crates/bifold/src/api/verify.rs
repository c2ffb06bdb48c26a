//! Offline verification: reads and checks every byte of every file, without opening the database.
//!
//! In a value file, the bytes that the manifest records must be intact. After a crash, what follows them may be torn,
//! and the logs say which of it counts. Verification walks the logs as opening does, so it also reports what would
//! keep the database from opening. Unlike opening, it does not stop at the first damage: it lists everything it
//! finds, with file and offset. It needs no placement of others to be registered: it reads files, not keys.
//!
//! While another process writes, it verifies the state that it finds at the beginning, as a reader of that state would
//! see it ([`crate::open::follow`]). Nothing is deleted until it ends.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
    time::Duration,
};

use bifold_contract::{Corruption, Error, FileId, LargeFileMeta, Result, TableMeta};
use bifold_format::names;
use bifold_index::table::{Table, TableContext};
use bifold_io::{
    Dir, Env, LockMode,
    fs::{Appending, CatchUp, FileLock},
    pins::Pin,
};
use bifold_values::{
    logs::LogSpan,
    parts::{
        budget::Memory,
        large_files,
        value_files::{self, FileAccess, restore_names},
    },
};

use crate::{
    api::changes::ingested,
    log::kept_logs::{self, KeptLogs},
    open::{
        follow::{log_spans, patiently},
        recover::{Logs, ManifestState, is_any_there, read_manifest, refuse_leftovers},
    },
    state::{files::Files, numbers::Numbers, presets::OwnPlacements},
};

/// What a verification found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Files read.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// All damage found; empty for an intact database.
    pub problems: Vec<Error>,
}

/// How far a verification has come.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct VerifyProgress<'a> {
    /// The file read next.
    pub file: &'a str,
    /// Bytes of the files read before it.
    pub done_bytes: u64,
    /// Bytes of all files.
    pub total_bytes: u64,
}

/// Reads every byte of the database in `path` and reports all damage.
///
/// # Errors
/// [`Error::NotFound`] when there is none, [`Error::InvalidArgument`] when a crash interrupted its recovery while a
/// file had another name, I/O errors of the directory, such as that another process writes and no file can be created
/// in the directory `readers`.
pub fn verify(path: impl AsRef<Path>) -> Result<VerifyReport> {
    verify_in(&Env::system(), path, |_| ())
}

/// As [`verify`], on the files of `env`. Reports its progress before each file.
///
/// # Errors
/// As [`verify`].
pub fn verify_in(
    env: &Env,
    path: impl AsRef<Path>,
    mut progress: impl FnMut(VerifyProgress<'_>),
) -> Result<VerifyReport> {
    let dir = Dir::new(Arc::clone(&env.fs), path.as_ref());
    if !is_any_there(&dir)? {
        return Err(Error::NotFound { path: path.as_ref().into() });
    }
    let (dir, held, access) = hold(env, dir)?;
    let total_bytes = total_bytes(&dir)?;
    let mut check =
        Check { report: VerifyReport::default(), total_bytes, dir, env, access, held, large_read: BTreeSet::new() };
    check.begin(names::MANIFEST, &mut progress);
    let state = match check.patiently(|| read_manifest(&check.dir)) {
        Ok(Some(state)) => state,
        Ok(None) => {
            let files = Files::list(&check.dir)?;
            let damage = refuse_leftovers(&check.dir, &files).err();
            check.report.problems.push(damage.ok_or(Error::NotFound { path: path.as_ref().into() })?);
            return Ok(check.report);
        }
        Err(damage) => {
            check.report.problems.push(damage);
            return Ok(check.report);
        }
    };
    let files = Files::list(&check.dir)?;
    check.tables(&state, &mut progress)?;
    for file in state.values.values() {
        check.begin(&names::value(file.id), &mut progress);
        let damage = check.patiently(|| value_files::verify(&check.dir, file)).err();
        check.report.problems.extend(damage);
    }
    for file in state.large.values() {
        check.large(file, &mut progress);
    }
    check.tails(&state, &files, &mut progress)?;
    for file in check.logs(&state, &files, &mut progress).values() {
        check.large(file, &mut progress);
    }
    check.kept_logs(&state, &files, &mut progress);
    Ok(check.report)
}

/// What keeps files from being changed or deleted.
#[derive(Default)]
struct VerifyHold {
    _lock: Option<Box<dyn FileLock>>,
    _pin: Option<Pin>,
    catch_up: Option<Arc<dyn CatchUp>>,
}

/// Locks the directory or, where another process writes, pins its files.
fn hold(env: &Env, dir: Dir) -> Result<(Dir, VerifyHold, FileAccess)> {
    match dir.clone().lock_for_use(names::LOCK, LockMode::Shared, Appending::default()) {
        Ok((dir, lock)) => {
            // An interrupted recovery is no damage; only the next opening can finish it.
            restore_names(&dir, false)?;
            Ok((dir, VerifyHold { _lock: Some(lock), ..VerifyHold::default() }, FileAccess::Read))
        }
        Err(Error::Locked { .. }) => {
            let pin = Pin::take(&dir)?;
            let (dir, catch_up) = patiently(env, || dir.clone().follow())?;
            let held = VerifyHold { _pin: Some(pin), catch_up: Some(catch_up), ..VerifyHold::default() };
            Ok((dir, held, FileAccess::Follow))
        }
        Err(error) => Err(error),
    }
}

struct Check<'a> {
    dir: Dir,
    report: VerifyReport,
    total_bytes: u64,
    env: &'a Env,
    access: FileAccess,
    held: VerifyHold,
    /// Large values that were read.
    large_read: BTreeSet<FileId>,
}

fn total_bytes(dir: &Dir) -> Result<u64> {
    dir.list()?.iter().try_fold(0, |sum, name| Ok(sum + dir.len(name)?.unwrap_or(0)))
}

impl Check<'_> {
    /// Tries again if another process may be changing what is read.
    fn patiently<T>(&self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        match self.access {
            FileAccess::Follow => patiently(self.env, attempt),
            FileAccess::Read | FileAccess::Write => attempt(),
        }
    }

    fn begin(&mut self, name: &str, progress: &mut impl FnMut(VerifyProgress<'_>)) {
        progress(VerifyProgress { file: name, done_bytes: self.report.bytes, total_bytes: self.total_bytes });
        self.report.files += 1;
        match self.patiently(|| self.dir.len(name)) {
            Ok(len) => self.report.bytes += len.unwrap_or(0),
            // Else it would say that it has read less than it has.
            Err(error) => self.report.problems.push(error),
        }
    }

    /// Reports a problem, unless it is among those reported already.
    fn report_once(&mut self, problem: Error) {
        if self.report.problems.iter().all(|known| known.to_string() != problem.to_string()) {
            self.report.problems.push(problem);
        }
    }

    fn tables(&mut self, state: &ManifestState, progress: &mut impl FnMut(VerifyProgress<'_>)) -> Result<()> {
        // No cache and no metadata budget: each table is read once, front to back.
        let context = Arc::new(TableContext::new(0, 0));
        for added in state.keyspaces.values().flat_map(|k| k.tables.values()) {
            self.begin(&names::table(added.table.id), progress);
            self.table(&added.table, &context)?;
        }
        Ok(())
    }

    fn table(&mut self, meta: &Arc<TableMeta>, context: &Arc<TableContext>) -> Result<()> {
        let name = names::table(meta.id);
        if self.dir.len(&name)?.is_none() {
            let missing = Corruption::new(0, "table", format!("{} bytes", meta.bytes), "no such file");
            self.report.problems.push(missing.of(self.dir.file(&name)));
            return Ok(());
        }
        match self.patiently(|| Table::open(&self.dir, Arc::clone(meta), context)) {
            Ok(table) => self.report.problems.extend(table.verify()),
            Err(damage) => self.report.problems.push(damage),
        }
        Ok(())
    }

    fn large(&mut self, file: &LargeFileMeta, progress: &mut impl FnMut(VerifyProgress<'_>)) {
        if !self.large_read.insert(file.named.file) {
            return;
        }
        self.begin(&names::large(file.named.file), progress);
        let damage = self.patiently(|| large_files::verify(&self.dir, file)).err();
        self.report.problems.extend(damage);
    }

    /// Checks what value files hold after the lengths in the manifest, and files that the manifest does not record.
    fn tails(
        &mut self,
        state: &ManifestState,
        files: &Files,
        progress: &mut impl FnMut(VerifyProgress<'_>),
    ) -> Result<()> {
        for &id in &files.values {
            let recorded = state.values.get(&id).map(|file| file.bytes);
            if recorded == Some(0) {
                // Everything in it has moved, and a crash kept its name.
                continue;
            }
            let name = names::value(id);
            if recorded.is_none() {
                self.begin(&name, progress);
            }
            let len = self.patiently(|| self.dir.len(&name))?;
            if len.is_some_and(|len| len > recorded.unwrap_or(0)) {
                match self.tail(id, recorded) {
                    Ok(damage) => self.report.problems.extend(damage),
                    Err(unreadable) => self.report.problems.push(unreadable),
                }
            }
        }
        Ok(())
    }

    /// Damage behind the recorded length of a value file.
    fn tail(&self, id: FileId, recorded: Option<u64>) -> Result<Vec<Error>> {
        let mut found = Vec::new();
        let first = self.patiently(|| {
            found = value_files::verify_tail(&self.dir, id, recorded)?;
            found.first().map_or(Ok(()), |damage| Err(damage.clone()))
        });
        if found.is_empty() { first.map(|()| found) } else { Ok(found) }
    }

    /// Walks the logs as opening does, and reports what would keep the database from opening. Returns the large values
    /// that only the logs name.
    fn logs(
        &mut self,
        state: &ManifestState,
        files: &Files,
        progress: &mut impl FnMut(VerifyProgress<'_>),
    ) -> BTreeMap<FileId, LargeFileMeta> {
        let live: Vec<FileId> = files.logs.iter().copied().filter(|&id| id >= state.log_floor.log).collect();
        live.iter().for_each(|&id| self.begin(&names::log(id), progress));
        let found = match self.access {
            FileAccess::Read | FileAccess::Write => {
                let spans: Vec<LogSpan> = live.iter().map(|&id| LogSpan::whole(id)).collect();
                self.walk_logs(state, (files, &files.values), &spans)
            }
            FileAccess::Follow => self.patiently(|| self.walk_followed_logs()),
        };
        match found {
            Ok(large) => large,
            Err(error) => {
                // `tails` has already reported damaged values after the recorded lengths.
                self.report_once(error);
                BTreeMap::new()
            }
        }
    }

    /// Reads the logs that only the change feed needs, and the large values that they name.
    fn kept_logs(&mut self, state: &ManifestState, files: &Files, progress: &mut impl FnMut(VerifyProgress<'_>)) {
        let (needed, below): (Vec<FileId>, Vec<FileId>) = files.logs.iter().partition(|&&id| id >= state.log_floor.log);
        let found = self.patiently(|| KeptLogs::find(&self.dir, (&below, &needed), None, Duration::ZERO));
        let kept = match found {
            Ok(kept) => kept,
            Err(error) => return self.report.problems.push(error),
        };
        for log in kept.to_verify() {
            self.begin(&names::log(log.0), progress);
            match self.patiently(|| kept_logs::verify(&self.dir, log)) {
                Ok(named) => named.iter().for_each(|file| self.large(file, progress)),
                Err(damage) => self.report.problems.push(damage),
            }
        }
        for log in kept.files().map(|log| log.id).chain(needed) {
            let ingests = self.patiently(|| kept_logs::arrived_ingests(&self.dir, log, state.last_seqno));
            // What is wrong with the log itself is reported elsewhere, too.
            let ingests = ingests.unwrap_or_else(|error| {
                self.report_once(error);
                Vec::new()
            });
            for ingest in ingests {
                let name = names::ingest(ingest.file);
                // A copy has the log and not the file: a feed is told that these changes are gone. But what has come
                // since the manifest was begun is of this database.
                let may_be_gone = ingest.file < state.begun_next_file;
                if may_be_gone && self.dir.len(&name).is_ok_and(|len| len.is_none()) {
                    continue;
                }
                self.begin(&name, progress);
                let damage = self.patiently(|| ingested::verify(&self.dir, ingest)).err();
                self.report.problems.extend(damage);
            }
        }
    }

    /// Walks the logs as they are now, in the order of a reader: a recovery may have truncated them meanwhile.
    fn walk_followed_logs(&self) -> Result<BTreeMap<FileId, LargeFileMeta>> {
        let catch_up = || self.held.catch_up.as_deref().map_or(Ok(()), CatchUp::catch_up);
        let missing = || Error::NotFound { path: self.dir.path().into() };
        let state = read_manifest(&self.dir)?.ok_or_else(missing)?;
        let files = Files::list(&self.dir)?;
        catch_up()?;
        let live: Vec<FileId> = files.logs.iter().copied().filter(|&id| id >= state.log_floor.log).collect();
        let spans = log_spans(&self.dir, &live, None)?;
        // Values that their commits point at were written before.
        catch_up()?;
        self.walk_logs(&state, (&files, &[]), &spans)
    }

    fn walk_logs(
        &self,
        state: &ManifestState,
        (files, present): (&Files, &[FileId]),
        spans: &[LogSpan],
    ) -> Result<BTreeMap<FileId, LargeFileMeta>> {
        files.check_numbers(&self.dir, state.next_file)?;
        state.check_logs(&self.dir, files)?;
        let context = Arc::new(TableContext::new(0, 0));
        let memory = Memory::new(0, 0);
        let numbers = Numbers::from(files.last.saturating_add(1));
        let own = (OwnPlacements::OnlyFiles, self.access);
        let trees = state.open_trees(&self.dir, &context, (&memory, &Arc::default()), &numbers, present, own)?;
        let trees = trees.iter().map(|tree| &**tree);
        Ok(Logs::find(&self.dir, state, (spans, state.log_floor.first), trees)?.large)
    }
}
