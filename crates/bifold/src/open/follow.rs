//! Reads a database while another process writes it ([`Access::Follow`](crate::Access::Follow)).
//!
//! ```text
//! 1 pin every file                    from now on the writer deletes nothing that is read below      pinned.rs
//! 2 MANIFEST: what is new in it       tables, value files, which logs count                          manifest.rs
//! 3 list the logs, note their ends    what is behind them is for the next time                       logs
//! 4 look at APPENDS                   it has what was written before those ends, or the files have
//! 5 trees                             as before, where no edit has touched them                      trees.rs
//! 6 walk the logs, replay commits     into memtables, one for each log
//! 7 pin what is needed from now on
//! ```
//!
//! * **The order makes it a state.** What an edit says is durable, or deleted, was in the logs before that edit was in
//!   the manifest. A value was written before the record that points at it. So what is read later has everything that
//!   what was read earlier leads to, and the commits found are all commits up to some number.
//! * **A state never changes.** Each one is an [`Engine`] of its own, and its trees differ from the last one's where an
//!   edit has touched them. Trees that no edit has touched are shared: the later engine adds commits to their
//!   memtables, which have numbers that the earlier one does not see.
//! * **What a writer is about to change may be met halfway**: a file that has another name for a moment, a record half
//!   written that looks damaged. Everything is then read again, a few times over two seconds, before it is an error.
//! * A new manifest (a session, or one that had become long) is read from its beginning, and so are the logs.
//! * **Another database in the directory is an error.** Its files may have the numbers of files that are cached. It is
//!   known by a pin that is gone, by its id, and by a manifest or commits from before what was read.

mod manifest;
mod pinned;
mod trees;

