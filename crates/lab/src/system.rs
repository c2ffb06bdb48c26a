//! Settings of the system that decide what buffered files cost: when written pages go to the device, how much it reads
//! ahead, whether it reclaims cold pages by itself, and how a process gets less memory than the machine has.
//!
//! Every run records them ([`System::here`]). They belong to the whole machine, so the lab changes them only if it is
//! asked to ([`wanted`]), and the caller writes the old ones back.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

const VM: &str = "/proc/sys/vm";
const KDAMONDS: &str = "/sys/kernel/mm/damon/admin/kdamonds";

/// Bytes that may wait for the device before writers wait, bytes from which on the system begins to write them, and
/// read-ahead in KiB, as comparisons of stores want them.
///
/// With more, most of what a store writes within a step is never written by the device in it, and a random read of a
/// store that does not advise the system fetches megabytes.
const WANTED: (u64, u64, u64) = (64 << 20, 16 << 20, 128);

/// The settings, as far as the system reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct System {
    /// Bytes that may wait for the device; 0: [`System::dirty_percent`] counts.
    pub dirty_bytes: u64,
    /// The same in percent of memory.
    pub dirty_percent: u64,
    /// Read-ahead of the device, in KiB; `None` if it is not known.
    pub read_ahead_kib: Option<u64>,
    /// Whether the system reclaims cold pages before memory is short (DAMON).
    pub reclaims_early: bool,
    /// Whether no control group can limit the memory of a process.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lacks_groups: bool,
}

/// Where control groups that limit memory can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryGroups {
    /// The directory of all groups.
    pub root: &'static Path,
    /// The file of a group that takes its limit in bytes.
    pub limit: &'static str,
}

/// The bytes of a field of `/proc/meminfo`; `None` where there is no such file or field.
#[must_use]
pub fn memory_info(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let of_field =
        |line: &str| line.strip_prefix(name)?.strip_prefix(':')?.trim().strip_suffix("kB")?.trim().parse().ok();
    text.lines().find_map(of_field).map(|kib: u64| kib << 10)
}

/// `None`: nowhere, because there are none, or because this process may not make them.
#[must_use]
pub fn memory_groups() -> Option<MemoryGroups> {
    let [first, second] = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].map(Path::new);
    let (is_first, given) = (first.join("cgroup.procs").exists(), second.join("cgroup.subtree_control"));
    let groups = match () {
        () if is_first => MemoryGroups { root: first, limit: "memory.limit_in_bytes" },
        () if fs::read_to_string(given).is_ok_and(|given| given.split_whitespace().any(|of| of == "memory")) => {
            MemoryGroups { root: second, limit: "memory.max" }
        }
        () => return None,
    };
    rustix::fs::access(groups.root, rustix::fs::Access::WRITE_OK).ok().map(|()| groups)
}

/// A setting to change: the file, and what is to be written to it.
pub type Change = (PathBuf, String);

impl System {
    /// Those of this machine, and of the device that holds `data`.
    #[must_use]
    pub fn here(data: &Path) -> Self {
        let vm = |name: &str| number(&Path::new(VM).join(name)).unwrap_or(0);
        Self {
            dirty_bytes: vm("dirty_bytes"),
            dirty_percent: vm("dirty_ratio"),
            read_ahead_kib: read_ahead(data).as_deref().and_then(number),
            reclaims_early: reclaims_early(),
            lacks_groups: cfg!(target_os = "linux") && memory_groups().is_none(),
        }
    }

    /// In words.
    #[must_use]
    pub fn words(&self) -> String {
        let waiting = match self.dirty_bytes {
            0 => format!("{} % of memory", self.dirty_percent),
            bytes => format!("{} MiB", bytes >> 20),
        };
        let ahead = self.read_ahead_kib.map_or_else(|| "unknown".to_owned(), |kib| format!("{kib} KiB"));
        let early = if self.reclaims_early { "; cold pages are reclaimed before memory is short (DAMON)" } else { "" };
        let ballast =
            if self.lacks_groups { "; no control groups, so a limit of memory is kept by taking the rest" } else { "" };
        format!("at most {waiting} wait to be written; read-ahead {ahead}{early}{ballast}")
    }
}

/// What to write to which file, to have the settings that comparisons want.
#[must_use]
pub fn wanted(data: &Path) -> Vec<Change> {
    let (dirty, background, ahead) = WANTED;
    let vm = |name: &str, bytes: u64| (Path::new(VM).join(name), bytes.to_string());
    let mut wanted = vec![vm("dirty_bytes", dirty), vm("dirty_background_bytes", background)];
    wanted.extend(read_ahead(data).map(|file| (file, ahead.to_string())));
    wanted
}

/// What to write to which file, to have the present settings again.
///
/// A limit in bytes and one in percent exclude each other: where the bytes are 0, the percentage is what must be
/// written.
#[must_use]
pub fn present(data: &Path) -> Vec<Change> {
    let vm = |name: &str| Path::new(VM).join(name);
    let limit = |bytes: &str, percent: &str| {
        let file = if number(&vm(bytes)).unwrap_or(0) == 0 { vm(percent) } else { vm(bytes) };
        Some((file.clone(), number(&file)?.to_string()))
    };
    let ahead = read_ahead(data).and_then(|file| Some((file.clone(), number(&file)?.to_string())));
    [limit("dirty_bytes", "dirty_ratio"), limit("dirty_background_bytes", "dirty_background_ratio"), ahead]
        .into_iter()
        .flatten()
        .collect()
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The file with the read-ahead of the device that holds `data`; a partition has that of its disk.
fn read_ahead(data: &Path) -> Option<PathBuf> {
    let device = fs::metadata(data).ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    ["queue/read_ahead_kb", "../queue/read_ahead_kb"]
        .map(|file| device.join(file))
        .into_iter()
        .find(|file| file.exists())
}

fn reclaims_early() -> bool {
    let is_on = |file: PathBuf| fs::read_to_string(file).is_ok_and(|text| matches!(text.trim(), "on" | "Y"));
    let daemons = number(&Path::new(KDAMONDS).join("nr_kdamonds")).unwrap_or(0);
    is_on(PathBuf::from("/sys/module/damon_reclaim/parameters/enabled"))
        || (0..daemons).any(|n| is_on(Path::new(KDAMONDS).join(n.to_string()).join("state")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn present_settings_cover_what_is_wanted() {
        let here = Path::new(".");
        // A limit in bytes is undone by the one in percent, so only the number of files is the same.
        if System::here(here).dirty_bytes + System::here(here).dirty_percent > 0 {
            assert_eq!(present(here).len(), wanted(here).len());
        }
    }

    #[test]
    fn settings_are_said_in_words() {
        let percent = System { dirty_percent: 20, read_ahead_kib: Some(8192), ..System::default() };
        assert_eq!(percent.words(), "at most 20 % of memory wait to be written; read-ahead 8192 KiB");
        let bytes = System { dirty_bytes: 64 << 20, reclaims_early: true, ..percent };
        assert!(bytes.words().starts_with("at most 64 MiB wait"), "{}", bytes.words());
        assert!(bytes.words().ends_with("(DAMON)"), "{}", bytes.words());
        let without = System { lacks_groups: true, ..percent };
        assert!(
            without.words().ends_with("KiB; no control groups, so a limit of memory is kept by taking the rest"),
            "{}",
            without.words()
        );
    }
}
