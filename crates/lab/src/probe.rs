//! The device's own rate: random reads of 4 KiB past the page cache, from the files that a store has written.
//!
//! What a store reaches with so many threads is compared with this, measured in the same run, on the same files. Direct
//! reads leave the page cache as it is, so the steps around it are not disturbed.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::Instant,
};

use hdrhistogram::Histogram;

use crate::{
    Failure, PhaseReport, Plan, Result,
    calibrate::scratch::{Aligned, direct},
    random::Random,
    report::Latency,
    run::histogram,
};

/// Bytes of a read.
const UNIT: u64 = 4096;

/// The files of a store, as one range of units.
struct Files {
    /// Each with the number of units in it and before it.
    files: Vec<(File, u64)>,
}

impl Files {
    /// Opens all files below `dir` that have a whole unit. None, if one of them cannot be read past the page cache.
    fn open(dir: &Path) -> io::Result<Self> {
        let mut paths = Vec::new();
        list(dir, &mut paths)?;
        let (mut files, mut units) = (Vec::new(), 0);
        let mut buffer = Aligned::new(UNIT as usize);
        for path in paths {
            let mut options = OpenOptions::new();
            let file = match direct(options.read(true))?.open(&path) {
                Ok(file) => file,
                // A store may remove files at any time.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let len = file.metadata()?.len() / UNIT;
            if len == 0 {
                continue;
            }
            file.read_exact_at(buffer.as_mut(), 0)?;
            units += len;
            files.push((file, units));
        }
        Ok(Self { files })
    }

    fn units(&self) -> u64 {
        self.files.last().map_or(0, |(_, end)| *end)
    }

    fn read(&self, unit: u64, buffer: &mut [u8]) -> io::Result<()> {
        let at = self.files.partition_point(|(_, end)| *end <= unit);
        let start = at.checked_sub(1).map_or(0, |before| self.files[before].1);
        self.files[at].0.read_exact_at(buffer, (unit - start) * UNIT)
    }
}

fn list(dir: &Path, paths: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        match entry.file_type()? {
            kind if kind.is_dir() => list(&entry.path(), paths)?,
            kind if kind.is_file() => paths.push(entry.path()),
            _ => {}
        }
    }
    paths.sort_unstable();
    Ok(())
}

/// Reads as many units below `dir` as the plan has operations, by as many threads as it has. A report of no operations
/// says that the file system cannot read past the page cache.
///
/// # Errors
/// [`Failure::System`].
pub fn random_reads(dir: &Path, plan: &Plan, done: &AtomicU64) -> Result<PhaseReport> {
    let nothing = PhaseReport { store: "device", phase: "device", ..PhaseReport::default() };
    let files = match Files::open(dir) {
        Ok(files) if files.units() > 0 => files,
        Err(error) if error.kind() != io::ErrorKind::InvalidInput => return Err(Failure::file("read", dir, &error)),
        _ => return Ok(nothing),
    };
    let begin = Instant::now();
    let deadline = plan.time_max.map(|time| begin + time);
    let (threads, reads) = (plan.threads as u64, plan.operations.unwrap_or(plan.keys));
    let work = |thread: u64| -> io::Result<Histogram<u64>> {
        let mut random = Random::new(plan.seed, thread);
        let (mut buffer, mut times) = (Aligned::new(UNIT as usize), histogram());
        for _ in 0..reads / threads + u64::from(thread < reads % threads) {
            let start = Instant::now();
            files.read(random.below(files.units()), buffer.as_mut())?;
            let end = Instant::now();
            times.saturating_record(u64::try_from((end - start).as_nanos()).unwrap_or(u64::MAX));
            done.fetch_add(1, Relaxed);
            if deadline.is_some_and(|deadline| end >= deadline) {
                break;
            }
        }
        Ok(times)
    };
    let all = thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().try_fold(histogram(), |sum, thread| {
            Ok(sum + thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread of the probe panicked")))?)
        })
    });
    let all = all.map_err(|error: io::Error| Failure::file("read", dir, &error))?;
    let seconds = begin.elapsed().as_secs_f64().max(1e-9);
    Ok(PhaseReport {
        operations: all.len(),
        seconds,
        ops_per_sec: all.len() as f64 / seconds,
        latency_us: Latency::of(&all),
        ..nothing
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_of_every_file_is_within_reach() {
        let dir = std::env::temp_dir().join(format!("bifold-lab-probe-{}", std::process::id()));
        fs::create_dir_all(dir.join("below")).unwrap();
        for (name, units, fill) in [("a", 2, 1_u8), ("below/b", 3, 2), ("short", 0, 3)] {
            fs::write(dir.join(name), vec![fill; units * UNIT as usize + 100]).unwrap();
        }
        let plan = Plan { operations: Some(50), threads: 3, ..Plan::default() };
        let done = AtomicU64::new(0);
        let report = random_reads(&dir, &plan, &done).unwrap();
        if let Ok(files) = Files::open(&dir) {
            let mut buffer = Aligned::new(UNIT as usize);
            let mut fills = |unit| files.read(unit, buffer.as_mut()).map(|()| buffer.as_ref()[0]).unwrap();
            assert_eq!([0, 1, 2, 3, 4].map(&mut fills), [1, 1, 2, 2, 2]);
            assert_eq!((files.units(), report.operations, done.load(Relaxed)), (5, 50, 50));
        }
        fs::remove_dir_all(&dir).unwrap();
        assert!(random_reads(&dir, &plan, &done).is_err(), "a directory that is not there");
    }
}
