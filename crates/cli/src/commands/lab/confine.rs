//! Limits the memory of a process, including the page cache of its files: by a Linux control group of either version,
//! or by ballast where none can be made.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use bifold_lab::{
    Failure, Result,
    system::{self, MemoryGroups},
};

/// What keeps a process within its memory.
pub enum Confined {
    /// A group with one process. It is removed on drop; the process must have ended by then.
    Group(PathBuf),
    /// Memory that nobody else can have, so that the whole machine has what the process may have.
    Ballast(#[expect(dead_code, reason = "it is only held")] Vec<u8>),
}

impl Confined {
    /// Leaves so many bytes to a process that has done nothing yet.
    pub fn new(process: u32, bytes: u64) -> Result<Self> {
        match system::memory_groups() {
            Some(groups) => Self::group(&groups, process, bytes),
            None => Self::ballast(process, bytes),
        }
    }

    fn group(groups: &MemoryGroups, process: u32, bytes: u64) -> Result<Self> {
        let group = groups.root.join(format!("bifold-lab-{process}"));
        fs::create_dir(&group).map_err(|e| refused(&format!("cannot create {}: {e}", group.display())))?;
        let confined = Self::Group(group.clone());
        write(&group.join(groups.limit), bytes)
            .and_then(|()| write(&group.join("cgroup.procs"), process.into()))
            .map_err(|e| refused(&format!("cannot write to {}: {e}", group.display())))?;
        Ok(confined)
    }

    /// Takes all memory but `bytes`. If that is too little for the process, the system ends it, and not this one, which
    /// has more.
    fn ballast(process: u32, bytes: u64) -> Result<Self> {
        write(Path::new(&format!("/proc/{process}/oom_score_adj")), 1000)
            .map_err(|e| refused(&format!("cannot say which process to end when memory is short: {e}")))?;
        let free =
            system::memory_info("MemAvailable").ok_or_else(|| refused("/proc/meminfo does not say what is free"))?;
        let taken = usize::try_from(free.saturating_sub(bytes)).unwrap_or(usize::MAX);
        // Pages of zeros would take nothing, and what nobody looks at might not be written.
        let ballast = Self::Ballast(std::hint::black_box(vec![1; taken]));
        let has_swap = system::memory_info("SwapTotal") != Some(0);
        match keep_in_memory() {
            Err(e) if has_swap => Err(refused(&format!("cannot keep memory from being swapped: {e}"))),
            _ => Ok(ballast),
        }
    }
}

impl Drop for Confined {
    fn drop(&mut self) {
        // A group that still has a process stays, but it is only an empty directory. Freed ballast is no longer locked.
        if let Self::Group(group) = self {
            let _ = fs::remove_dir(group);
        }
    }
}

/// Nothing that this process has now is swapped.
#[cfg(target_os = "linux")]
fn keep_in_memory() -> io::Result<()> {
    rustix::mm::mlockall(rustix::mm::MlockAllFlags::CURRENT).map_err(io::Error::from)
}

#[cfg(not(target_os = "linux"))]
fn keep_in_memory() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

fn write(file: &Path, number: u64) -> io::Result<()> {
    fs::write(file, number.to_string())
}

fn refused(why: &str) -> Failure {
    Failure::Plan(format!("--memory: {why}: it needs Linux, and as root control groups, or a machine without swap"))
}
