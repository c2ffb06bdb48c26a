//! Reads past the system's cache (`O_DIRECT`), for `reads = direct`.
//!
//! ```text
//! read ──▶ does the cache have a page of it? ─ yes ─▶ an ordinary read, which leaves the cache as it was
//!                                            └ no ──▶ whole sectors ──▶ aligned buffer of the thread ──▶ copied
//! ```
//!
//! The file is opened a second time for them, at the first one. What the cache has is read from there: pages that were
//! written a moment ago, which the system would have to write to the device first, and what a scan has announced. A
//! system that does not say what it has in its cache is taken to have nothing: direct reads see what is in it, but
//! later.

#![cfg_attr(not(target_os = "linux"), allow(dead_code, unused_imports, reason = "elsewhere all reads are ordinary"))]

#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
use std::{
    fs::File,
    io::{self, ErrorKind},
    ops::Deref,
    sync::OnceLock,
};

use super::hints::{has_cached, read_once_at};
use crate::scratch::with_scratch;

/// Longer reads are ordinary ones: there the cache costs little.
const LENGTH_MAX: usize = 256 << 10;

/// At least as much as any system asks for.
const ALIGNMENT: usize = 4096;

/// An open file that can be read past the system's cache.
#[derive(Debug)]
pub(crate) struct Opened {
    file: File,
    direct: OnceLock<Option<Direct>>,
}

/// The same file once more, with `O_DIRECT`.
#[derive(Debug)]
struct Direct {
    file: File,
    /// Reads begin and end at multiples of this.
    sector: u64,
}

impl From<File> for Opened {
    fn from(file: File) -> Self {
        Self { file, direct: OnceLock::new() }
    }
}

impl Deref for Opened {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Opened {
    /// As [`ReadFile::read_past_cache`](crate::fs::ReadFile::read_past_cache).
    #[cfg(target_os = "linux")]
    pub fn read_past_cache(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        if buffer.len() <= LENGTH_MAX && has_cached(&self.file, offset, buffer.len()) != Some(true) {
            let direct = self.direct.get_or_init(|| Direct::of(&self.file));
            if let Some(direct) = direct
                && direct.read(buffer, offset)?
            {
                return Ok(());
            }
        }
        read_once_at(&self.file, buffer, offset)
    }

    #[cfg(not(target_os = "linux"))]
    pub fn read_past_cache(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        read_once_at(&self.file, buffer, offset)
    }
}

#[cfg(target_os = "linux")]
impl Direct {
    /// `None` where the file system reads nothing directly, or does not say how.
    fn of(file: &File) -> Option<Self> {
        use rustix::fs::{AtFlags, OFlags, StatxFlags};

        let found = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
        let (sector, memory) = (u64::from(found.stx_dio_offset_align), found.stx_dio_mem_align as usize);
        if !sector.is_power_of_two() || memory > ALIGNMENT {
            return None;
        }
        // Its name may be gone by now.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, rustix::fs::Mode::empty()).ok()?;
        Some(Self { file: file.into(), sector })
    }

