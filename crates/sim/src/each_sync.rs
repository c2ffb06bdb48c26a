//! Every sync in turn, of every kind of file, in every placement, while real threads create and drop keyspaces: the
//! sync fails, or power is lost during it. Flushes of several keyspaces run at once, and several threads write one of
//! them. Every commit reported as durable must be durable, and so must each creation and each drop of a keyspace.
//!
//! ```text
//! writers ── Sync commits to two keyspaces ──┐
//! maker ──── creates a keyspace, a durable   ├─▶ sync number n of one kind ─▶ EIO, and later a power loss
//!            commit, ingest or large value,  │                             └▶ or an image of a power loss
//!            drops every other one           │
//! keeper ─── flush, compact ─────────────────┘
//! ```

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
};

use bifold::{Batch, Db, Durability, Keyspace, KeyspaceOptions, Options, PlacementKind, Workers};
use bifold_io::{
    faulty::{Call, FaultKind, FaultyFs},
    memory::{Fate, MemoryFs},
};

use crate::{
    commits::{Commits, written_by},
    env, judge,
    model::{CommitNo, Contents, Model, NAMES},
    options::OptionSet,
    random::Random,
    read::{self, Trouble},
    report::{Report, guarded},
};

const WRITERS: u8 = 2;

/// Commits of a writer, and keyspaces created: enough for a dozen syncs of each kind.
const COMMITS_MAX: CommitNo = 60;
const MADE_MAX: u64 = 12;

/// The sync is one of the first `DOOMED_MAX` of its kind. The manifest and the directory are synced less often than
/// logs.
const DOOMED_MAX: u64 = 16;

/// Bytes of a value that has a file of its own.
const LARGE_BYTES: usize = 66_000;

const PLACEMENTS: [PlacementKind; 7] = PlacementKind::ALL;

/// What is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SyncKind {
    Log,
    Values,
    Table,
    Manifest,
    Directory,
}

const KINDS: [SyncKind; 5] =
    [SyncKind::Log, SyncKind::Values, SyncKind::Table, SyncKind::Manifest, SyncKind::Directory];

impl SyncKind {
    fn of(call: &Call<'_>) -> Option<Self> {
        match (call.op, call.path.extension().and_then(|e| e.to_str())) {
            ("sync directory", _) => Some(Self::Directory),
            ("sync", Some("log")) => Some(Self::Log),
            ("sync", Some("val")) => Some(Self::Values),
            ("sync", Some("tbl")) => Some(Self::Table),
            // If it fails, its file is deleted, and nothing else has happened.
            ("sync", Some("large")) => None,
            ("sync", _) => Some(Self::Manifest),
            _ => None,
        }
    }

    fn failed(self) -> &'static str {
        match self {
            Self::Log => "syncs of logs failed",
            Self::Values => "syncs of value files failed",
            Self::Table => "syncs of tables failed",
            Self::Manifest => "syncs of the manifest failed",
            Self::Directory => "syncs of the directory failed",
        }
    }

    fn lost(self) -> &'static str {
        match self {
            Self::Log => "power losses at syncs of logs",
            Self::Values => "power losses at syncs of value files",
            Self::Table => "power losses at syncs of tables",
            Self::Manifest => "power losses at syncs of the manifest",
            Self::Directory => "power losses at syncs of the directory",
        }
    }
}

/// What was acknowledged, and which drops were begun.
#[derive(Clone, Debug, Default)]
struct Progress {
    acked: [CommitNo; WRITERS as usize],
    /// How far each keyspace has come that was created.
    made: BTreeMap<String, MadeState>,
}

/// How far a keyspace has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum MadeState {
    /// Its creation was acknowledged.
    Created,
    /// And its commit.
    Filled,
    /// Its drop was begun.
    Dropping,
    /// And acknowledged.
    Dropped,
}

/// A power loss: what was acknowledged before it, what was begun after it, and the files.
type Picture = (Progress, Progress, MemoryFs);

struct SyncRun {
    db: Db,
    trees: [Keyspace; 2],
    options: KeyspaceOptions,
    seed: u64,
    progress: Arc<Mutex<Progress>>,
    over: Arc<AtomicBool>,
}

fn hold<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fails the sync that `seed` selects, or loses power during it.
#[must_use]
pub fn run(seed: u64) -> Report {
    let mut report = Report::default();
    if let Err(trouble) = guarded(|| hit_one(seed, &mut report)) {
        report.fail(format!("each_sync --seed {seed}"), &trouble);
    }
    report
}

fn options(seed: u64) -> Options {
    let set = OptionSet::new(seed, 0, Durability::Sync);
    let placement = PLACEMENTS[(seed % PLACEMENTS.len() as u64) as usize];
    // Tables so small that a memtable becomes several, which several threads write.
    let keyspace = KeyspaceOptions { placement, table_bytes: 1024, ..set.keyspaces[0].clone() };
    Options { workers: Workers::Threads(2 + (seed % 3) as u32), memtable_bytes: 16 << 10, keyspace, ..set.database }
}

