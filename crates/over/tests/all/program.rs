//! Random programs on a store, and the model of what it must have: the state after each commit.

use std::{
    collections::BTreeMap,
    ops::RangeFull,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bifold_io::ManualClock;
use bifold_io::{Clock, Env, FileSystem, memory::MemoryFs, threads::SystemThreads};
use bifold_over::{Batch, ForeignIndex, Options, Placement, Result, Snapshot, Store, ValueOptions, Workers};

use crate::random::Random;

pub const DIR: &str = "/over";
pub type State = BTreeMap<Vec<u8>, Vec<u8>>;

/// An environment with these files.
pub fn env(fs: Arc<dyn FileSystem>) -> Env {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::default());
    Env { fs, clock, threads: Arc::new(SystemThreads) }
}

/// Options under which a few values fill a file, a layer, a log.
pub fn small(placement: Placement, seed: u64) -> Options {
    let mut random = Random::new(seed ^ 0x5eed);
    let mut values = ValueOptions {
        separate_from_bytes: Some(60),
        space_target: 1.3,
        file_bytes: 2 << 10,
        ..ValueOptions::default()
    };
    values.hashkv.group_bytes = 2 << 10;
    values.hashkv.groups_max = 16;
    let layer_bytes = 1 << (10 + random.below(4));
    let log_bytes = 1 << (11 + random.below(4));
    Options { placement, values, layer_bytes, log_bytes, filter_bytes: 64 << 10, workers: Workers::Caller }
}

/// What a store may have: one state for each commit.
#[derive(Clone, Debug)]
pub struct Model {
    states: Vec<State>,
    /// Commits that have returned.
    pub returned: usize,
    /// Commits that a sync has covered.
    pub durable: usize,
}

impl Model {
    pub fn new() -> Self {
        Self { states: vec![State::new()], returned: 0, durable: 0 }
    }

    pub fn now(&self) -> &State {
        &self.states[self.returned]
    }

    /// A commit begins, after which the state is this one.
    fn begin(&mut self, state: State) {
        self.states.truncate(self.returned + 1);
        self.states.push(state);
    }

    /// Which state `found` is, of those that a crash may leave: from `least` commits on.
    pub fn position(&self, found: &State, least: usize) -> Option<usize> {
        (least..self.states.len()).rev().find(|&at| self.states[at] == *found)
    }

    /// The same states, of which at least so many commits must be there after any crash.
    pub fn with_least(&self, least: usize) -> Self {
        Self { states: self.states.clone(), returned: least, durable: least }
    }

    /// The model of a store that has this state, all of it durable.
    pub fn at(&self, position: usize) -> Self {
        Self { states: vec![self.states[position].clone()], returned: 0, durable: 0 }
    }
}

/// A model that hooks may look at while the program runs.
#[derive(Clone)]
pub struct Shared(Arc<Mutex<Model>>);

impl Shared {
    pub fn new(model: Model) -> Self {
        Self(Arc::new(Mutex::new(model)))
    }

    pub fn hold(&self) -> MutexGuard<'_, Model> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Requires that two states are the same; says which keys differ, and not all values.
pub fn assert_same(found: &State, expected: &State, what: &str) {
    let keys = found.keys().chain(expected.keys());
    let differ: std::collections::BTreeSet<_> = keys.filter(|key| found.get(*key) != expected.get(*key)).collect();
    let differ: Vec<String> = differ.into_iter().map(|key| key.escape_ascii().to_string()).collect();
    assert!(differ.is_empty(), "{what}: the values of {differ:?} are not as they should be");
}

/// Everything in a store, by a scan; each key is also got.
pub fn contents<I: ForeignIndex>(store: &Store<I>) -> Result<State> {
    let snapshot = store.snapshot()?;
    let found = contents_of(&snapshot)?;
    for key in 0..KEYS {
        let key = key_of(key);
        let got = store.get(&key)?.map(|value| value.to_vec());
        assert!(got.as_ref() == found.get(&key), "get and scan differ at {}", key.escape_ascii());
    }
    Ok(found)
}

pub fn contents_of<I: ForeignIndex>(snapshot: &Snapshot<'_, I>) -> Result<State> {
    let entries = snapshot.scan::<&[u8]>(RangeFull)?;
    let mut found = State::new();
    let mut before: Option<Vec<u8>> = None;
    for entry in entries {
        let (key, value) = entry?;
        assert!(before.as_deref() < Some(&*key), "keys out of order");
        before = Some(key.to_vec());
        found.insert(key.into(), value.to_vec());
    }
    Ok(found)
}

pub const KEYS: u64 = 28;

/// Some keys begin with zero bytes.
pub fn key_of(number: u64) -> Vec<u8> {
    if number.is_multiple_of(7) { vec![0, number as u8] } else { format!("key {number:03}").into_bytes() }
}

fn value_of(random: &mut Random) -> Vec<u8> {
    let len = match random.below(8) {
        0 => random.below(4),
        1 | 2 => random.below(60),
        7 => 600 + random.below(900),
        _ => 60 + random.below(300),
    };
    let byte = random.below(256) as u8;
    (0..len).map(|at| byte.wrapping_add(at as u8)).collect()
}

/// A random program: commits, syncs, GC, checkpoints, snapshots, scans.
pub struct Program {
    random: Random,
    checkpoints: bool,
    /// For messages.
    name: String,
    pub model: Shared,
}

impl Program {
    pub fn new(seed: u64, model: Shared) -> Self {
        Self { random: Random::new(seed), checkpoints: true, name: format!("program {seed}"), model }
    }