use std::{
    collections::BTreeSet,
    io::ErrorKind,
    path::Path,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use bifold_contract::{Corruption, Error, FileId, Result, SeqNo, planted};
use bifold_format::{frame::FILE_HEADER_BYTES, names};
use bifold_index::table::TableContext;
use bifold_io::{Dir, Env, fs::CatchUp};
use bifold_values::{
    logs::LogSpan,
    parts::{budget::Memory, unsynced::Unsynced},
};

use self::{manifest::ManifestPlace, pinned::ReaderPin};
use crate::{
    counts::counters::Counters,
    engine::{Engine, Recovered},
    limits::memory::MemoryPlan,
    log::{
        manifest::ManifestFile,
        wal::{LogFile, Wal},
    },
    open::recover::{Logs, ManifestState, Replay, dir_of, is_any_there},
    settings::options::Options,
    state::{files::Files, numbers::Numbers, telling::Events, time::Time, tree::Tree},
    waiting::sync::LockExt,
};

/// Milliseconds before each new attempt to read what a writer is about to change.
const PAUSES_MS: [u64; 14] = [0, 0, 0, 1, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];

/// Reads one database, state after state.
pub(crate) struct Follower {
    env: Env,
    options: Options,
    plan: MemoryPlan,
    dir: Dir,
    tables: Arc<TableContext>,
    value_memory: Memory,
    unsynced: Arc<Unsynced>,
    catch_up: Arc<dyn CatchUp>,
    pinned: Arc<ReaderPin>,
    /// One for all states: what expired in one has expired in the next.
    time: Arc<Time>,
    /// So are these: what was counted in one is counted in the next.
    counters: Arc<Counters>,
    at: Mutex<At>,
}

/// How far it has read.
#[derive(Default)]
struct At {
    /// `None` before the first read and after one that failed halfway: then everything is read again.
    place: Option<ReadPlace>,
    /// The number of the next commit, and the last one that is seen.
    next: SeqNo,
    visible: SeqNo,
    newest: Weak<Engine>,
    /// The database and its manifest as the newest state has them.
    last: Option<(u64, ManifestPlace)>,
    /// What the listener was told that could not be read.
    left_out: BTreeSet<String>,
}

/// What it has read.
struct ReadPlace {
    manifest: ManifestPlace,
    state: ManifestState,
    trees: Vec<Arc<Tree>>,
    /// The logs that count, each with the bytes that were replayed.
    logs: Vec<LogFile>,
    /// How long the last log was.
    last_log_bytes: u64,
    /// The first file number that no file of this state or an earlier one has.
    below: FileId,
}

/// What is read of the manifest and of the logs at one time.
struct Reading {
    manifest: ManifestPlace,
    state: ManifestState,
    spans: Vec<LogSpan>,
    next: SeqNo,
}

/// What was read, its trees, and the logs from before that still count.
type Read = (Reading, Vec<Arc<Tree>>, Vec<LogFile>);

impl At {
    /// Notes for the listener what this state leaves out and none before has. The caller has a lock and tells nothing.
    fn note_left_out(&mut self, engine: &Engine) {
        for tree in engine.trees.all().iter() {
            for why in tree.left_out() {
                if self.left_out.insert(why.to_string()) {
                    engine.events.left_out(&tree.name, &why);
                }
            }
        }
    }
}

impl Follower {
    /// Opens the database in `path` and reads its state.
    ///
    /// # Errors
    /// I/O errors, among them that a pin cannot be created; corruption; [`Error::NotFound`].
    pub fn open(env: Env, path: &Path, options: Options) -> Result<(Arc<Self>, Arc<Engine>)> {
        let plan = MemoryPlan::of(&options);
        let dir = dir_of(&env, path, &options);
        if !is_any_there(&dir)? {
            return Err(Error::NotFound { path: path.into() });
        }
        let pinned = ReaderPin::take(&dir)?;
        let (dir, catch_up) = patiently(&env, || dir.clone().follow())?;
        let tables = plan.tables();
        let follower = Arc::new(Self {
            value_memory: plan.values(&tables),
            tables,
            unsynced: Arc::default(),
            time: Arc::new(Time::new(&env.clock, 0)),
            counters: Arc::default(),
            env,
            options,
            plan,
            dir,
            catch_up,
            pinned,
            at: Mutex::default(),
        });
        let engine = follower.newest()?;
        Ok((follower, engine))
    }

    /// The newest state.
    ///
    /// # Errors
    /// I/O errors and corruption. Earlier states can still be read, and the next call reads everything again.
    pub fn newest(&self) -> Result<Arc<Engine>> {
        let mut at = self.at.hold();
        let current = at.newest.upgrade().filter(|engine| engine.health.open().is_ok());
        if let Some(current) = current.filter(|_| at.place.is_some())
            && patiently(&self.env, || self.is_newest(&at))?
        {
            return Ok(current);
        }
        let newest = patiently(&self.env, || self.advance(&mut at));
        let newest = newest.inspect_err(|_| self.pinned.end_reading())?;
        at.last = at.place.as_ref().map(|place| (place.state.database_id, place.manifest.clone()));
        if self.options.listener.get().is_some() {
            at.note_left_out(&newest);
        }
        Ok(newest)
    }

    /// Whether nothing was written since.
    fn is_newest(&self, at: &At) -> Result<bool> {
        let Some(place) = &at.place else { return Ok(false) };
        let last = place.logs.last().map_or(0, |log| log.id);
        self.catch_up.catch_up()?;
        Ok(place.manifest.is_all(&self.dir)?
            && self.dir.len(&names::log(last))? == Some(place.last_log_bytes)
            && Files::list(&self.dir)?.logs.last() == Some(&last))
    }

    fn advance(&self, at: &mut At) -> Result<Arc<Engine>> {
        if !planted!("pin_after_reading") {
            self.pinned.hold_everything()?;
        }
        let before = at.place.take();
        let below = before.as_ref().map_or(0, |place| place.below);
        let next = match before {
            Some(place) => self.read_on(at.next, place)?,
            None => None,
        };
        let (reading, trees, logs) = match next {
            Some((reading, trees, logs)) => (reading, trees, logs),
            None => self.read_all(at.last.as_ref())?,
        };
        let numbers = Numbers::from(reading.state.next_file.max(1));
        let found =
            Logs::find(&self.dir, &reading.state, (&reading.spans, reading.next), trees.iter().map(|tree| &**tree))?;
        if found.next < at.next {
            return Err(self.older(found.next, at.next));
        }
        // Not what the manifest says: commits of the last moments may not be in the log's file yet.
        let flushed = trees.iter().map(|tree| tree.flushed()).max().unwrap_or(0);
        let visible = at.visible.max(found.next - 1).max(flushed);
        let logs = replayed(logs, &reading.spans, &found);
        let last_log = reading.spans.last().map_or(0, |span| span.id);
        let below = below.max(reading.state.next_file).max(found.last_file + 1).max(last_log + 1);
        let lock = self.pinned.begin(reading.manifest.position(), below)?;
        let mut wal = Wal::none(&self.dir, visible + 1);
        wal.adopt(logs.iter().copied());
        self.time.is_past(reading.state.seen_time.unwrap_or(0));
        let engine = Engine::new(Recovered {
            env: self.env.clone(),
            dir: self.dir.clone(),
            options: self.options.clone(),
            plan: self.plan,
            tables: Arc::clone(&self.tables),
            value_memory: self.value_memory.clone(),
            unsynced: Arc::clone(&self.unsynced),
            lock: Box::new(lock),
            manifest: ManifestFile::frozen(&self.dir, reading.state.database_id),
            wal,
            visible,
            replaying: Some(reading.state.log_floor),
            numbers,
            trees: trees.clone(),
            damaged: found.damaged.clone(),
            reserve_bytes: 0,
            events: Arc::new(Events::new(&self.options.listener, &self.env.clock)),
            time: Arc::clone(&self.time),
            counters: Arc::clone(&self.counters),
        });
        let replay = Replay { state: &engine.state, flusher: &engine.flusher, memtable_bytes: self.plan.memtable };
        replay.replay(&found)?;
        let last_log_bytes = reading.spans.last().and_then(|span| span.to).unwrap_or(0);
        let Reading { manifest, state, .. } = reading;
        at.place = Some(ReadPlace { manifest, state, trees, logs, last_log_bytes, below });
        (at.next, at.visible, at.newest) = (found.next, visible, Arc::downgrade(&engine));
        Ok(engine)
    }

    /// Reads everything. It has to go on from the `last` state: files of another history may have the same numbers, and
    /// blocks of the ones before are cached.
    fn read_all(&self, last: Option<&(u64, ManifestPlace)>) -> Result<Read> {
        let not_found = || Error::NotFound { path: self.dir.path().into() };
        let (manifest, state) = ManifestPlace::read_all(&self.dir)?.ok_or_else(not_found)?;
        if let Some((database, before)) = last
            && (state.database_id != *database || !manifest.goes_on_from(before))
            && !planted!("take_another_history")
        {
            let expected = format!("what follows {before} of database {database:016x}");
            return Err(self.another(expected, &format!("{manifest} of database {:016x}", state.database_id)));
        }
        let (spans, next) = (self.spans(&state, None)?, state.log_floor.first);
        let trees = self.open_trees(&state)?;
        Ok((Reading { manifest, state, spans, next }, trees, Vec::new()))
    }

    /// Reads what was written since; `None` if everything must be read again.
    fn read_on(&self, next: SeqNo, place: ReadPlace) -> Result<Option<Read>> {
        let ReadPlace { manifest, mut state, trees, mut logs, .. } = place;
        let Some((manifest, touched)) = manifest.read_on(&self.dir, &mut state)? else { return Ok(None) };
        logs.retain(|log| log.id >= state.log_floor.log);
        let last = logs.last().copied();
        let spans = self.spans(&state, last)?;
        if last.is_some_and(|last| spans.first().is_none_or(|first| first.id != last.id)) {
            return Ok(None);
        }
        // The log that was read last may be deleted already: everything in it is in tables.
        let next = if last.is_some() { next } else { state.log_floor.first };
        let Some(trees) = self.next_trees(&state, &touched, &trees)? else { return Ok(None) };
        Ok(Some((Reading { manifest, state, spans, next }, trees, logs)))
    }

    /// The logs from where reading goes on, each up to where it ends now. All that was written before is seen from now
    /// on.
    fn spans(&self, state: &ManifestState, last: Option<LogFile>) -> Result<Vec<LogSpan>> {
        let files = Files::list(&self.dir)?;
        files.check_numbers(&self.dir, state.next_file)?;
        state.check_logs(&self.dir, &files)?;
        let first = last.map_or(state.log_floor.log, |log| log.id);
        self.catch_up.catch_up()?;
        let ids: Vec<FileId> = files.logs.iter().copied().filter(|&id| id >= first).collect();
        let spans = log_spans(&self.dir, &ids, last)?;
        // Values that those commits point at were written before.
        self.catch_up.catch_up()?;
        Ok(spans)
    }

    /// Only other files in the directory, or a system that has lost what it reported as written, lead here.
    fn older(&self, found: SeqNo, seen: SeqNo) -> Error {
        let expected = format!("commits up to {}, which were there before", seen - 1);
        self.another(expected, &format!("commits up to {}", found - 1))
    }

    fn another(&self, expected: String, found: &str) -> Error {
        let found = format!("{found}: close this database and open it again");
        Corruption::new(0, "database directory", expected, found).of(self.dir.path())
    }
}

/// These logs, oldest first, each up to where it ends now. The first one is read on after `last`, if it is that one.
///
/// # Errors
/// I/O errors.
pub(crate) fn log_spans(dir: &Dir, logs: &[FileId], last: Option<LogFile>) -> Result<Vec<LogSpan>> {
    let span = |&id: &FileId| {
        let from = last.filter(|log| log.id == id).map_or(0, |log| log.bytes);
        // It is pinned: somebody else has removed it.
        let gone = || Corruption::new(0, "log", "a file that was there a moment ago", "no such file");
        let to = dir.len(&names::log(id))?.ok_or_else(|| gone().of(dir.file(&names::log(id))))?;
        Ok(LogSpan { id, from, to: Some(to) })
    };
    logs.iter().map(span).collect()
}

/// The logs that count, each up to its last commit that was replayed.
fn replayed(mut logs: Vec<LogFile>, spans: &[LogSpan], found: &Logs) -> Vec<LogFile> {
    for span in spans.iter().filter(|span| span.from == 0) {
        let header = span.to.unwrap_or(0).min(FILE_HEADER_BYTES as u64);
        logs.retain(|log| log.id != span.id);
        logs.push(LogFile { id: span.id, bytes: header, first: found.next, has_changes: false });
    }
    // What comes next after a log without commits is the first commit of the log that follows.
    let mut next = found.next;
    for log in logs.iter_mut().rev() {
        if let Some(found) = found.logs.iter().find(|found| found.id == log.id) {
            log.bytes = found.bytes;
            if found.from == FILE_HEADER_BYTES as u64 {
                log.first = found.first;
            }
        } else if log.bytes <= FILE_HEADER_BYTES as u64 && !planted!("empty_logs_begin_last") {
            log.first = next;
        }
        next = log.first;
    }
    logs
}

/// Tries again while a writer may be changing what is read.
///
/// # Errors
/// The last one.
pub(crate) fn patiently<T>(env: &Env, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    for pause in PAUSES_MS {
        match attempt() {
            Err(error) if may_pass(&error) => {
                if pause > 0 {
                    env.clock.sleep(Duration::from_millis(pause));
                }
            }
            other => return other,
        }
    }
    attempt()
}

fn may_pass(error: &Error) -> bool {
    match error {
        Error::Corruption { .. } => true,
        Error::Io { source, .. } => matches!(source.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof),
        _ => false,
    }
}
