//! The file to measure on.
//!
//! 1. It is created under an unused name and opened, and its name is removed at once. From then on nothing needs to be
//!    cleaned up: the system frees it when the program ends, however it ends.
//! 2. It is written from end to end, because a hole would be read without a request to the device.
//! 3. Reads and writes that bypass the page cache are tried, from the smallest unit up.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::Path,
};

use bifold_vat::Caching;

use super::{CalibrationProgress, measure::UnitOrder};
use crate::{Failure, Result, random::Random, report, room};

/// The alignment of memory for direct reads and writes: no device asks for more.
const ALIGNMENT: usize = 4096;

/// Bytes per write while the file is filled.
const CHUNK: usize = 4 << 20;

/// Bytes at an address that direct reads and writes accept.
pub struct Aligned {
    bytes: Vec<u8>,
    begin: usize,
    len: usize,
}

impl Aligned {
    /// `len` zeros.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let bytes = vec![0; len + ALIGNMENT];
        // May return `usize::MAX`, though only in constants: reads then fail cleanly.
        let begin = bytes.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Self { bytes, begin, len }
    }

    /// `len` incompressible bytes.
    #[must_use]
    pub fn random(len: usize) -> Self {
        let mut aligned = Self::new(len);
        let mut random = Random::new(0, 0);
        for word in aligned.as_mut().chunks_mut(8) {
            let bytes = random.draw().to_le_bytes();
            word.copy_from_slice(&bytes[..word.len()]);
        }
        aligned
    }
}

impl AsRef<[u8]> for Aligned {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.begin..self.begin + self.len]
    }
}

impl AsMut<[u8]> for Aligned {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.begin..self.begin + self.len]
    }
}

/// A file without a name.
pub struct Scratch {
    /// The file to measure on.
    pub file: File,
    /// How it bypasses the page cache.
    pub caching: Caching,
    /// Its size.
    pub bytes: u64,
    /// The smallest possible request.
    pub unit_least: usize,
}

impl Scratch {
    /// Makes a file of `bytes` bytes in `dir`, which must exist. Units are tried in the order of `units`.
    /// Reports progress to `seen`.
    ///
    /// # Errors
    /// [`Failure::System`].
    pub fn new(dir: &Path, bytes: u64, units: &[usize], seen: &mut dyn FnMut(CalibrationProgress)) -> Result<Self> {
        let path = dir.join(format!(".bifold-calibrate-{}", std::process::id()));
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let file = options.clone().create_new(true).open(&path).map_err(|e| Failure::file("create", &path, &e))?;
        let direct = direct(&mut options).and_then(|options| options.open(&path));
        fs::remove_file(&path).map_err(|e| Failure::file("remove", &path, &e))?;
        fill(&file, bytes, seen).map_err(|e| Failure::file("write the test file in", dir, &e))?;
        let possible = direct.ok().and_then(|direct| Some((least(&direct, units)?, direct)));
        let (file, caching, unit_least) = match possible {
            Some((unit, direct)) => (direct, Caching::Direct, unit),
            None => (file, Caching::Dropped, units.first().copied().unwrap_or(ALIGNMENT)),
        };
        let caching = if is_in_memory(&file) { Caching::Memory } else { caching };
        Ok(Self { file, caching, bytes, unit_least })
    }

    /// Whether nothing may be read or written twice because of the page cache.
    #[must_use]
    pub fn once_only(&self) -> bool {
        self.caching == Caching::Dropped
    }

    /// Prepares for units in this order: where the page cache cannot be bypassed, all of the file is on the device
    /// and none of it in the cache.
    ///
    /// # Errors
    /// The system's.
    pub fn make_cold(&self, order: UnitOrder) -> io::Result<()> {
        if !self.once_only() {
            return Ok(());
        }
        // Unwritten pages cannot be dropped.
        self.file.sync_data()?;
        drop_pages(&self.file, order)
    }
}

/// Writes the file from end to end, so that it has all its blocks and no hole.
fn fill(file: &File, bytes: u64, seen: &mut dyn FnMut(CalibrationProgress)) -> io::Result<()> {
    let chunk = Aligned::random(CHUNK);
    let mut at = 0;
    while at < bytes {
        let len = (bytes - at).min(CHUNK as u64);
        file.write_all_at(&chunk.as_ref()[..len as usize], at)?;
        at += len;
        seen(CalibrationProgress::Writing(at, bytes));
    }
    file.sync_all()
}

/// The smallest unit that can be written and read past the page cache, if any.
fn least(direct: &File, units: &[usize]) -> Option<usize> {
    // Tests the second unit of each size, because the beginning of the file is aligned to everything.
    let fits = |unit: usize| {
        let mut buffer = Aligned::random(unit);
        direct.write_all_at(buffer.as_ref(), unit as u64)?;
        direct.read_exact_at(buffer.as_mut(), unit as u64)
    };
    units.iter().copied().find(|&unit| fits(unit).is_ok())
}

