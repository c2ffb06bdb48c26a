//! What a small append through the append region costs when many files take turns: nanoseconds of CPU time each.
//!
//! ```text
//! cargo run --release -p bifold-io --example append_region [DIR]
//! ```
//!
//! To compare two builds, build both and run them alternately.

use std::path::{Path, PathBuf};

use bifold_io::{
    FileSystem, LockMode,
    disk::DiskFs,
    fs::{APPENDS_NAME, Appending, DirLock, DirUse, Reads},
};

const FILES: usize = 64;
const APPENDS: usize = 100_000;
const ROUNDS: usize = 25;

fn main() -> bifold_contract::Result<()> {
    let root = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = root.join(format!("bifold-append-region-{}", std::process::id()));
    DiskFs.create_dir_all(&dir)?;
    for bytes in [90, 1_048] {
        let mut rounds = (0..ROUNDS).map(|_| nanoseconds(&dir, bytes)).collect::<bifold_contract::Result<Vec<_>>>()?;
        rounds.sort_by(f64::total_cmp);
        println!("{bytes:>5} bytes: median {:6.1} ns, least {:6.1} ns", rounds[ROUNDS / 2], rounds[0]);
    }
    let _left_behind = std::fs::remove_dir_all(&dir);
    Ok(())
}

/// CPU time of this process: the load of other processes hardly shows in it.
fn cpu_nanoseconds() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// The mean time of an append in one round.
fn nanoseconds(dir: &Path, bytes: usize) -> bifold_contract::Result<f64> {
    let lock = DiskFs.lock(&dir.join("LOCK"), LockMode::Exclusive)?;
    let how = Appending { files_max: FILES, reads: Reads::Mapped, mapped_bytes_max: u64::MAX };
    let region = DiskFs.append_region(dir, DirLock { lock, used: DirUse::Write }, how)?;
    let Some(fs) = region.fs else { return Ok(f64::NAN) };
    let paths: Vec<PathBuf> = (0..FILES).map(|n| dir.join(format!("{n:06}.val"))).collect();
    let files = paths.iter().map(|path| fs.create_appended(path)).collect::<bifold_contract::Result<Vec<_>>>()?;
    let record = vec![7; bytes];
    for file in &files {
        file.writer.append(&[&record])?;
    }
    if !dir.join(APPENDS_NAME).exists() {
        println!("(plain appends: APPENDS is not mapped on this file system)");
    }
    let begin = cpu_nanoseconds();
    for n in 0..APPENDS {
        files[n % FILES].writer.append(&[&record[..20], &record[20..]])?;
    }
    let spent = cpu_nanoseconds() - begin;
    drop(files);
    drop(region.lock);
    paths.iter().try_for_each(|path| fs.remove(path))?;
    Ok(spent as f64 / APPENDS as f64)
}
