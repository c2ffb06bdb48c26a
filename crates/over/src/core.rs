//! The parts of an open store. Lock order: GC, manifest, sync, commit, layers; snapshots last.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bifold_contract::{Edit, FileId, KeyspaceEdit, Result, SeqNo, ValueEdit, planted};
use bifold_format::names;
use bifold_io::{Dir, fs::FileLock};
use bifold_values::{placement::SpacePressure, placements::Settings, store::ValueStore};

use crate::{
    health::Health,
    index::{Changes, ForeignIndex, Mark},
    layers::Layers,
    log::{KEYSPACE, Log, RunningSync},
    manifest::Manifest,
    options::Options,
    stats::Counters,
};

/// So many entries go to the index at once.
const CHANGES_AT_ONCE: usize = 8192;

/// Taking a lock whatever happened to earlier holders.
pub(crate) fn hold<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An open store.
pub(crate) struct Core<I> {
    pub dir: Dir,
    pub index: I,
    pub options: Options,
    pub settings: Settings,
    pub values: ValueStore,
    pub numbers: Arc<Numbers>,
    pub health: Health,
    /// Around it: one GC job at a time.
    pub gc: Mutex<()>,
    /// Around it: what goes to the index, what the manifest records.
    pub manifest: Mutex<Manifest>,
    /// Up to where everything is durable. Around it: one sync at a time.
    pub durable: Mutex<SeqNo>,
    /// The commit lock.
    pub log: Mutex<Log>,
    pub layers: Layers,
    /// The last commit that readers see. Written under the commit lock.
    pub visible: AtomicU64,
    pub snapshots: Snapshots,
    pub counters: Counters,
    pub signal: Signal,
    /// It is held as long as the store is open.
    pub _lock: Box<dyn FileLock>,
}

/// How much must be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upto {
    /// All commits up to this one.
    Commit(SeqNo),
    /// Everything in the files, also what belongs to no commit.
    Everything,
}

impl<I: ForeignIndex> Core<I> {
    /// Makes everything durable up to there: values, then logs. Threads that wait for one sync share the next.
    pub fn sync(&self, upto: Upto) -> Result<SeqNo> {
        let mut durable = hold(&self.durable);
        if matches!(upto, Upto::Commit(seqno) if seqno <= *durable) {
            return Ok(*durable);
        }
        self.health.well()?;
        let sync = RunningSync::begin(&hold(&self.log), &self.values);
        sync.run(&self.dir, &self.values, &self.health)?;
        *durable = self.health.watch(sync.end(&mut hold(&self.log)))?;
        Ok(*durable)
    }

    /// Commits go to a new layer and a new log, if the newest layer has anything.
    pub fn seal(&self) -> Result<()> {
        let mut log = hold(&self.log);
        self.seal_held(&mut log)
    }

    /// The same, by who holds the commit lock.
    pub fn seal_held(&self, log: &mut Log) -> Result<()> {
        if self.layers.newest().last() == 0 {
            return Ok(());
        }
        let id = self.numbers.take();
        self.health.watch(log.rotate(id))?;
        self.layers.seal(id);
        Ok(())
    }

    /// Writes the oldest sealed layer to the index. Returns whether there was one.
    pub fn drain(&self, manifest: &mut Manifest) -> Result<bool> {
        let Some(layer) = self.layers.oldest_sealed() else { return Ok(false) };
        self.health.well()?;
        if !planted!("over_index_ahead") {
            // The index never has what our files may lose.
            self.sync(Upto::Commit(layer.last()))?;
        }
        let mut changes = Changes::default();
        let write = |changes: &mut Changes| {
            self.counters.drained(changes);
            self.index.write(changes).map(|()| *changes = Changes::default())
        };
        let written = layer.each_newest(|key, entry| {
            changes.put(key, entry);
            if changes.len() >= CHANGES_AT_ONCE { write(&mut changes) } else { Ok(()) }
        });
        // The mark last: without the entries before it, it would claim too much.
        changes.mark(Mark { store: manifest.store(), last: layer.last() });
        self.health.watch(written.and_then(|()| write(&mut changes)))?;
        manifest.applied = manifest.applied.max(layer.last());
        self.layers.remove_oldest();
        self.signal.notify();
        Ok(true)
    }

