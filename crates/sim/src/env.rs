//! The simulated surroundings of a database: files in memory, a clock that only moves when looked at, no threads.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use bifold_io::{
    Clock, Env, FileSystem,
    memory::{Fate, MemoryFs},
    threads::Threads,
};

use crate::random::Random;

/// Where simulated databases are.
pub const DIR: &str = "/sim/db";

/// A database's files, by path.
pub type Files = Vec<(PathBuf, Vec<u8>)>;

/// An empty simulated disk. For every other seed, on the whole, small appends go through an append region, as they do
/// on a real disk; a copy of it, as a crash leaves it, does the same.
#[must_use]
pub fn disk(seed: u64) -> MemoryFs {
    let fs = MemoryFs::default();
    fs.set_append_region(Random::new(seed, "append region").chance(50));
    fs
}

/// Surroundings with the files of `fs`.
#[must_use]
pub fn simulated(fs: &MemoryFs) -> Env {
    over(Arc::new(fs.clone()))
}

/// Surroundings with the files of any file system.
#[must_use]
pub fn over(fs: Arc<dyn FileSystem>) -> Env {
    Env { fs, clock: Arc::new(StepClock::default()), threads: Arc::new(NoThreads) }
}

/// A clock that moves a microsecond whenever it is looked at, and by the time asked for when it is waited for.
#[derive(Debug, Default)]
pub struct StepClock {
    now_ns: AtomicU64,
    looks: AtomicU64,
    /// 0: as many as one likes.
    looks_max: AtomicU64,
}

impl StepClock {
    /// From now on it may be looked at so often: who looks more often goes in circles, and is stopped by a panic.
    pub fn allow(&self, looks: u64) {
        self.looks_max.store(self.looks.load(Ordering::Relaxed) + looks, Ordering::Relaxed);
    }
}

impl Clock for StepClock {
    fn now(&self) -> Duration {
        let (looks, most) = (self.looks.fetch_add(1, Ordering::Relaxed), self.looks_max.load(Ordering::Relaxed));
        assert!(most == 0 || looks < most, "work goes in circles: the clock was looked at {looks} times");
        Duration::from_nanos(self.now_ns.fetch_add(1000, Ordering::Relaxed))
    }

    fn sleep(&self, time: Duration) {
        self.now_ns.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// Refuses to start threads: with `Workers::Caller` none may be asked for.
#[derive(Debug)]
pub struct NoThreads;

impl Threads for NoThreads {
    fn spawn(&self, name: &str, _work: Box<dyn FnOnce() + Send>) -> bifold::Result<JoinHandle<()>> {
        Err(bifold::Error::invalid("thread", format!("`{name}` was asked for with workers = caller")))
    }
}

/// The files after a power loss that takes all that was not synced.
#[must_use]
pub fn without_unsynced(fs: &MemoryFs) -> MemoryFs {
    fs.power_loss(Fate::DropUnsynced)
}

/// All files of a directory.
///
/// # Errors
/// The file system's.
pub fn files_of(fs: &MemoryFs, dir: &Path) -> bifold::Result<Files> {
    Ok(fs.list(dir)?.into_iter().filter_map(|path| fs.read(&path).map(|bytes| (path, bytes))).collect())
}

/// A file system that holds these files and nothing else, all of them durable.
#[must_use]
pub fn holding(files: &[(PathBuf, Vec<u8>)]) -> MemoryFs {
    let fs = MemoryFs::default();
    files.iter().for_each(|(path, bytes)| fs.write_durable(path, bytes));
    fs
}
