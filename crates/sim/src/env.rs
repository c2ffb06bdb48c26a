//! The simulated environment of a database: files in memory, a clock that only moves when it is read, no threads.

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

/// An empty simulated disk. For about every other seed, small appends go through an append region, as on a real disk;
/// so they do in copies that a crash leaves.
#[must_use]
pub fn disk(seed: u64) -> MemoryFs {
    let fs = MemoryFs::default();
    fs.set_append_region(has_append_region(seed));
    fs
}

/// Whether the disk of this seed has an append region.
#[must_use]
pub fn has_append_region(seed: u64) -> bool {
    Random::new(seed, "append region").chance(50)
}

/// An environment with the files of `fs`.
#[must_use]
pub fn simulated(fs: &MemoryFs) -> Env {
    over(Arc::new(fs.clone()))
}

/// An environment with the files of any file system.
#[must_use]
pub fn over(fs: Arc<dyn FileSystem>) -> Env {
    Env { fs, clock: Arc::new(StepClock::default()), threads: Arc::new(NoThreads) }
}

/// An environment with the files of any file system, and real threads.
#[must_use]
pub fn threaded(fs: Arc<dyn FileSystem>) -> Env {
    Env { fs, clock: Arc::new(CountedClock::default()), ..Env::system() }
}

/// How often the clock of one database may be read, which every piece of background work does. The longest run of any
/// test reads it a tenth as often. Work that reads it more often loops, and each round may keep some memory.
pub const LOOKS_MAX: u64 = 2_000_000;

/// How often a clock has been read, and may be read.
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
    /// Stops looping work with a panic, which ends a database's job as an error does.
    fn count(&self) {
        let (looks, most) = (self.so_far.fetch_add(1, Ordering::Relaxed), self.most.load(Ordering::Relaxed));
        assert!(looks < most, "work loops: the clock was read {looks} times");
    }
}

/// When a simulation begins: in 2020.
pub const BEGIN: Duration = Duration::from_secs(1_577_836_800);

/// A clock that moves a microsecond whenever it is read, and by the requested time when it is slept on.
#[derive(Debug, Default)]
pub struct StepClock {
    now_ns: AtomicU64,
    looks: Looks,
}

impl StepClock {
    /// From now on the clock may be read `looks` more times, instead of [`LOOKS_MAX`] times in all.
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

    fn unix_now(&self) -> Duration {
        BEGIN + Duration::from_nanos(self.now_ns.load(Ordering::Relaxed))
    }
}

/// The system's clock, read as often as a simulated one may be. The time of day stands still: what expires at once has
/// expired for good, and nothing else expires.
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

    fn unix_now(&self) -> Duration {
        BEGIN
    }
}

/// Refuses to start threads: with `Workers::Caller` none may be requested.
#[derive(Debug)]
pub struct NoThreads;

impl Threads for NoThreads {
    fn spawn(&self, name: &str, _work: Box<dyn FnOnce() + Send>) -> bifold::Result<JoinHandle<()>> {
        Err(bifold::Error::invalid("thread", format!("`{name}` was requested with workers = caller")))
    }
}

/// The files after a power loss that takes everything unsynced.
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

/// A file system with only these files, all of them durable.
#[must_use]
pub fn holding(files: &[(PathBuf, Vec<u8>)]) -> MemoryFs {
    let fs = MemoryFs::default();
    files.iter().for_each(|(path, bytes)| fs.write_durable(path, bytes));
    fs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without the limit, background work that calls no file could loop forever.
    #[test]
    fn looping_work_is_stopped_in_all_environments() {
        let fs = || Arc::new(MemoryFs::default());
        for env in [simulated(&fs()), over(fs()), threaded(fs())] {
            let looping = crate::report::guarded(|| -> Result<(), crate::read::Trouble> {
                loop {
                    env.clock.now();
                }
            });
            assert!(looping.is_err_and(|trouble| trouble.to_string().contains("work loops")));
        }
    }
}