fn hit_one(seed: u64, report: &mut Report) -> Result<(), Trouble> {
    let kind = KINDS[(seed / PLACEMENTS.len() as u64) as usize % KINDS.len()];
    let mut random = Random::new(seed, "each sync");
    let (fails, doomed) = (random.chance(50), random.within(1, DOOMED_MAX));
    let memory = MemoryFs::default();
    let faulty = FaultyFs::over_memory(memory.clone());
    let options = options(seed);
    let db = Db::open_in(env::threaded(Arc::new(faulty.clone())), env::DIR, options.clone())?;
    let trees = [db.default_keyspace().clone(), db.keyspace(NAMES[1], options.keyspace.clone())?];
    let (progress, over) = (Arc::<Mutex<Progress>>::default(), Arc::new(AtomicBool::new(false)));
    let run = SyncRun { db, trees, options: options.keyspace.clone(), seed, progress, over };
    let picture = Arc::<Mutex<Option<Picture>>>::default();
    let (progress, over, taken, below) =
        (Arc::clone(&run.progress), Arc::clone(&run.over), Arc::clone(&picture), memory.clone());
    let syncs = AtomicU64::new(0);
    faulty.decide_by(Box::new(move |call| {
        if SyncKind::of(call) != Some(kind) || syncs.fetch_add(1, SeqCst) + 1 != doomed {
            return None;
        }
        if fails {
            return Some(FaultKind::EIO);
        }
        let before = hold(&progress).clone();
        let lost = below.power_loss(Fate::DropUnsynced);
        *hold(&taken) = Some((before, hold(&progress).clone(), lost));
        over.store(true, SeqCst);
        None
    }));
    run.live();
    let flushes = run.db.stats().flushes;
    report.count("runs with flushes at once", u64::from(flushes.at_once_max > 1));
    report.count("ranges of flushes written by other threads", flushes.ranges_helped);
    if let Some((before, after, lost)) = hold(&picture).take() {
        report.count(kind.lost(), 1);
        drop(run);
        return judge(seed, &options, (before, after, lost));
    }
    if !faulty.injected().is_empty() {
        report.count(kind.failed(), 1);
        if run.db.stats().poisoned.is_none() {
            return Err(Trouble::wrong(format!("{kind:?}: a sync failed but the database accepts writes")));
        }
    }
    let progress = hold(&run.progress).clone();
    let lost = memory.power_loss(Fate::DropUnsynced);
    drop(run);
    judge(seed, &options, (progress.clone(), progress, lost))
}

impl SyncRun {
    fn live(&self) {
        thread::scope(|scope| {
            let mut threads: Vec<_> = (0..WRITERS).map(|w| scope.spawn(move || self.write(w))).collect();
            threads.push(scope.spawn(|| self.make()));
            threads.push(scope.spawn(|| self.maintain()));
            // A panic of the database poisons it. What was acknowledged before must be true all the same.
            threads.into_iter().for_each(|thread| drop(thread.join()));
        });
    }

    fn is_over(&self) -> bool {
        self.over.load(SeqCst)
    }

    fn write(&self, writer: u8) {
        let commits = Commits::batches_of(self.seed);
        for n in 1..=COMMITS_MAX {
            if self.is_over() || commits.commit((&self.db, &self.trees), (writer, n), Durability::Sync).is_err() {
                return;
            }
            hold(&self.progress).acked[writer as usize] = n;
        }
    }

    /// Creates keyspaces; about every other one is dropped.
    fn make(&self) {
        let mut random = Random::new(self.seed, "made");
        for number in 0..MADE_MAX {
            let name = format!("made{number:02}");
            let note = |state| {
                hold(&self.progress).made.insert(name.clone(), state);
            };
            let Ok(made) = self.db.keyspace(&name, self.options.clone()) else { return };
            note(MadeState::Created);
            if self.is_over() || self.fill(&made, number).is_err() {
                return;
            }
            note(MadeState::Filled);
            if random.chance(50) {
                note(MadeState::Dropping);
                if self.db.drop_keyspace(&name).is_err() {
                    return;
                }
                note(MadeState::Dropped);
            }
        }
    }

    /// The durable commit of a keyspace: of a batch, of an ingest, or of a large value.
    fn fill(&self, made: &Keyspace, number: u64) -> bifold::Result<()> {
        match number % 3 {
            0 => {
                let mut batch = Batch::new();
                batch.put(made, "key", value_of(number))?;
                self.db.commit_with(batch, Durability::Sync)
            }
            1 => {
                let mut ingest = made.ingest()?;
                ingest.put("key", value_of(number))?;
                ingest.finish().map(drop)
            }
            _ => made.put_reader_with("key", &value_of(number)[..], Durability::Sync),
        }
    }