/// The most bytes to write in `dir`: a tenth of the free space.
fn most_in(dir: &Path) -> Result<u64> {
    Ok(room::free(dir)? / 10)
}

/// Refuses a size of the test file without space for it, and returns the size to use.
///
/// # Errors
/// [`Failure::Plan`] for a size that is too small or too large; [`Failure::System`].
pub fn size(asked: Option<u64>, default: u64, least: u64, dir: &Path) -> Result<u64> {
    let room = most_in(dir)?;
    let bytes = asked.unwrap_or_else(|| default.min(room)) / least * least;
    if room < least {
        let (room, least) = (report::bytes(room), report::bytes(least));
        let why = format!("a tenth of the free space of {} is {room}, and the test needs {least}", dir.display());
        return Err(Failure::Plan(format!("{why}: free some space, or give another directory")));
    }
    match asked {
        Some(asked) if asked < least => {
            Err(Failure::Plan(format!("--bytes {asked} is too small: the least is {}", report::bytes(least))))
        }
        Some(asked) if asked > room => {
            let (asked, most) = (report::bytes(asked), report::bytes(room));
            let why = format!("--bytes: {asked} is more than a tenth of the free space of {}", dir.display());
            Err(Failure::Plan(format!("{why}: give at most {most}, or another directory")))
        }
        _ => Ok(bytes),
    }
}

/// Has files opened past the page cache.
#[cfg(target_os = "linux")]
pub(crate) fn direct(options: &mut OpenOptions) -> io::Result<&mut OpenOptions> {
    use std::os::unix::fs::OpenOptionsExt;
    Ok(options.custom_flags(rustix::fs::OFlags::DIRECT.bits().cast_signed()))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn direct(_options: &mut OpenOptions) -> io::Result<&mut OpenOptions> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(target_os = "linux")]
fn drop_pages(file: &File, order: UnitOrder) -> io::Result<()> {
    use rustix::fs::{Advice, fadvise};
    fadvise(file, 0, None, Advice::DontNeed)?;
    // Read-ahead of random reads would fetch data that nobody asks for, or that later reads find in memory.
    Ok(fadvise(file, 0, None, if order == UnitOrder::Random { Advice::Random } else { Advice::Normal })?)
}

#[cfg(not(target_os = "linux"))]
fn drop_pages(_file: &File, _order: UnitOrder) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "pages can be dropped from the page cache only on Linux"))
}

/// Whether the file system has no device (tmpfs, ramfs).
#[cfg(target_os = "linux")]
fn is_in_memory(file: &File) -> bool {
    /// From Linux's `magic.h`.
    const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];
    rustix::fs::fstatfs(file).is_ok_and(|found| IN_MEMORY.contains(&(found.f_type as u64 & 0xffff_ffff)))
}

#[cfg(not(target_os = "linux"))]
fn is_in_memory(_file: &File) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_where_direct_reads_want_them() {
        for len in [1, 512, 4096, CHUNK] {
            let mut aligned = Aligned::random(len);
            assert_eq!(aligned.as_ref().as_ptr().align_offset(ALIGNMENT), 0);
            assert_eq!((aligned.as_ref().len(), aligned.as_mut().len()), (len, len));
        }
    }

    #[test]
    fn the_file_has_no_name_from_the_beginning() {
        let dir = std::env::temp_dir().join(format!("bifold-scratch-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let scratch = Scratch::new(&dir, 1 << 20, &[512, 4096], &mut |_| ()).unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        assert_eq!(scratch.file.metadata().unwrap().len(), 1 << 20);
        scratch.make_cold(UnitOrder::Random).unwrap();
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn no_more_than_a_tenth_of_the_free_space_is_taken() {
        let dir = std::env::temp_dir();
        let room = most_in(&dir).unwrap();
        assert_eq!(size(None, 1 << 20, 1 << 12, &dir).unwrap(), 1 << 20);
        assert_eq!(size(Some(5000), 1 << 20, 1 << 12, &dir).unwrap(), 1 << 12);
        let refused = |asked, least| match size(asked, 1 << 20, least, &dir).unwrap_err() {
            Failure::Plan(message) => message,
            other => panic!("{other:?}"),
        };
        // Other tests write meanwhile, so the free space is not exactly the same.
        assert!(refused(Some(room * 2), 1 << 12).contains("more than a tenth of the free space"));
        assert!(refused(Some(1), 1 << 12).contains("too small: the least is 4.0 KiB"));
        assert!(refused(None, room * 2).contains("free some space"));
    }
}