    /// The same program under another name.
    pub fn named(self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self }
    }

    /// One that never asks for a checkpoint.
    #[cfg(feature = "fjall")]
    pub fn without_checkpoints(seed: u64, model: Shared) -> Self {
        Self { checkpoints: false, ..Self::new(seed, model) }
    }

    /// Runs `steps` steps.
    pub fn run<I: ForeignIndex>(&mut self, store: &Store<I>, steps: usize) -> Result<()> {
        let mut snapshots: Vec<(Snapshot<'_, I>, State)> = Vec::new();
        for _ in 0..steps {
            match self.random.below(40) {
                0 => store.gc()?,
                1 if self.checkpoints => store.checkpoint()?,
                2..=4 => self.sync(store)?,
                5 => store.wait_idle()?,
                6 => snapshots.push((store.snapshot()?, self.model.hold().now().clone())),
                7 | 8 if !snapshots.is_empty() => {
                    let at = self.random.below(snapshots.len() as u64) as usize;
                    let (snapshot, state) = snapshots.swap_remove(at);
                    assert_same(&contents_of(&snapshot)?, &state, &format!("a snapshot of {}", self.name));
                }
                9 => assert_same(&contents(store)?, self.model.hold().now(), &format!("the store of {}", self.name)),
                _ => self.commit(store)?,
            }
        }
        for (snapshot, state) in snapshots {
            assert_same(&contents_of(&snapshot)?, &state, &format!("a snapshot of {}", self.name));
        }
        assert_same(&contents(store)?, self.model.hold().now(), &format!("the store of {}", self.name));
        Ok(())
    }

    fn sync<I: ForeignIndex>(&mut self, store: &Store<I>) -> Result<()> {
        let returned = self.model.hold().returned;
        store.sync()?;
        self.model.hold().durable = returned;
        Ok(())
    }

    fn commit<I: ForeignIndex>(&mut self, store: &Store<I>) -> Result<()> {
        let mut state = self.model.hold().now().clone();
        let mut batch = Batch::new();
        let count = if self.random.below(5) == 0 { 1 + self.random.below(5) } else { 1 };
        for _ in 0..count {
            // Some keys are hot.
            let key = key_of(if self.random.below(2) == 0 { self.random.below(6) } else { self.random.below(KEYS) });
            if self.random.below(6) == 0 {
                batch.delete(&key)?;
                state.remove(&key);
            } else {
                let value = value_of(&mut self.random);
                batch.put(&key, &value)?;
                state.insert(key, value);
            }
        }
        self.model.hold().begin(state);
        store.write(&batch)?;
        self.model.hold().returned += 1;
        Ok(())
    }
}

/// Every value file has been named or is used, and every log is needed: none is left behind.
pub fn no_orphans<I: ForeignIndex>(fs: &MemoryFs, store: &Store<I>) {
    let files: Vec<_> = fs.files().into_iter().filter(|path| path.starts_with(Path::new(DIR))).collect();
    let ending = |end: &'static str| files.iter().filter(move |path| path.extension().is_some_and(|is| is == end));
    let stats = store.stats();
    assert_eq!(ending("val").count() as u64, stats.value_files, "value files that nobody knows");
    let log_bytes = ending("log").map(|path| fs.read(path).map_or(0, |bytes| bytes.len() as u64)).sum::<u64>();
    // The last appends may be in slots of this file.
    let has_slots = files.iter().any(|path| path.ends_with("APPENDS"));
    let is_known = log_bytes == stats.log_bytes || has_slots && log_bytes < stats.log_bytes;
    assert!(is_known, "logs that nobody knows: {log_bytes} bytes, not {}", stats.log_bytes);
}