    fn maintain(&self) {
        let mut random = Random::new(self.seed, "keeper");
        for _ in 0..COMMITS_MAX {
            let kept = match random.below(8) {
                0 => self.db.compact(),
                1..4 => self.db.flush(),
                _ => {
                    thread::yield_now();
                    Ok(())
                }
            };
            if kept.is_err() || self.is_over() {
                return;
            }
        }
    }
}

fn value_of(number: u64) -> Vec<u8> {
    vec![number as u8; if number % 3 == 2 { LARGE_BYTES } else { 3000 }]
}

/// Requires everything acknowledged before the power loss, and nothing that was not begun by then.
fn judge(seed: u64, options: &Options, (before, after, lost): Picture) -> Result<(), Trouble> {
    let options = Options { workers: Workers::Caller, ..options.clone() };
    let db = Db::open_in(env::simulated(&lost), env::DIR, options)?;
    judge::no_orphans(&lost, Path::new(env::DIR), &db)?;
    let mut contents = read::contents(&db)?;
    judge_made(&mut contents, &before, &after)?;
    let commits = Commits::batches_of(seed);
    for (writer, &acked) in before.acked.iter().enumerate() {
        let begun = after.acked[writer] + 1;
        let mut model = Model::default();
        model.begin_create(1);
        model.acknowledge_change();
        for n in 1..=begun {
            model.begin(&commits.changes(writer as u8, n));
        }
        model
            .check_between(&written_by(&contents, writer as u8), acked..=begun)
            .map_err(|m| Trouble::wrong(format!("writer {writer}, acknowledged up to commit {acked}: {m}")))?;
    }
    db.close()?;
    judge::verify_is_clean(&lost)
}

/// Checks the keyspaces created meanwhile and removes them from the contents.
fn judge_made(contents: &mut Contents, before: &Progress, after: &Progress) -> Result<(), Trouble> {
    for (name, &state) in &before.made {
        let may_be_gone = after.made.get(name).is_some_and(|&later| later >= MadeState::Dropping);
        match contents.get(name) {
            Some(_) if state == MadeState::Dropped => {
                return Err(Trouble::wrong(format!("keyspace `{name}` is back, and its drop was acknowledged")));
            }
            None if !may_be_gone => {
                return Err(Trouble::wrong(format!("keyspace `{name}` is lost, and its creation was acknowledged")));
            }
            Some(entries) if state == MadeState::Filled && !may_be_gone && entries.is_empty() => {
                return Err(Trouble::wrong(format!("the acknowledged commit to keyspace `{name}` is lost")));
            }
            _ => {}
        }
    }
    let made: Vec<String> = contents.keys().filter(|name| name.starts_with("made")).cloned().collect();
    for name in made {
        let entries = contents.remove(&name).unwrap_or_default();
        let number = name.trim_start_matches("made").parse().unwrap_or(u64::MAX);
        if entries.iter().any(|(key, value)| **key != *b"key" || **value != *value_of(number)) {
            return Err(Trouble::wrong(format!("keyspace `{name}` holds something that was not put there")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bifold::Value;

    use super::{
        MadeState::{Created, Dropped, Dropping, Filled},
        *,
    };

    /// Judges keyspace number 0, which has come so far before and after a power loss, and has this value then.
    fn judged(before: MadeState, after: MadeState, found: Option<Option<Vec<u8>>>) -> bool {
        let name = "made00".to_owned();
        let progress = |state| Progress { made: BTreeMap::from([(name.clone(), state)]), ..Progress::default() };
        let entries = |value: Option<Vec<u8>>| value.map(|value| (Box::<[u8]>::from(&b"key"[..]), Value::from(value)));
        let mut contents: Contents =
            found.map(|value| (name.clone(), entries(value).into_iter().collect())).into_iter().collect();
        judge_made(&mut contents, &progress(before), &progress(after)).is_ok()
    }

    #[test]
    fn creations_and_drops_that_were_acknowledged_are_there() {
        let (gone, empty, whole) = (None, Some(None), Some(Some(value_of(0))));
        for (before, after, may_be) in [
            (Created, Created, [false, true, true]),
            (Created, Dropping, [true, true, true]),
            (Filled, Filled, [false, false, true]),
            (Filled, Dropped, [true, true, true]),
            (Dropping, Dropping, [true, true, true]),
            (Dropped, Dropped, [true, false, false]),
        ] {
            let judged = [&gone, &empty, &whole].map(|found| judged(before, after, found.clone()));
            assert_eq!(judged, may_be, "{before:?}, then {after:?}: gone, empty, whole");
        }
        assert!(!judged(Filled, Filled, Some(Some(value_of(1)))), "what nobody has put");
    }
}
