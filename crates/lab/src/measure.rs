//! Measurements of the process and the disk: peak memory, processor time, bytes moved by system calls, directory size.

use std::{fs, io, path::Path};

use serde::{Deserialize, Serialize};

/// The peak resident memory of this process since it began or since [`reset_peak_memory`], in bytes; `None` if the
/// system does not report it.
#[must_use]
pub fn peak_memory_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Resets peak memory, so that each phase has its own. If the system forbids that, the count continues.
pub fn reset_peak_memory() {
    // "5" resets the high-water mark (proc(5), /proc/pid/clear_refs). Some containers forbid it.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// Processor time of all threads of this process so far, in seconds.
#[must_use]
pub fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Bytes in all files under `dir`. Files that vanish meanwhile do not count: a store may remove files at any time.
///
/// # Errors
/// The system's, if `dir` itself cannot be read.
pub fn dir_bytes(dir: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)?.flatten() {
        bytes += match entry.metadata() {
            Ok(meta) if meta.is_dir() => dir_bytes(&entry.path()).unwrap_or(0),
            Ok(meta) => meta.len(),
            Err(_) => 0,
        };
    }
    Ok(bytes)
}

/// Bytes moved by system calls that read and write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Called {
    /// Read.
    pub read: u64,
    /// Written.
    pub written: u64,
}

impl Called {
    /// The difference to `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self { read: self.read.saturating_sub(before.read), written: self.written.saturating_sub(before.written) }
    }
}

/// Bytes that this process has moved so far by system calls, for files, pipes and terminals. Mapped pages do not count.
/// `None` if the system does not count them.
#[must_use]
pub fn called() -> Option<Called> {
    // `rchar` and `wchar` (proc(5), /proc/pid/io); `read_bytes` and `write_bytes` would be those of the device, some of
    // them much later and by another process.
    let io = fs::read_to_string("/proc/self/io").ok()?;
    let of = |name: &str| io.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok();
    Some(Called { read: of("rchar:")?, written: of("wchar:")? })
}

/// Traffic of the device so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceTraffic {
    /// Bytes that this process had the device read, read-ahead included.
    pub bytes: u64,
    /// Requests that the device has answered, for any process: the system does not count them by process.
    pub requests: u64,
    /// Bytes that the device has written, for any process, some of them long after they were handed to the system.
    pub written: u64,
    /// Requests for them.
    pub write_requests: u64,
}

impl DeviceTraffic {
    /// Those so far, of the device that holds `dir`; `None` if the system does not count them, or there is no device.
    #[must_use]
    pub fn now(dir: &Path) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        // `read_bytes` (proc(5)): pages that the process made the device fetch, by calls or by faults.
        let io = fs::read_to_string("/proc/self/io").ok()?;
        let bytes = io.lines().find_map(|line| line.strip_prefix("read_bytes:"))?.trim().parse().ok()?;
        let device = fs::metadata(dir).ok()?.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let stat = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
        // Requests, merged requests, sectors of 512 bytes, time: for reads, then for writes (Documentation/block/stat).
        let counts: Vec<u64> = stat.split_whitespace().map_while(|count| count.parse().ok()).collect();
        let [requests, _, _, _, write_requests, _, sectors, ..] = counts[..] else { return None };
        Some(Self { bytes, requests, written: sectors.saturating_mul(512), write_requests })
    }

    /// The difference to `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(before.bytes),
            requests: self.requests.saturating_sub(before.requests),
            written: self.written.saturating_sub(before.written),
            write_requests: self.write_requests.saturating_sub(before.write_requests),
        }
    }
}

/// Drops all files under `dir` from the system's page cache, after a sync.
///
/// # Errors
/// The system's, for files that cannot be opened or synced.
pub fn drop_page_cache(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)?.flatten() {
        let path = entry.path();
        match entry.metadata() {
            Ok(meta) if meta.is_dir() => drop_page_cache(&path)?,
            Ok(meta) if meta.is_file() => match fs::File::open(&path) {
                Ok(file) => {
                    file.sync_data()?;
                    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
                }
                // A store may remove files at any time.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            },
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_has_used_memory_and_time() {
        let touched = vec![1_u8; 32 << 20];
        assert!(touched.iter().map(|&b| u64::from(b)).sum::<u64>() == 32 << 20);
        if let Some(bytes) = peak_memory_bytes() {
            assert!(bytes >= 32 << 20, "{bytes}");
        }
        assert!(cpu_seconds() > 0.0);
    }

    #[test]
    fn bytes_read_and_written_by_calls_count() {
        let file = std::env::temp_dir().join(format!("bifold-lab-calls-{}", std::process::id()));
        let Some(before) = called() else { return };
        fs::write(&file, [0; 100_000]).unwrap();
        assert_eq!(fs::read(&file).unwrap().len(), 100_000);
        let after = called().unwrap().since(before);
        fs::remove_file(&file).unwrap();
        // Other tests of the process read and write meanwhile.
        assert!(after.read >= 100_000 && after.written >= 100_000, "{after:?}");
    }

    #[test]
    fn a_directory_is_as_large_as_its_files() {
        let dir = std::env::temp_dir().join(format!("bifold-lab-measure-{}", std::process::id()));
        fs::create_dir_all(dir.join("below")).unwrap();
        fs::write(dir.join("a"), [0; 100]).unwrap();
        fs::write(dir.join("below/b"), [0; 23]).unwrap();
        assert_eq!(dir_bytes(&dir).unwrap(), 123);
        fs::remove_dir_all(&dir).unwrap();
        assert!(dir_bytes(&dir).is_err());
    }
}
