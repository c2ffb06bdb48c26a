//! What the system is told and asked about reads of an open file. Where it cannot do that, nothing else changes.

use std::{
    fs::File,
    io::{self, ErrorKind},
};

use super::read_exact_at;

/// Has the system read what a call asks for and nothing around it.
pub(crate) fn read_exactly(file: &File) {
    #[cfg(target_os = "linux")]
    // A hint, too.
    let _refused = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Random);
    #[cfg(not(target_os = "linux"))]
    let _ = file;
}

pub(crate) fn will_need(file: &File, offset: u64, len: u64) {
    #[cfg(target_os = "linux")]
    {
        let len = std::num::NonZeroU64::new(len);
        // A hint: if the system refuses it, the read is slower and nothing else changes.
        let _refused = rustix::fs::fadvise(file, offset, len, rustix::fs::Advice::WillNeed);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, offset, len);
}

/// Whether a byte can be read without waiting for the device. Where the system cannot say, it is taken for that.
#[cfg(not(target_os = "linux"))]
pub(crate) fn is_in_memory(_file: &File, _offset: u64) -> bool {
    true
}

/// Whether a byte can be read without waiting for the device. Where the system cannot say, it is taken for that.
#[cfg(target_os = "linux")]
pub(crate) fn is_in_memory(file: &File, offset: u64) -> bool {
    if let Some(cached) = has_cached(file, offset, 1) {
        return cached;
    }
    // If it cannot, this begins to read the page: asking is no more than announcing it.
    let mut byte = [0];
    let buffers = &mut [io::IoSliceMut::new(&mut byte)];
    let read = rustix::io::preadv2(file, buffers, offset, rustix::io::ReadWriteFlags::NOWAIT);
    read != Err(rustix::io::Errno::AGAIN)
}

/// Whether the system's cache has a page of these bytes, read or being read. `None` where it does not say (before Linux
/// 6.5).
#[cfg(target_os = "linux")]
pub(crate) fn has_cached(file: &File, offset: u64, len: usize) -> Option<bool> {
    use std::os::fd::AsRawFd;

    /// Its number in every architecture's table.
    const CACHESTAT: libc::c_long = 451;

    #[repr(C)]
    struct Range {
        offset: u64,
        len: u64,
    }

    #[repr(C)]
    #[derive(Default)]
    struct Found {
        cached: u64,
        dirty: u64,
        being_written: u64,
        evicted: u64,
        recently_evicted: u64,
    }

    let (range, mut found) = (Range { offset, len: len as u64 }, Found::default());
    // SAFETY: the call reads one structure and writes the other; both have the layout that `linux/mman.h` gives them.
    let answer = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut found, 0) };
    // The other counters say what was there.
    let Found { cached, dirty: _, being_written: _, evicted: _, recently_evicted: _ } = found;
    (answer == 0).then_some(cached > 0)
}

/// Fills `buffer` from `offset` on. The page cache drops the pages that this brought in, and keeps those that were
/// there (`RWF_DONTCACHE`, Linux 6.14). Older systems and other file systems refuse that, and keep them all.
#[cfg(target_os = "linux")]
pub(crate) fn read_once_at(file: &File, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
    /// From Linux's `fs.h`; the crate `rustix` has no name for it yet.
    const DONT_CACHE: u32 = 0x80;
    let flags = rustix::io::ReadWriteFlags::from_bits_retain(DONT_CACHE);
    while !buffer.is_empty() {
        match rustix::io::preadv2(file, &mut [io::IoSliceMut::new(buffer)], offset, flags) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                buffer = &mut buffer[read..];
                offset += read as u64;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
                return read_exact_at(file, buffer, offset);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn read_once_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    read_exact_at(file, buffer, offset)
}