    /// Syncs the index, and deletes the logs that nobody needs any more.
    pub fn checkpoint(&self, manifest: &mut Manifest) -> Result<()> {
        self.health.well()?;
        let applied = manifest.applied;
        if !planted!("over_checkpoint_without_sync") {
            self.health.watch(self.index.sync())?;
        }
        let flushed = KeyspaceEdit::Flushed { id: KEYSPACE, seqno: applied };
        // Only drains move it, and none runs now.
        let floor = self.layers.first_log();
        let log_floor = Some(hold(&self.log).floor_at(floor));
        let values = self.values.pending_edit(applied);
        manifest.flushed = applied;
        self.record(manifest, Edit { keyspaces: vec![flushed], log_floor, values, ..Edit::default() }, || {})?;
        let forgotten = hold(&self.log).forget_below(floor);
        self.health.watch(forgotten.iter().try_for_each(|&id| self.dir.remove(&names::log(id))))?;
        self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Records this change of value files, if it is one, and deletes those that it removes. `in_force` is called in
    /// between.
    pub fn install(&self, change: impl FnOnce() -> ValueEdit, in_force: impl FnOnce()) -> Result<()> {
        let mut manifest = hold(&self.manifest);
        self.health.well()?;
        let values = change();
        if values.is_empty() {
            return Ok(());
        }
        self.record(&mut manifest, Edit { values, ..Edit::default() }, in_force)
    }

    /// Makes an edit durable, with the value files that commits and GC have begun, and then does what it says.
    fn record(&self, manifest: &mut Manifest, mut edit: Edit, in_force: impl FnOnce()) -> Result<()> {
        let begun = {
            // Under the commit lock: each file that a commit has begun is there, or its commit is a later one.
            let _commits_wait = hold(&self.log);
            edit.next_file = Some(self.numbers.next());
            self.values.unrecorded()
        };
        self.health.watch(self.values.make_durable(&begun).and_then(|()| self.dir.sync()))?;
        let removed = edit.values.removed.clone();
        let (unnamed, named): (Vec<_>, Vec<_>) = begun.into_iter().partition(|file| removed.contains(&file.id));
        edit.values.added.extend(named);
        // The manifest has never named these.
        edit.values.removed.retain(|id| unnamed.iter().all(|file| file.id != *id));
        self.health.watch(manifest.append(&edit))?;
        edit.values.removed = removed;
        in_force();
        self.values.installed(&edit.values);
        self.health.watch(manifest.keep_short(self.numbers.next(), || self.values.recorded()))
    }

    /// How tight space is. Nobody knows what a foreign index takes, so the target is for value files alone.
    pub fn pressure(&self) -> SpacePressure {
        SpacePressure {
            index_bytes: 0,
            inline_bytes: 0,
            being_removed_bytes: self.values.being_removed_bytes(),
            entries_above: 0.0,
            overwritten: 0.0,
            target: self.settings.now().space_target,
            copies_percent: self.values.profile().copies_percent,
            oldest_snapshot: self.snapshots.oldest(),
            all_before: None,
            boundaries: Arc::default(),
        }
    }
}

/// Hands out numbers of files.
#[derive(Debug)]
pub(crate) struct Numbers(AtomicU64);

impl Numbers {
    pub fn from(next: FileId) -> Self {
        Self(AtomicU64::new(next))
    }

    pub fn take(&self) -> FileId {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    pub fn next(&self) -> FileId {
        self.0.load(Ordering::Relaxed)
    }

    pub fn raise_above(&self, last: FileId) {
        self.0.fetch_max(last + 1, Ordering::Relaxed);
    }
}

/// The open snapshots, by the last commit that each sees. They are opened under the commit lock.
#[derive(Debug, Default)]
pub(crate) struct Snapshots(Mutex<BTreeMap<SeqNo, usize>>);

impl Snapshots {
    pub fn open(&self, seqno: SeqNo) {
        if !planted!("over_snapshots_hold_nothing") {
            *hold(&self.0).entry(seqno).or_default() += 1;
        }
    }

    pub fn close(&self, seqno: SeqNo) {
        let mut open = hold(&self.0);
        if let Some(count) = open.get_mut(&seqno) {
            *count -= 1;
            if *count == 0 {
                open.remove(&seqno);
            }
        }
    }

    pub fn oldest(&self) -> Option<SeqNo> {
        hold(&self.0).keys().next().copied()
    }

    pub fn newest(&self) -> Option<SeqNo> {
        hold(&self.0).keys().next_back().copied()
    }
}

/// Wakes the worker when there may be work, and writers when some of it is done.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    calls: Mutex<u64>,
    changed: Condvar,
    stopped: AtomicBool,
}

impl Signal {
    /// Who waits looks again after this time, whatever happens.
    pub const PATIENCE: Duration = Duration::from_millis(500);

    /// How often it was notified.
    pub fn calls(&self) -> u64 {
        *hold(&self.calls)
    }

    pub fn notify(&self) {
        *hold(&self.calls) += 1;
        self.changed.notify_all();
    }

    /// Waits until it has been notified more often than `seen`, or for a while.
    pub fn wait(&self, seen: u64, patience: Duration) {
        let calls = hold(&self.calls);
        let may_wait = |calls: &mut u64| *calls == seen && !self.is_stopped();
        drop(self.changed.wait_timeout_while(calls, patience, may_wait));
    }

    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.notify();
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }
}
