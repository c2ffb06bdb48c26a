//! Limits the memory of a process, including the page cache of its files, by a Linux control group of either version.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use bifold_lab::{Failure, Result};

/// The directories of version 1 and version 2, and the names of their limits.
const HIERARCHIES: [(&str, &str); 2] =
    [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];

/// A group with one process. It is removed on drop; the process must have ended by then.
pub struct Confined(PathBuf);

impl Confined {
    /// Puts a process into a new group with this limit in bytes.
    pub fn new(process: u32, bytes: u64) -> Result<Self> {
        let group =
            |(root, limit): (&str, &'static str)| (Path::new(root).join(format!("bifold-lab-{process}")), limit);
        let (group, limit) = HIERARCHIES
            .into_iter()
            .find(|(root, _)| Path::new(root).join("cgroup.procs").exists())
            .map(group)
            .ok_or_else(|| refused("there are no control groups at /sys/fs/cgroup"))?;
        fs::create_dir(&group).map_err(|e| refused(&format!("cannot create {}: {e}", group.display())))?;
        let confined = Self(group);
        confined
            .write(limit, bytes)
            .and_then(|()| confined.write("cgroup.procs", process.into()))
            .map_err(|e| refused(&format!("cannot write to {}: {e}", confined.0.display())))?;
        Ok(confined)
    }

    fn write(&self, name: &str, number: u64) -> io::Result<()> {
        fs::write(self.0.join(name), number.to_string())
    }
}

impl Drop for Confined {
    fn drop(&mut self) {
        // A group that still has a process stays, but it is only an empty directory.
        let _ = fs::remove_dir(&self.0);
    }
}

fn refused(why: &str) -> Failure {
    Failure::Plan(format!("--memory: {why}: it needs Linux, and the right to create control groups (root)"))
}