    /// Fills `buffer` from `offset` on. `false` if fewer bytes came, or the system refuses: an ordinary read then says
    /// what is wrong.
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<bool> {
        let start = offset & !(self.sector - 1);
        let skipped = usize::try_from(offset - start).map_err(io::Error::other)?;
        let needed = skipped + buffer.len();
        with_aligned(needed.next_multiple_of(self.sector as usize), |sectors| {
            loop {
                match std::os::unix::fs::FileExt::read_at(&self.file, sectors, start) {
                    Ok(read) if read < needed => return Ok(false),
                    Ok(_) => {
                        buffer.copy_from_slice(&sectors[skipped..needed]);
                        return Ok(true);
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => {
                        return Ok(false);
                    }
                    Err(error) => return Err(error),
                }
            }
        })
    }
}

/// Calls `use_it` with `len` bytes at a multiple of [`ALIGNMENT`], whatever is in them.
#[cfg(target_os = "linux")]
fn with_aligned<T>(len: usize, use_it: impl FnOnce(&mut [u8]) -> T) -> T {
    with_scratch(len + ALIGNMENT, |buffer| {
        let start = buffer.as_ptr().align_offset(ALIGNMENT);
        use_it(&mut buffer[start..][..len])
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::{
        io::Write,
        path::{Path, PathBuf},
    };

    use super::*;

    /// A file with a different number at every eighth byte, on a disk and not in memory if the system has one.
    struct OnDisk(PathBuf);

    impl OnDisk {
        fn new(name: &str, len: usize) -> io::Result<Self> {
            let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
            let dir = if dir.is_dir() { dir } else { std::env::temp_dir() };
            let path = dir.join(format!("bifold-direct-{}-{name}", std::process::id()));
            std::fs::write(&path, bytes(len))?;
            File::open(&path)?.sync_all()?;
            Ok(Self(path))
        }

        /// Opened, with nothing of it in the system's cache.
        fn cold(&self) -> io::Result<Opened> {
            let file = File::open(&self.0)?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
            Ok(file.into())
        }
    }

    impl Drop for OnDisk {
        fn drop(&mut self) {
            let _gone = std::fs::remove_file(&self.0);
        }
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..len.div_ceil(8) as u64)
            .flat_map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15)).to_le_bytes())
            .take(len)
            .collect()
    }

    #[test]
    fn any_range_is_read_up_to_the_end_and_an_error_beyond() {
        let len = 70_001;
        let (disk, all) = (OnDisk::new("ranges", len).unwrap(), bytes(len));
        let lengths = [0, 1, 511, 512, 513, 4095, 4096, 5000, 33_000];
        for offset in [0, 1, 100, 511, 512, 4095, 4096, 8191, 60_000, len - 513, len - 1, len] {
            for length in lengths {
                let mut read = vec![0; length];
                match all.get(offset..offset + length) {
                    Some(want) => {
                        disk.cold().unwrap().read_past_cache(&mut read, offset as u64).unwrap();
                        assert!(read == want, "{length} bytes at {offset}");
                    }
                    None => {
                        let error = disk.cold().unwrap().read_past_cache(&mut read, offset as u64).unwrap_err();
                        assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{length} bytes at {offset}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_direct_read_leaves_the_cache_empty_and_cached_bytes_are_read_from_there() {
        let disk = OnDisk::new("cache", 1 << 20).unwrap();
        let cold = disk.cold().unwrap();
        // File systems in memory drop nothing, and others may not tell.
        if has_cached(&cold, 0, 1 << 20) != Some(false) || Direct::of(&cold).is_none() {
            return;
        }
        let mut read = [0; 1000];
        cold.read_past_cache(&mut read, 300_000).unwrap();
        assert_eq!(has_cached(&cold, 0, 1 << 20), Some(false), "the read filled the cache");
        assert_eq!(read[..], bytes(1 << 20)[300_000..301_000]);

        super::super::read_exact_at(&cold, &mut read, 500_000).unwrap();
        assert_eq!(has_cached(&cold, 500_000, 1000), Some(true));
        cold.read_past_cache(&mut read, 500_000).unwrap();
        assert_eq!(read[..], bytes(1 << 20)[500_000..501_000]);
    }

    #[test]
    fn what_was_just_written_is_read_whatever_else_is_on_its_page() {
        let disk = OnDisk::new("written", 5000).unwrap();
        let opened = disk.cold().unwrap();
        let mut read = [0; 100];
        opened.read_past_cache(&mut read, 4800).unwrap();
        let mut writer = std::fs::OpenOptions::new().append(true).open(&disk.0).unwrap();
        for round in 0..50_u8 {
            writer.write_all(&[round; 100]).unwrap();
            opened.read_past_cache(&mut read, 5000 + 100 * u64::from(round)).unwrap();
            assert_eq!(read, [round; 100]);
        }
        assert!(opened.read_past_cache(&mut read, 5000 + 50 * 100 - 1).is_err(), "beyond the end");
        std::fs::remove_file(&disk.0).unwrap();
        opened.read_past_cache(&mut read, 5000).unwrap();
        assert_eq!(read, [0; 100], "its name is gone, the file is not");
    }
}
