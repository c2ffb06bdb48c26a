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
    clock::SystemClock,
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
    fs.set_append_region(has_append_region(seed));
    fs
}

/// Whether that is so for this seed.
#[must_use]
pub fn has_append_region(seed: u64) -> bool {
    Random::new(seed, "append region").chance(50)
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

/// Surroundings with the files of any file system, and real threads.
#[must_use]
pub fn threaded(fs: Arc<dyn FileSystem>) -> Env {
    Env { fs, clock: Arc::new(CountedClock::default()), ..Env::system() }
}

/// So often may the clock of one database be looked at, which every piece of background work does. The longest run of any test
/// looks a tenth as often. Who looks more often goes in circles, and each round may keep some memory.
pub const LOOKS_MAX: u64 = 2_000_000;

/// How often a clock is looked at, and may be.
#[derive(Debug)]
struct Looks {
    so_far: AtomicU64,
    most: AtomicU64,
}

impl Default for Looks {
    fn default() -> Self {
        Self { so_far: AtomicU64::new(0), most: AtomicU64::new(LOOKS_MAX) }
    }
}

impl Looks {
    /// Stops by a panic what goes in circles: it ends a job of a database as an error does.
    fn count(&self) {
        let (looks, most) = (self.so_far.fetch_add(1, Ordering::Relaxed), self.most.load(Ordering::Relaxed));
        assert!(looks < most, "work goes in circles: the clock was looked at {looks} times");
    }
}

/// A clock that moves a microsecond whenever it is looked at, and by the time asked for when it is waited for.
#[derive(Debug, Default)]
pub struct StepClock {
    now_ns: AtomicU64,
    looks: Looks,
}

impl StepClock {
    /// From now on it may be looked at so often, instead of [`LOOKS_MAX`] times in all.
    pub fn allow(&self, looks: u64) {
        self.looks.most.store(self.looks.so_far.load(Ordering::Relaxed) + looks, Ordering::Relaxed);
    }
}

impl Clock for StepClock {
    fn now(&self) -> Duration {
        self.looks.count();
        Duration::from_nanos(self.now_ns.fetch_add(1000, Ordering::Relaxed))
    }

    fn sleep(&self, time: Duration) {
        self.now_ns.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// The system's clock, looked at as often as a simulated one may be.
#[derive(Debug, Default)]
struct CountedClock {
    clock: SystemClock,
    looks: Looks,
}

impl Clock for CountedClock {
    fn now(&self) -> Duration {
        self.looks.count();
        self.clock.now()
    }

    fn sleep(&self, time: Duration) {
        self.clock.sleep(time);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Background work that calls no file goes round and round for ever without it.
    #[test]
    fn work_that_goes_in_circles_is_stopped_in_all_surroundings() {
        let fs = || Arc::new(MemoryFs::default());
        for env in [simulated(&fs()), over(fs()), threaded(fs())] {
            let circles = crate::report::guarded(|| -> Result<(), crate::read::Trouble> {
                loop {
                    env.clock.now();
                }
            });
            assert!(circles.is_err_and(|trouble| trouble.to_string().contains("circles")));
        }
    }
}
